"""``dpfed run`` and ``dpfed resume``, in this process and in one that is interrupted or killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfed.config import RunConfig
from dpfed.federated.metrics import accuracy
from dpfed.ledger.ledger import Ledger
from dpfed.runs.directory import RunDirectory

RUN = """
name: flowers
data:
  source: sklearn:iris
  feature_bounds: [0, 8]
  partition: {kind: quantity, sizes: [80, 40]}
  names: [north, south]
  test_is_public: true
model: {kind: logistic}
rounds: 2
local: {steps: 2, batch_size: 10, learning_rate: 0.5}
privacy: {style: sample, record: {noise_multiplier: 1.5, delta: 1e-5, clip_norm: 1}}
"""

WAITING = """
import time
from pathlib import Path
from dpfed.federated.metrics import accuracy
from dpfed.runs.directory import RunDirectory

def waiting(outputs, targets):
    while len(RunDirectory("here").rounds()) >= 2 and not Path("go").exists():
        time.sleep(0.01)
    return accuracy(outputs, targets)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(RUN)
    return tmp_path


def test_a_run_shows_every_round_and_says_where_everything_is(dpfed):
    result = dpfed("run run.yaml")
    assert result.exit_code == 0, result.output
    assert "kept in runs/flowers-1" in result.output
    assert "has its own, runs/flowers-1/ledger.db" in result.output
    assert "`dpfed ledger head --ledger runs/flowers-1/ledger.db`" in " ".join(result.output.split())
    assert "round 1 of 2: loss" in result.output
    assert "round 2 of 2: loss" in result.output
    assert "for one record" in result.output
    assert "finished after 2 of 2 rounds" in result.output
    assert "dpfed export runs/flowers-1" in result.output
    assert "\x1b" not in result.output
    for name in ("report.html", "report-owner.html", "ledger.db", "config.yaml"):
        assert (Path("runs/flowers-1") / name).exists()
    before = RunDirectory("runs/flowers-1").rounds()
    again = dpfed("resume flowers-1")
    assert again.exit_code == 0, again.output
    assert "finished after 2 of 2" in again.output
    assert RunDirectory("runs/flowers-1").rounds() == before


def test_a_run_can_be_repeated_and_tells_a_program_what_it_spent(dpfed):
    for number in (1, 2):
        facts = json.loads(dpfed("run run.yaml --json").output)
        assert facts["directory"] == f"runs/flowers-{number}"
    assert (facts["status"], facts["round"], facts["rounds"], facts["is_private"]) == ("finished", 2, 2, True)
    assert [spent["unit"] for spent in facts["spent"]] == ["record"]
    assert facts["spent"][0]["epsilon"] == pytest.approx(facts["promises"][0]["epsilon"])
    assert facts["metrics"]["accuracy"]["mark"] == ""


def test_a_seeded_run_is_stamped_everywhere(dpfed):
    Path("run.yaml").write_text(RUN + "seed: 7\n")
    shown = dpfed("run run.yaml").output
    assert shown.count("NOT PRIVATE") >= 4  # at the start, with both rounds, at the end
    assert "Whoever sees" not in shown
    assert "NOT PRIVATE" in dpfed("runs").output
    assert "NOT PRIVATE" in dpfed("evaluate flowers-1").output
    assert "NOT PRIVATE" in dpfed("plan run.yaml").output
    assert dpfed("export flowers-1").exit_code == 0
    assert "NOT PRIVATE" in Path("model.md").read_text()
    assert json.loads(dpfed("runs --json").output)["runs"][0]["is_private"] is False


REFUSALS = {
    "run nowhere.yaml": "nowhere.yaml cannot be read",
    "run run.yaml --threads 0": "--threads must be",
    "run": "CONFIG",
    "resume": "RUN",
    "resume nowhere": "nowhere holds no run",
    "resume run.yaml": "run.yaml holds no run",
}


