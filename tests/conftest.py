"""How hard the tests try, what a skip means, and what a test finds when it starts.

``DPFED_CAMPAIGN=1`` makes random tests draw many more, and fresh, examples; without it they are few
and always the same.

``DPFED_NO_SKIP=1`` turns every skip into a failure: a laptop may skip with one line of reason, CI may not.

Tests run in a random order; the last lines say its seed. Nothing in a test depends on that seed or on the tests before
it: dpfed's caches are empty, modules that tests wrote are gone, and the global generators start from its own name.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

CAMPAIGN = os.environ.get("DPFED_CAMPAIGN") == "1"
NO_SKIP = os.environ.get("DPFED_NO_SKIP") == "1"
SCALE = 10
CACHE = type(functools.cache(len))
SETTINGS: dict[str, Callable[[Any], object]] = {
    "decimal": lambda decimal: decimal.getcontext().prec,
    "mpmath": lambda mpmath: mpmath.mp.prec,
    "numpy": lambda numpy: numpy.geterr(),
    "os": lambda os: os.getcwd(),
    "torch": lambda torch: (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
}

# Two workers share two cores: threads of torch that wait for each other take seven times as long there.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A red run must be the change's fault and not chance's, so both profiles always take the same cases; DPFED_RANDOM=1
# takes new ones, for whoever goes hunting. No deadline: a slow machine is not a bug, and how fast the accountant is
# belongs to benchmarks/.
settings.register_profile("short", deadline=None, max_examples=50, derandomize=True)
settings.register_profile(
    "campaign",
    deadline=None,
    max_examples=50 * SCALE,
    derandomize=os.environ.get("DPFED_RANDOM") != "1",
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("campaign" if CAMPAIGN else "short")


@pytest.fixture(scope="session")
def campaign_scale() -> int:
    """How many times more cases a random test takes than on a laptop: 1, or 10 in a campaign."""
    return SCALE if CAMPAIGN else 1


def _settings() -> dict[str, object]:
    return {name: look(sys.modules[name]) for name, look in SETTINGS.items() if name in sys.modules}


@pytest.fixture(autouse=True)
def _what_is_set_is_given_back() -> Iterator[None]:
    """Fail a test that leaves a setting of the whole process changed: a later one would compute with other digits."""
    before = _settings()
    yield
    after = _settings()
    changed = {name: after[name] for name in before if after[name] != before[name]}
    assert not changed, f"the test changed settings that all tests share and did not give them back: {changed}"


@pytest.fixture(autouse=True)
def _modules_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget modules that a test wrote and imported: the next one may write another of the same name."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        file = vars(sys.modules[name]).get("__file__")
        if file and Path(file).is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]


def pytest_configure(config: pytest.Config) -> None:
    config.option.randomly_reset_seed = False  # it would seed by the order's seed: a red run could be chance's fault


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if "randomly_seed" in config.option:
        terminalreporter.write_line(f"in the random order of --randomly-seed={config.option.randomly_seed}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _forget()
    _seed("set-up")  # the same for all: a fixture of a module is set up by whichever test comes first


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    _seed(item.nodeid)


def _forget() -> None:
    """Empty every cache of dpfed: what an earlier test faked, say an ε, must not be the answer in this one."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "dpfed"]
    for value in [value for module in modules for value in vars(module).values() if isinstance(value, CACHE)]:
        value.cache_clear()


def _seed(name: str) -> None:
    seed = crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _forbid_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"DPFED_NO_SKIP=1, but {report.nodeid} was skipped. {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report
