"""What the documentation shows is what happens.

In README.md, CONTRIBUTING.md and docs/ every fenced block has a language, and

- ``python`` and ``console`` blocks run from top to bottom, in one namespace and one directory per page;
- in ``python`` blocks with ``>>>`` the output is compared;
- ``console`` blocks hold ``$ dpfed ...`` commands; each must succeed, and the lines below it are its output
  (``...`` stands for anything, as in a doctest; a command with nothing below it only has to succeed);
- ``sh`` blocks are for set-up and are not run, but every ``make`` target they name exists;
- ``json`` and ``yaml`` blocks can be read.

The docstrings of all modules run as doctests.
"""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dpfed.cli.main import main

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
MODULES = sorted((SRC / "dpfed").rglob("*.py"))
LANGUAGES = {"python", "console", "sh", "json", "yaml", "text"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^(`{3,})([^\n`]*)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match[2].strip(), match[3], text.count("\n", 0, match.start(3)) + 1) for match in FENCE.finditer(text)
    ]
    return [block for block in found if not block.language.startswith("{")]  # {toctree} and the like are Sphinx's


@pytest.fixture(params=[page for page in PAGES if "_build" not in page.parts], ids=relative)
def page(request):
    return request.param


def test_every_block_has_a_language_that_is_checked(page):
    strange = [f"line {block.line}: {block.language!r}" for block in blocks(page) if block.language not in LANGUAGES]
    assert not strange, f"{relative(page)}: {strange}; use one of {sorted(LANGUAGES)}"


def test_blocks_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language == "console":
            run_console(block)


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    where = f"{relative(page)}, line {block.line}"
    if ">>>" not in block.text:
        exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)  # noqa: S102
        return
    example = doctest.DocTestParser().get_doctest(block.text, namespace, where, str(page), block.line - 1)
    out: list[str] = []
    failed, attempted = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=out.append, clear_globs=False)
    assert attempted
    assert not failed, "".join(out)
    namespace.update(example.globs)


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    parts = re.split(r"^\$ ", block.text.replace("\\\n", " "), flags=re.MULTILINE)
    assert not parts[0].strip(), f"line {block.line}: a console block begins with '$ '"
    return [tuple(part.split("\n", 1)) for part in parts[1:]]


def run_console(block: Block) -> None:
    for command, shown in commands(block):
        program, *arguments = shlex.split(command)
        assert program == "dpfed", f"line {block.line}: a console block runs dpfed only, not {program}"
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, f"$ {command}\n{result.output}"
        same = doctest.OutputChecker().check_output(shown, result.output, FLAGS)
        assert same or not shown.strip(), f"$ {command}\nprints\n{result.output}\nbut the page shows\n{shown}"


def test_sh_blocks_name_targets_that_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for block in blocks(page)
        if block.language == "sh"
        for target in re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    }
    assert named <= targets


def test_data_blocks_can_be_read(page):
    read = {"json": json.loads, "yaml": yaml.safe_load}
    for block in blocks(page):
        if block.language in read:
            assert read[block.language](block.text) is not None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_docstrings_of_a_module_are_true(path, tmp_path, monkeypatch):
    if path.name == "__main__.py" or "migrations" in path.parts:
        return  # importing it runs the program, or is alembic's business
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert not failed
    if path.name != "__init__.py" and "cli" not in path.parts:
        assert attempted, f"{name} shows no example: its docstring says why it exists, with one doctest"


def test_the_readme_begins_with_the_two_commands():
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "sh")
    lines = [line.split("#")[0].strip() for line in first.text.splitlines()]
    assert lines == ["make demo", "make test"]


def test_the_table_of_minutes_has_the_sections_of_the_ci_run():
    (sections,) = re.findall(r"^sections=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| section | minutes | what |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE) == sections.split()


def test_every_test_that_the_page_of_threats_names_exists():
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 30
    for file, name in named:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{file}::{name}"


def test_every_row_of_the_page_of_threats_names_a_test():
    rows = re.findall(r"^\| (?!threat|---)(.*) \|$", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"), re.M)
    assert [row for row in rows if not re.search(r"`[\w/]+\.py(::\w+)?` ?", row.split("|")[-1])] == []
