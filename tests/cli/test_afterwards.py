"""What can be asked of a run that is done: ``dpfed runs``, ``evaluate`` and ``export``."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_iris

from dpfed.config import RunConfig
from dpfed.federated.launch import create_run
from dpfed.federated.state.checkpoint import Checkpoints
from dpfed.federated.state.export import newest
from dpfed.runs.directory import RunDirectory

RUN = """
name: flowers
data:
  source: iris.csv
  label: kind
  classes: [setosa, versicolor, virginica]
  feature_bounds: {a: [4, 8], b: [2, 5], c: [1, 7], d: [0, 3]}
  partition: {kind: column, column: garden}
  names: [north, south]
  sizes: 50
model: {kind: logistic}
rounds: 2
local: {steps: 5, batch_size: 25, learning_rate: 1.0}
privacy: {style: sample, record: {noise_multiplier: 1.0, delta: 1e-5, clip_norm: 1}}
"""


def table() -> str:
    names = ["setosa", "versicolor", "virginica"]
    data = load_iris()
    rows = [
        [*map(str, features), names[label], "north" if number % 2 else "south"]
        for number, (features, label) in enumerate(zip(data.data, data.target, strict=True))
    ]
    return "\n".join(",".join(row) for row in [["a", "b", "c", "d", "kind", "garden"], *rows]) + "\n"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with a run that is finished and one that was never begun."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "iris.csv").write_text(table())
    (folder / "run.yaml").write_text(RUN)
    launch = create_run(folder / "run.yaml", folder / "runs" / "flowers-1")
    with launch.ledger(folder / "runs" / "flowers-1") as ledger:
        list(launch.federation(folder / "runs" / "flowers-1", ledger))
    (folder / "runs" / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def here(study, tmp_path, monkeypatch):
    shutil.copytree(study, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")


def confirm(run: RunDirectory) -> None:
    """Write the last checkpoint anew, with the digests of the other files as they are now."""
    checkpoints = Checkpoints(run, newest(run).layout)
    terms = RunConfig.read(run.path / "config.yaml").terms
    checkpoints.write(replace(checkpoints.newest(), files=run.digests({}, terms)))


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


def test_scores_on_private_records_are_marked(dpfed):
    result = dpfed("evaluate flowers-1")
    assert result.exit_code == 0, result.output
    assert "flowers after 2 of 2 rounds" in result.output
    assert "(not covered)" in result.output
    last = RunDirectory("runs/flowers-1").owner_rounds()[-1]
    found = json.loads(dpfed("evaluate flowers-1 --json").output)
    assert found["round"] == last["round"] == 2


def test_other_records_of_the_same_form_can_be_measured(dpfed):
    lines = Path("iris.csv").read_text().splitlines()
    Path("new.csv").write_text("\n".join([lines[0], *lines[1:6]]) + "\n")
    found = json.loads(dpfed("evaluate runs/flowers-1 new.csv --json").output)
    assert found["metrics"]["accuracy"]["mark"] == "not covered"
    assert found["metrics"]["accuracy"]["value"] * 5 == pytest.approx(round(found["metrics"]["accuracy"]["value"] * 5))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate nowhere", "nowhere holds no run"),
        ("evaluate runs/empty", "runs/empty holds no run"),
        ("evaluate flowers-1 nowhere.csv", "cannot be read"),
        ("export nowhere", "nowhere holds no run"),
        ("export flowers-1 model.pt", "must end in .safetensors"),
        ("export flowers-1 no/such/place.safetensors", "no/such"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(dpfed, line, message):
    result = dpfed(line)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_exported_model_is_read_without_dpfed(dpfed):
    assert dpfed("export flowers-1 model.safetensors").exit_code == 0
    weights = load_file("model.safetensors")
    model = torch.nn.Linear(4, 3)
    model.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
    kept = newest(RunDirectory("runs/flowers-1")).weights
    np.testing.assert_array_equal(torch.cat([weights["linear.weight"].flatten(), weights["linear.bias"]]), kept)
    assert model(torch.zeros(1, 4)).shape == (1, 3)
    assert Path("model.safetensors").stat().st_mode & 0o044


def test_the_card_says_what_is_promised_and_how_to_feed_the_model(dpfed):
    facts = json.loads(dpfed("export flowers-1 model.safetensors --json").output)
    assert facts["files"] == ["model.safetensors", "model.md", "model.json"]
    card = json.loads(Path("model.json").read_text())
    assert card["sha256"] == hashlib.sha256(Path("model.safetensors").read_bytes()).hexdigest()
    plan = RunDirectory("runs/flowers-1").plan
    assert card["promises"][0]["epsilon"] == plan.record_epsilon(1e-5)
    assert card["classes"] == ["setosa", "versicolor", "virginica"]
    assert card["scaling"]["feature_bounds"] == {"a": [4, 8], "b": [2, 5], "c": [1, 7], "d": [0, 3]}
    assert card["scores"] == {}  # the held-out records were not declared public
    text = Path("model.md").read_text()
    assert "## What is promised" in text
    assert card["sha256"] in text


def test_the_card_tells_nothing_that_is_the_owners(dpfed):
    dpfed("export flowers-1")
    text = Path("model.md").read_text() + Path("model.json").read_text()
    for word in ("seconds", "contributed", "refused", "failed", "taken", str(Path.cwd())):
        assert f'"{word}"' not in text
        assert word == str(Path.cwd()) or f"- {word}" not in text
    assert str(Path.cwd()) not in text


def test_nothing_is_overwritten_without_force(dpfed):
    Path("model.md").write_text("mine")
    result = dpfed("export flowers-1")
    assert result.exit_code == 2
    assert "model.md exists" in result.stderr
    assert not Path("model.safetensors").exists()
    assert dpfed("export flowers-1 --force").exit_code == 0


def test_a_ledgers_password_stays_out_of_the_card(dpfed):
    kept = Path("runs/flowers-1/config.yaml")
    block = "ledger: {url: 'postgresql://me:secret@host/db', client_accounts: 'c-{id}'}\n"
    kept.write_text(RUN + block)
    assert RunConfig.read(kept).ledger is not None
    confirm(RunDirectory("runs/flowers-1"))
    assert dpfed("export flowers-1").exit_code == 0
    assert "secret" not in Path("model.md").read_text() + Path("model.json").read_text()
