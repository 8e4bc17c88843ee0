from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from done_runs import confirm
from dpfed.runs.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("flowers")


def test_runs_are_listed_with_what_they_spent(dpfed):
    result = dpfed("runs")
    assert result.exit_code == 0
    assert "flowers-1  sample  finished  2 of 2" in result.output
    assert "for one record" in result.output
    assert "empty" not in result.output
    (facts,) = json.loads(dpfed("runs --json").output)["runs"]
    assert (facts["status"], facts["round"]) == ("finished", 2)


def test_an_empty_folder_says_how_to_begin(dpfed):
    assert "dpfed init hospitals" in dpfed("runs nowhere").output
    assert json.loads(dpfed("runs nowhere --json").output) == {"runs": []}


def test_a_run_that_has_not_begun_or_ended_says_so(dpfed):
    plan = Path("runs/flowers-1/plan.json")
    Path("runs/new").mkdir()
    shutil.copy(plan, "runs/new")
    shutil.copytree("runs/flowers-1", "runs/half")
    Path("runs/half/checkpoints/round-000002.safetensors").unlink()
    status = {each["directory"]: each["status"] for each in json.loads(dpfed("runs --json").output)["runs"]}
    assert status == {"runs/flowers-1": "finished", "runs/new": "not started", "runs/half": "unfinished"}


def test_one_seeded_round_stamps_the_whole_run(dpfed):
    run = RunDirectory("runs/flowers-1")
    first, *rest = run.rounds()
    (run.path / "rounds.jsonl").unlink()
    for each in [first | {"noise": "NOT PRIVATE"}, *rest]:
        run.append(each)
    confirm(run)
    (facts,) = json.loads(dpfed("runs --json").output)["runs"]
    assert not facts["is_private"]
    assert "NOT PRIVATE" in dpfed("runs").output
