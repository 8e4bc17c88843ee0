"""The house stays one that a stranger can live in: closed rooms, small functions, short modules, no old paths."""

from __future__ import annotations

import ast
import json
import re
import runpy
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpfed

ROOT = Path(__file__).parents[1]
SRC, TESTS = ROOT / "src" / "dpfed", ROOT / "tests"
PATHS = sorted(SRC.rglob("*.py"))
TREES = {path.relative_to(SRC).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}

# A room that only the package around it may enter.
CLOSED = {"accounting.exact": "accounting", "ledger.store": "ledger", "training.engine": "training"}
# Where each module was before the rooms were built, and where it went.
MOVED = json.loads((Path(__file__).parent / "reference" / "moved.json").read_text(encoding="utf-8"))
# Modules without a test file of their name, and where they are tested.
TESTED_ELSEWHERE = {
    "ledger/store/migrations/": "by what they make of old ledgers: ledger/store/test_upgrading.py, test_creating.py",
}


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_has_a_test_file_of_its_name():
    """Tests mirror the source, so that whoever changes a module knows where it is tested; `__main__` is `dpfed.cli`."""
    missing = [
        name
        for name in TREES
        if not Path(name).stem.startswith("__")
        and not name.startswith(tuple(TESTED_ELSEWHERE))
        and not (TESTS / Path(name).parent / f"test_{Path(name).name}").exists()
    ]
    assert not missing, f"write tests/…/test_<module>.py for {missing}"


def test_what_is_tested_elsewhere_is_still_there():
    assert all(any(name.startswith(start) for name in TREES) for start in TESTED_ELSEWHERE)


@pytest.mark.parametrize("room", CLOSED)
def test_a_closed_room_is_entered_from_its_own_package_only(room):
    door, owner = f"dpfed.{room}.", CLOSED[room].replace(".", "/")
    strangers = {file for file, tree in TREES.items() if any(f"{name}.".startswith(door) for name in imports(tree))} - {
        file for file in TREES if file.startswith(f"{owner}/")
    }
    assert not strangers, f"dpfed.{room} is imported by {sorted(strangers)}: ask dpfed.{CLOSED[room]} instead"


def is_module(name: str) -> bool:
    path = SRC.parent / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_every_moved_module_is_where_the_table_says():
    assert [new for new in MOVED.values() if not is_module(new)] == []


def test_no_text_names_a_module_by_its_old_path():
    gone = [old for old in MOVED if not is_module(old)]
    pattern = re.compile(rf"(?<![\w.])({'|'.join(re.escape(old) for old in gone)})(?!\w)")
    texts = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    allowed = {"src/dpfed/names.py", "CHANGELOG.md", "tests/test_names.py"}
    found = {
        f"{file}: {match}"
        for file in texts
        if file not in allowed and "/old/" not in file and (ROOT / file).exists()
        for match in pattern.findall((ROOT / file).read_text(encoding="utf-8"))
    }
    assert not found


def bodies() -> list[int]:
    """Return how many lines the body of each function has, without its docstring."""
    found = []
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                found.append(body[-1].end_lineno - body[0].lineno + 1 if body else 0)
    return sorted(found)


def test_functions_are_small():
    lines = bodies()
    assert statistics.median(lines) <= 5
    assert lines[int(0.9 * len(lines))] <= 14


def test_modules_are_short():
    lengths = {path.relative_to(SRC).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in PATHS}
    assert {name: length for name, length in lengths.items() if length > 420} == {}


def test_few_modules_are_flat_at_the_top():
    assert len(list(Path(dpfed.__file__).parent.glob("*.py"))) <= 14


def docstrings() -> Iterator[tuple[str, str]]:
    for file, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
                yield f"{file}:{getattr(node, 'name', 'module')}", text


def test_no_docstring_begins_with_nothing():
    assert [where for where, text in docstrings() if text.startswith("Nothing")] == []


def test_the_map_is_drawn_from_the_code_as_it_is():
    drawn = runpy.run_path(str(ROOT / "docs" / "dev" / "draw_map.py"))["draw"]()
    assert (ROOT / "docs" / "dev" / "map.svg").read_text(encoding="utf-8") == drawn, "run docs/dev/draw_map.py"


@pytest.mark.parametrize("page", ["docs/dev/map.md", "CONTRIBUTING.md"])
def test_every_module_that_a_page_for_developers_names_is_there(page):
    names = set(
        re.findall(r"`(?:src/dpfed/)?([a-z_]+/(?:[a-z_]+/)*[a-z_]*(?:\.py)?)`", (ROOT / page).read_text("utf-8"))
    )
    named = {name for name in names if not name.startswith(("tests/", "docs/", "examples/", "src/"))}
    assert len(named) > 10
    assert {name for name in named if not (SRC / name).exists()} == set()
