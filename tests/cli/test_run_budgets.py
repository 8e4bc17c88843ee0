"""``dpfed run`` against budgets: names in a ledger, refusals that leave nothing, crashes that cost, and warnings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from dpfed.ledger.ledger import Ledger
from dpfed.prepaid import WARN_AT, find_mark
from dpfed.runs.directory import RunDirectory

BOOK = "sqlite:///book.db"
RUN = """
name: study
data: {source: a.csv, label: y, classes: ["0", "1"], feature_bounds: [0, 10], partition: {kind: column, column: site},
  names: [north, south], sizes: 30}
model: {kind: KIND}
rounds: 3
local: {steps: 1, batch_size: 5, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 2, delta: 1e-5, clip_norm: 1}}
"""
LEDGER = f'ledger: {{url: "{BOOK}", client_accounts: "at-{{id}}"}}\n'
CRASHING = """
import os
from pathlib import Path

import torch


class Crashing(torch.nn.Linear):
    def forward(self, x):
        rounds = Path("here/rounds.jsonl")
        if Path("crash").exists() and rounds.exists() and len(rounds.read_text().splitlines()) == 2:
            os._exit(9)  # what the round had charged is durable by now
        return super().forward(x)


def make():
    return Crashing(2, 2)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 7},{n % 3},{'north' if n % 3 else 'south'},{n % 2}" for n in range(90)]
    Path("a.csv").write_text("\n".join(["a,b,site,y", *rows]))
    write()
    return tmp_path


def write(extra: str = "", *, kind: str = "logistic") -> None:
    Path("run.yaml").write_text(RUN.replace("KIND", kind) + extra)


def open_accounts(epsilon: float) -> None:
    with Ledger(BOOK) as ledger:
        for name in ("north", "south"):
            ledger.open(f"at-{name}", epsilon=epsilon, delta=1e-5)


def test_a_second_study_on_the_same_ledger_gets_a_new_name_by_itself(dpfed):
    open_accounts(20.0)
    write(LEDGER)
    first, second = dpfed("run run.yaml"), dpfed("run run.yaml")
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    assert "study: finished after 3 of 3 rounds" in first.output
    assert "study-2: finished after 3 of 3 rounds" in second.output
    with Ledger(BOOK) as ledger:
        assert {name: ledger.has_run(name) for name in ("study", "study-2", "study-3")} == {
            "study": True,
            "study-2": True,
            "study-3": False,
        }
        assert all(balance.spent > 2.0 for balance in ledger.accounts())  # both were charged


def test_a_run_that_the_ledger_refuses_leaves_no_directory_and_spends_nothing(dpfed, here):
    open_accounts(1.0)
    before = sorted(path.name for path in here.iterdir())
    write(LEDGER)
    result = dpfed("run run.yaml")
    assert result.exit_code != 0
    assert "at-north" in result.stderr
    assert sorted(path.name for path in here.iterdir()) == before
    with Ledger(BOOK) as ledger:
        assert [balance.spent for balance in ledger.accounts()] == [0.0, 0.0]
        assert not ledger.has_run("study")


def test_a_run_that_is_refused_beside_another_leaves_the_other_alone(dpfed):
    assert dpfed("run run.yaml").exit_code == 0
    open_accounts(1.0)
    write(LEDGER)
    assert dpfed("run run.yaml").exit_code != 0
    assert [path.name for path in Path("runs").iterdir()] == ["study-1"]


def crash_in_round_three() -> None:
    """Run until the third round has paid, and lose it."""
    Path("crashing_p.py").write_text(CRASHING)
    Path("crash").touch()
    command = [sys.executable, "-m", "dpfed", "run", "run.yaml", "--directory", "here"]
    assert subprocess.run(command, capture_output=True, env=dict(os.environ)).returncode == 9
    Path("crash").unlink()
    assert len(RunDirectory("here").rounds()) == 2


def test_a_run_whose_budget_a_crash_exhausted_says_so_and_names_spare_rounds(dpfed):
    write(kind='"crashing_p:make"')
    crash_in_round_three()
    result = dpfed("resume here")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.output.split())
    assert "study: budget exhausted after 2 of 3 rounds." in said
    assert "A crash cost a round: what it had charged stays spent" in said
    assert "`spare_rounds: 1` reserves one more" in said


def test_with_a_spare_round_the_same_crash_costs_no_round_and_nothing_is_said(dpfed):
    write("spare_rounds: 1\n", kind='"crashing_p:make"')
    crash_in_round_three()
    result = dpfed("resume here")
    assert "study: finished after 3 of 3 rounds." in result.output
    assert "A crash cost a round" not in " ".join(result.output.split())


def test_a_run_warns_once_when_it_passes_50_80_and_95_percent_of_its_promise(dpfed):
    Path("run.yaml").write_text(Path("run.yaml").read_text().replace("rounds: 3", "rounds: 30"))
    said = dpfed("run run.yaml --directory here").output
    spent = [0.0, *(each["spent"][0]["epsilon"] for each in RunDirectory("here").rounds())]
    marks = [find_mark(epsilon, 2.0) for epsilon in spent]
    passed = [mark for before, mark in pairwise(marks) if mark != before]
    assert tuple(passed) == WARN_AT == (50, 80, 95)
    found = [said.find(f"{mark} % of the ε for one record is spent") for mark in passed]
    assert found == sorted(found)
    assert min(found) > 0
    assert said.count("% of the ε for one record is spent") == 3


@pytest.mark.parametrize(("cap", "mark"), [(60.0, None), (3.3, 50), (3.1, 80), (2.02, 95)])
def test_a_run_warns_of_accounts_that_its_reservation_uses_up(dpfed, cap, mark):
    open_accounts(cap)
    write(LEDGER)
    result = dpfed("run run.yaml")
    assert result.exit_code == 0, result.stderr
    with Ledger(BOOK) as ledger:
        assert {find_mark(balance.share, 1.0) for balance in ledger.accounts()} == {mark}
    said = " ".join(result.output.split())
    for name in ("north", "south"):
        expected = f"Account at-{name}: {mark} % of its ε = {cap:g} is spent or reserved with this run."
        assert (expected in said) == (mark is not None)
    assert json.loads(dpfed("runs --json").output)["runs"][0]["status"] == "finished"
