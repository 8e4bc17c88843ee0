"""A score on records that nobody declared public is for the owner alone: not in a file, a line or a tracker for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dpfed.config.drafts import TableDraft
from dpfed.runs.directory import RunDirectory

METRICS = """
def secret(outputs, targets):
    import numpy as np
    return np.full(len(outputs), 0.471147)
"""
VALUE = "0.4711"
TRACKERS = {
    "none": "",
    "tensorboard": "track: {kind: tensorboard}",
    "mlflow": "track: {kind: mlflow, tracking_uri: %s}",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 7},{n % 3},{'north' if n % 3 else 'south'},{n % 2},{n / 9}" for n in range(90)]
    Path("a.csv").write_text("\n".join(["a,b,site,y,z", *rows]))
    Path("own_scores_p.py").write_text(METRICS)
    return tmp_path


def draft(label: str) -> TableDraft:
    """What `init` writes for a label of the table."""
    columns, classes = ("a", "b", "site", "y", "z"), ("0", "1") if label == "y" else ()
    bounds = {name: (0.0, 10.0) for name in columns if name != "site" and (name != label or not classes)}
    sizes = {"north": 20, "south": 20}
    return TableDraft("a.csv", columns, label, "site", classes=classes, bounds=bounds, sizes=sizes)


def write(*, is_public: bool, track: str = "none") -> None:
    extra = TRACKERS[track].replace("%s", f"sqlite:///{Path.cwd() / 'mlflow.db'}")
    Path("run.yaml").write_text(f"""
name: study
data: {{source: a.csv, label: y, classes: ["0", "1"], ignore: [z], feature_bounds: [0, 10],
  partition: {{kind: column, column: site}},
  names: [north, south], sizes: 20, test_is_public: {str(is_public).lower()}}}
model: {{kind: logistic, metric: "own_scores_p:secret"}}
rounds: 2
local: {{steps: 2, batch_size: 5, learning_rate: 0.5}}
privacy: {{style: sample, record: {{epsilon: 4, delta: 1e-5, clip_norm: 1}}}}
{extra}
""")


def everything_for_all(dpfed) -> dict[str, str]:
    """All that is written or said for everyone."""
    said = {"run": dpfed("run run.yaml --directory runs/a").output}
    said["run --json"] = dpfed("run run.yaml --directory runs/b --json").output
    for command in (
        "runs",
        "runs --json",
        "report runs/a --markdown",
        "report runs/a --json",
        "export runs/a m.safetensors",
    ):
        said[command] = dpfed(command).output
    for path in ("runs/a/rounds.jsonl", "runs/a/report.html", "runs/a/status", "runs/a/plan.json", "m.md", "m.json"):
        said[path] = Path(path).read_text()
    return said


@pytest.mark.parametrize("track", ["none", "tensorboard", "mlflow"])
def test_a_score_on_private_records_is_in_nothing_that_is_for_everyone(dpfed, track):
    write(is_public=False, track=track)
    for place, text in everything_for_all(dpfed).items():
        assert VALUE not in text, place
        assert "loss" not in text, place
    if track == "tensorboard":
        logs = b"".join(path.read_bytes() for path in Path("runs/a/tensorboard").rglob("*") if path.is_file())
        assert b"secret" not in logs
        assert b"loss" not in logs
    if track == "mlflow":
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{Path.cwd() / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("dpfed")
        for run in client.search_runs([experiment.experiment_id]):
            assert set(run.data.metrics) == {"epsilon/record"}


def test_its_owner_has_it_with_its_mark(dpfed):
    write(is_public=False)
    output = dpfed("run run.yaml --directory runs/a").output
    assert "for the owner alone" in output
    score = RunDirectory("runs/a").owner_rounds()[-1]["metrics"]["secret"]
    assert (round(score["value"], 6), score["mark"]) == (0.471147, "not covered")
    assert VALUE in Path("runs/a/report-owner.html").read_text()
    assert VALUE in dpfed("report runs/a --markdown --owner").output
    assert f"secret {VALUE} (not covered)" in dpfed("evaluate runs/a").output


def test_a_score_on_public_records_is_for_everyone(dpfed):
    write(is_public=True)
    said = everything_for_all(dpfed)
    for place in (
        "run",
        "run --json",
        "runs",
        "report runs/a --json",
        "runs/a/rounds.jsonl",
        "runs/a/report.html",
        "m.md",
    ):
        assert VALUE in said[place], place


def test_what_init_writes_of_private_data_keeps_its_scores_to_the_owner():
    for label in ("y", "z"):
        start = draft(label)
        assert not start.to_config().data.test_is_public
        text = start.to_yaml()
        assert "Leave it false unless anybody may know these records" in text
        assert "are in the owner's report alone" in " ".join(text.replace("#", " ").split())


def test_a_mean_square_error_is_no_more_for_everyone_than_the_loss_that_it_is(dpfed):
    Path("run.yaml").write_text(draft("z").to_yaml())
    result = dpfed("run run.yaml --directory runs/a")
    assert result.exit_code == 0, result.output
    assert "mse" not in result.output
    assert all(json.loads(line)["metrics"] == {} for line in Path("runs/a/rounds.jsonl").read_text().splitlines())
    assert "mse" in RunDirectory("runs/a").owner_rounds()[-1]["metrics"]
