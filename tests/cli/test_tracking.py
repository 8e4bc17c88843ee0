"""A run from its file is followed by a tracker, which hears what may be shared and can do the run no harm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpfed.integrations.tensorboard import TensorBoardTracker

RUN = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [80, 40]}}
model: {kind: logistic}
rounds: 3
local: {steps: 2, batch_size: 10, learning_rate: 0.5}
"""
SAMPLE = "privacy: {style: sample, record: {noise_multiplier: 1.5, delta: 1e-5, clip_norm: 1}}\n"
HIDDEN = """
cohort: {kind: poisson, rate: 0.5, secret: true}
privacy: {style: user, client: {noise_multiplier: 3, delta: 1e-5, clip_norm: 1}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*parts):
    Path("run.yaml").write_text(RUN + "".join(parts))


def told_mlflow(database):
    """mlflow keeps a database open by its address, so each test has its own."""
    return f'track: {{kind: mlflow, experiment: flowers, tracking_uri: "sqlite:///{database}"}}\n'


def the_run(database):
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    found = client.get_experiment_by_name("flowers")
    (run,) = client.search_runs([found.experiment_id])
    steps = [entry.step for entry in client.get_metric_history(run.info.run_id, next(iter(run.data.metrics)))]
    return run, steps


def scalars(folder):
    files = EventAccumulator(str(folder))
    files.Reload()
    return {tag: [entry.step for entry in files.Scalars(tag)] for tag in files.Tags()["scalars"]}


def test_mlflow_hears_of_every_round_and_gets_the_report(dpfed):
    write(SAMPLE, told_mlflow("heard.db"))
    assert dpfed("run run.yaml").exit_code == 0
    run, steps = the_run("heard.db")
    assert steps == [1, 2, 3]
    assert set(run.data.metrics) == {"epsilon/record"}
    assert (run.info.status, run.data.tags["dpfed.status"]) == ("FINISHED", "finished")


@pytest.mark.parametrize(("logs", "folder"), [("", "runs/flowers-1/tensorboard"), (", logs: all", "all/flowers-1")])
def test_tensorboard_files_are_the_runs_own(dpfed, logs, folder):
    write(SAMPLE, f"track: {{kind: tensorboard{logs}}}\n")
    assert dpfed("run run.yaml").exit_code == 0
    assert scalars(folder)["epsilon/record"] == [1, 2, 3]


def test_with_a_secret_cohort_a_tracker_hears_of_all_rounds_at_the_end(dpfed, monkeypatch):
    heard = []
    monkeypatch.setattr(TensorBoardTracker, "log", lambda *_: heard.append("a round as it came"))
    write(HIDDEN, "track: {kind: tensorboard}\n")
    assert dpfed("run run.yaml").exit_code == 0
    assert heard == []
    assert scalars("runs/flowers-1/tensorboard")["epsilon/client"] == [1, 2, 3]


@pytest.mark.parametrize("command", ["run run.yaml", "resume runs/flowers-1"])
def test_a_package_that_is_missing_is_said_before_anything_is_spent(dpfed, monkeypatch, command):
    write(SAMPLE, told_mlflow("missing.db"))
    if command.startswith("resume"):
        assert dpfed("run run.yaml").exit_code == 0
    monkeypatch.setitem(sys.modules, "mlflow", None)
    before = sorted(Path().rglob("*"))
    result = dpfed(command)
    assert result.exit_code != 0
    assert "track.kind is mlflow, which is not installed: pip install 'dpfed[mlflow]'" in " ".join(
        result.output.split()
    )
    assert sorted(Path().rglob("*")) == before


def test_a_tracker_that_cannot_be_reached_is_said_before_the_first_round(dpfed):
    write(SAMPLE, 'track: {kind: mlflow, tracking_uri: "nowhere://mlflow"}\n')
    result = dpfed("run run.yaml")
    assert result.exit_code != 0
    assert "continue by `dpfed resume runs/flowers-1`" in " ".join(result.output.split())
    assert not Path("runs/flowers-1/rounds.jsonl").exists()


def test_a_tracker_that_breaks_down_does_not_end_the_run(dpfed, monkeypatch):
    def broken(*_):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(TensorBoardTracker, "log", broken)
    write(SAMPLE, "track: {kind: tensorboard}\n")
    result = dpfed("run run.yaml --json")
    assert result.exit_code == 0
    assert result.output.count("no route to host") == 1
    assert json.loads(result.stdout)["round"] == 3