@pytest.mark.parametrize(("line", "message"), REFUSALS.items(), ids=REFUSALS)
def test_a_refusal_is_one_line_and_leaves_no_round(dpfed, here, line, message):
    result = dpfed(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(here.glob("runs/*/rounds.jsonl"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds: 2", "num_rounds: 2", "dpfed's word is rounds"),
        ("kind: logistic", "kind: lstm", "model.kind must be one of"),
        ("sklearn:iris", "sklearn:mnist", "does not come with scikit-learn"),
        ("sizes: [80, 40]", "sizes: [80, 41]", "must add up to all 120 records"),
    ],
)
def test_a_wrong_file_makes_no_directory(dpfed, here, old, new, message):
    Path("run.yaml").write_text(RUN.replace(old, new))
    result = dpfed("run run.yaml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not list(here.glob("runs/*"))


def test_a_directory_with_a_run_is_not_overwritten(dpfed):
    Path("here").mkdir()
    Path("here/config.yaml").write_text(RUN)
    result = dpfed("run run.yaml --directory here")
    assert result.exit_code == 2
    assert "dpfed resume here" in result.stderr


def started(*arguments: str) -> subprocess.Popen[str]:
    """A run of six rounds that waits in its third until there is a file of the name go."""
    Path("parts_that_wait.py").write_text(WAITING)
    text = RUN.replace("kind: logistic", "kind: logistic, metric: 'parts_that_wait:waiting'")
    Path("run.yaml").write_text(text.replace("rounds: 2", "rounds: 6"))
    command = [sys.executable, "-m", "dpfed", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_rounds(count: int) -> None:
    while len(RunDirectory("here").rounds()) < count:
        time.sleep(0.01)


def test_ctrl_c_ends_after_the_round_and_says_how_to_go_on(dpfed):
    process = started("run", "run.yaml", "--directory", "here")
    wait_for_rounds(2)
    process.send_signal(signal.SIGINT)
    assert "stopping after this round" in next(line for line in process.stdout if "stopping" in line)
    Path("go").touch()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Continue with: dpfed resume here" in err
    assert "Traceback" not in err
    done = len(RunDirectory("here").rounds())
    assert done in (2, 3)
    result = dpfed("resume here")
    assert result.exit_code == 0, result.output
    assert f"round {done + 1} of 6" in result.output
    records = RunDirectory("here").rounds()
    assert [record["round"] for record in records] == [1, 2, 3, 4, 5, 6]
    promise = RunDirectory("here").plan.guarantee.epsilon
    assert records[-1]["spent"][0]["epsilon"] <= promise  # stopping between rounds costs nothing


def test_a_second_ctrl_c_ends_at_once(dpfed):
    process = started("run", "run.yaml", "--directory", "here")
    wait_for_rounds(2)
    process.send_signal(signal.SIGINT)
    assert "stopping" in next(line for line in process.stdout if "Ctrl-C" in line)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "of 6 rounds; what was released is kept" in err
    assert "Traceback" not in err
    with Ledger(Path("here/ledger.db"), create=False) as ledger:
        ledger.verify()


def test_the_metric_that_waits_is_the_usual_one():
    assert RunConfig.parse(RUN).model.metric == accuracy.__name__


BROKEN = """
from torch import nn

class Model(nn.Linear):
    def forward(self, rows):
        if self.training and len(rows) > 8:  # more than the made-up records of a rehearsal have
            raise ZeroDivisionError("patient Zebedee")
        return super().forward(rows)
"""


@pytest.mark.parametrize("output", ["", " --json"])
def test_a_run_whose_clients_all_fail_ends_as_any_other_and_its_owner_is_told(dpfed, output):
    Path("broken.py").write_text(BROKEN)
    client = "client: {noise_multiplier: 1.5, delta: 1e-5, clip_norm: 1}"
    text = RUN.replace("{kind: logistic}", '{kind: "broken:Model", options: {in_features: 4, out_features: 3}}')
    text = text.replace("privacy: {style: sample, record: {noise_multiplier: 1.5, delta: 1e-5, clip_norm: 1}}", "")
    text = text.replace("batch_size: 10", "batch_size: 30")
    Path("run.yaml").write_text(f"{text}privacy: {{style: user, {client}}}\n")
    result = dpfed(f"run run.yaml{output}")
    assert result.exit_code == 0, result.output
    assert "In 2 of 2 rounds there was no update" in result.stderr
    assert "ZeroDivisionError" in result.stderr
    assert not any(word in result.stdout for word in ("there was no update", "ZeroDivisionError"))
    shared, owner = (Path("runs/flowers-1", name).read_text() for name in ("report.html", "report-owner.html"))
    assert "In 2 of 2 rounds there was no update" in owner
    assert not any(word in shared for word in ("there was no update", "ZeroDivisionError"))
    assert "Zebedee" not in result.output + owner + shared
    assert RunDirectory("runs/flowers-1").status == "finished"
