from __future__ import annotations

from pathlib import Path

import click
import pytest

from dpfed.cli.run_directories import collect_facts, find_run, is_run, make_directory
from dpfed.errors import InvalidArgument
from run_directories import made, plan_of


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_new_directory_has_the_first_number_that_is_free_and_is_the_owners():
    paths = [make_directory("wards") for _ in range(3)]
    assert paths == [Path(f"runs/wards-{number}") for number in (1, 2, 3)]
    paths[1].rmdir()
    assert make_directory("wards") == paths[1]
    assert paths[0].stat().st_mode & 0o777 == 0o700


def test_a_run_is_found_by_its_path_and_by_its_name_in_runs():
    Path("runs").mkdir()
    path = made(Path("runs/wards-1"), plan_of("none"), most=2)
    assert find_run("wards-1") == find_run("runs/wards-1") == path
    assert is_run(path)
    with pytest.raises(click.UsageError, match="nowhere holds no run"):
        find_run("nowhere")


def test_facts_are_those_of_the_rounds_done_and_of_no_changed_file():
    path = made(Path("wards"), plan_of("sample"), most=2)
    facts = collect_facts(path)
    assert (facts["status"], facts["round"], facts["rounds"], facts["style"]) == ("unfinished", 2, 3, "sample")
    assert [each["epsilon"] for each in facts["promises"]] == [4.0]
    rounds = path / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"round": 1', '"round": 2'))
    with pytest.raises(InvalidArgument, match="not what this run wrote"):
        collect_facts(path)
