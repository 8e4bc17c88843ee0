"""The rules of the test suite itself: a small suite is run under our own configuration and conftest."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run_suite(tmp_path, monkeypatch):
    monkeypatch.delenv("DPFED_NO_SKIP", raising=False)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")

    def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "tests" / "test_it.py").write_text(source)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


SKIPS = {
    "a test": "import pytest\ndef test_it():\n    pytest.skip('no database here')\n",
    "a module": "import pytest\npytest.skip('no database here', allow_module_level=True)\n",
    "a mark": "import pytest\n@pytest.mark.skip(reason='no database here')\ndef test_it(): pass\n",
}


@pytest.mark.parametrize("source", SKIPS.values(), ids=SKIPS.keys())
def test_a_laptop_may_skip_with_a_reason(run_suite, source):
    result = run_suite(source)
    assert result.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "no database here" in result.stdout


@pytest.mark.parametrize("source", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_is_a_failure_where_nothing_may_be_skipped(run_suite, source):
    result = run_suite(source, DPFED_NO_SKIP="1")
    assert result.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "was skipped" in result.stdout
    assert "no database here" in result.stdout


def test_a_warning_raised_from_dpfed_is_an_error(run_suite):
    source = (
        "def test_it():\n    exec(\"import warnings; warnings.warn('careless')\", {'__name__': 'dpfed.somewhere'})\n"
    )
    result = run_suite(source)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "UserWarning: careless" in result.stdout


def test_a_warning_that_dpfed_raises_at_its_caller_is_an_error_too(run_suite):
    source = (
        "def test_it():\n"
        "    scope = {'__name__': 'dpfed.somewhere'}\n"
        "    exec(\"import warnings\\ndef f(): warnings.warn('careless', stacklevel=2)\", scope)\n"
        "    scope['f']()\n"
    )
    assert run_suite(source).returncode == pytest.ExitCode.TESTS_FAILED


def test_a_warning_of_a_third_party_is_not_an_error(run_suite):
    source = "def test_it(): exec(\"import warnings; warnings.warn('theirs')\", {'__name__': 'dpfeds'})\n"
    assert run_suite(source).returncode == pytest.ExitCode.OK


@pytest.mark.parametrize(("campaign", "examples", "scale"), [("0", 50, 1), ("1", 500, 10)])
def test_a_campaign_draws_ten_times_the_examples(run_suite, campaign, examples, scale):
    source = (
        "from hypothesis import settings\n"
        "def test_it(campaign_scale):\n"
        f"    assert (settings().max_examples, campaign_scale) == ({examples}, {scale})\n"
    )
    assert run_suite(source, DPFED_CAMPAIGN=campaign).returncode == pytest.ExitCode.OK


def test_an_epsilon_that_a_test_fakes_is_not_the_answer_in_the_next(run_suite):
    source = (
        "import pytest\n"
        "from dpfed import events\n"
        "from dpfed.plan import costs\n"
        "@pytest.mark.parametrize('fake', [1.0, 2.0])\n"
        "def test_it(monkeypatch, fake):\n"
        "    monkeypatch.setattr(costs, 'epsilon_of', lambda *_, **__: fake)\n"
        "    assert costs.epsilon(events.Gaussian(1.0), 1e-5, 'add_remove') == fake\n"
    )
    result = run_suite(source)
    assert result.returncode == pytest.ExitCode.OK, result.stdout


def test_a_module_that_a_test_writes_is_not_the_one_that_the_next_imports(run_suite):
    source = (
        "import pytest\n"
        "from dpfed.references import resolve\n"
        "@pytest.mark.parametrize('value', [1, 2])\n"
        "def test_it(tmp_path, value):\n"
        "    (tmp_path / 'mine.py').write_text(f'VALUE = {value}')\n"
        "    assert resolve('mine:VALUE', tmp_path) == value\n"
    )
    result = run_suite(source)
    assert result.returncode == pytest.ExitCode.OK, result.stdout


LEFT = {
    "digits": "from mpmath import mp\ndef test_it(): mp.dps = 40\n",
    "decimals": "import decimal\ndef test_it(): decimal.getcontext().prec = 50\n",
    "floats": "import numpy\ndef test_it(): numpy.seterr(all='ignore')\n",
    "a directory": "import os\ndef test_it(): os.chdir('tests')\n",
    "a dtype": "import torch\ndef test_it(): torch.set_default_dtype(torch.float64)\n",
}


@pytest.mark.parametrize("source", LEFT.values(), ids=LEFT.keys())
def test_a_test_that_does_not_give_back_what_it_set_fails(run_suite, source):
    result = run_suite(source)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED
    assert "did not give them back" in result.stdout


def test_what_a_test_gives_back_is_no_failure(run_suite):
    source = (
        "import os\nfrom mpmath import mp\n"
        "def test_it(monkeypatch):\n"
        "    monkeypatch.chdir('tests')\n"
        "    with mp.workdps(40): pass\n"
    )
    assert run_suite(source).returncode == pytest.ExitCode.OK


MANY = (
    "import random, numpy, pytest, torch\n"
    "@pytest.fixture(scope='module')\n"
    "def shared(): return torch.rand(3)\n"
    "@pytest.mark.parametrize('number', range(20))\n"
    "def test_it(number, shared):\n"
    "    print('drew', number, shared, random.random(), numpy.random.rand(), torch.rand(1).item())\n"
)


def drawn(result: subprocess.CompletedProcess[str]) -> list[str]:
    assert result.returncode == pytest.ExitCode.OK, result.stdout
    return [line[line.index("drew") :] for line in result.stdout.splitlines() if "drew" in line]


def test_the_order_of_tests_is_random_and_what_they_draw_is_not(run_suite):
    one, other = (drawn(run_suite(MANY, PYTEST_ADDOPTS=f"-s --randomly-seed={seed}")) for seed in (1, 2))
    assert one != other
    assert sorted(one) == sorted(other)
    assert len({line.split(" ", 2)[2] for line in one}) == 20


@pytest.mark.parametrize("loudness", ["-q", "-n2 -q"])
def test_the_seed_of_the_order_is_printed(run_suite, loudness):
    result = run_suite("def test_it(): pass\n", PYTEST_ADDOPTS=f"{loudness} --randomly-seed=1234")
    assert "--randomly-seed=1234" in result.stdout


def generators(node: ast.AST) -> list[int]:
    """Return the lines where the code makes a seeded generator that it keeps: `default_rng(1).normal()` keeps none."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [line for decorator in node.decorator_list for line in generators(decorator)]
    if isinstance(node, ast.Lambda) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)):
        return []
    here = isinstance(node, ast.Call) and node.args and ast.unparse(node.func).split(".")[-1] in MAKERS
    below = [line for child in ast.iter_child_nodes(node) for line in generators(child)]
    return [node.lineno, *below] if here else below


MAKERS = {"default_rng", "SeededSource", "RandomState", "Random", "Generator"}
FILES = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_no_two_tests_draw_from_one_generator(path):
    """What a test draws from a generator of its module depends on the tests before it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [line for node in tree.body for line in generators(node)]
