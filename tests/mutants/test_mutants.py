"""Every mutant of our own code is killed by the tests it names.

Killers run in a process of their own (`nursery`), on a copy of the package with the fault in it. `make test` looks only
whether every mutant still fits the code and every killer is there; `make mutants` runs them, which takes minutes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mutants.mutant import ROOT, SOURCE, Mutant
from mutants.mutants import MUTANTS
from mutants.nursery import Nursery

KILLERS = sorted({killer for mutant in MUTANTS for killer in mutant.killers})
# What a test says that has found the fault, or a refusal of our own: not that a name is missing or something broke.
FOUND = re.compile(r"AssertionError|assert |Failed: |dpfed\.")
PASSED, FAILED, BROKEN = "passed", "failed", "broken"

every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=str)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


def outcomes(nursery: Nursery, killers: Collection[str], package: Path, folder: Path) -> dict[str, set[str]]:
    """Return how the cases of each killer ended with the package in that folder; none for a test that is not there."""
    report = folder / "report.xml"
    nursery.run(package, killers, report)
    found: dict[str, set[str]] = {killer: set() for killer in killers}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314 - pytest wrote it
        name = f"{case.get('classname')}.{case.get('name')}"
        for killer in killers:
            if name == dotted(killer) or name.startswith(f"{dotted(killer)}["):
                found[killer].add(outcome(case))
    return found


def dotted(killer: str) -> str:
    """Return the name that a report has for a test."""
    name, bracket, case = killer.partition("[")
    return name.replace(".py::", ".").replace("::", ".").replace("/", ".") + bracket + case


def outcome(case: ElementTree.Element) -> str:
    if not len(case):
        return PASSED
    return FAILED if case[0].tag == "failure" and FOUND.match(case[0].get("message", "")) else BROKEN


@every_mutant
def test_a_mutant_fits_the_code_and_its_killers_are_there(mutant: Mutant):
    compile(mutant.text, mutant.file, "exec")
    assert mutant.killers
    for killer in mutant.killers:
        file, _, name = killer.partition("[")[0].partition("::")
        assert f"def {name.rpartition('::')[2]}(" in (ROOT / file).read_text()


def test_no_two_mutants_are_the_same():
    assert len({mutant.name for mutant in MUTANTS}) == len({mutant.text for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.mutants
@every_mutant
def test_every_killer_finds_the_mutant(mutant: Mutant, nursery: Nursery, tmp_path: Path):
    mutant.write_to(tmp_path / "src")
    for killer, ends in outcomes(nursery, mutant.killers, tmp_path / "src", tmp_path).items():
        assert FAILED in ends, f"{mutant.name!r} lives: {killer} ended {ends or 'nowhere, it is not there'}"


@pytest.mark.mutants
def test_killers_find_nothing_in_the_code_as_it_is(nursery: Nursery, tmp_path: Path):
    ends = outcomes(nursery, KILLERS, SOURCE.parent, tmp_path)
    assert {killer: found for killer, found in ends.items() if found != {PASSED}} == {}


@pytest.mark.mutants
def test_a_mutant_whose_killer_is_removed_lives(nursery: Nursery, tmp_path: Path):
    assert outcomes(nursery, [f"{MUTANTS[0].killers[0]}_no_more"], SOURCE.parent, tmp_path) == {
        f"{MUTANTS[0].killers[0]}_no_more": set()
    }
