"""A checkpoint is the model bit for bit as it was released, for this model alone, and only its owner reads it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from dpfed.errors import InvalidArgument
from dpfed.federated.state.checkpoint import KEPT, Checkpoint, Checkpoints
from dpfed.federated.state.layout import Layout
from dpfed.runs.directory import RunDirectory
from studies import DIMENSION

LAYOUT = Layout(("layer.weight", "layer.bias"), ((2, 2), (2,)), "float32")


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def checkpoints(run):
    return Checkpoints(run, LAYOUT)


def a_checkpoint(number=3, **options) -> Checkpoint:
    weights = np.array([0.1, -1e-38, 3, 4, 5, 6], dtype=np.float32)
    return Checkpoint(number, weights, "12:ab", {"mean": np.arange(6.0)}, 0.25, {"north": 2}, **options)


def test_a_checkpoint_comes_back_bit_by_bit(run, checkpoints):
    written = a_checkpoint(privacy={"spent": [{"epsilon": 1.5}]})
    checkpoints.write(written)
    found = Checkpoints(run, LAYOUT).newest()
    assert found.weights.tobytes() == written.weights.tobytes()
    assert found.weights.dtype == np.float32
    assert found.state["mean"].tobytes() == written.state["mean"].tobytes()
    for name in ("round", "head", "clip_norm", "taken", "privacy"):
        assert getattr(found, name) == getattr(written, name)


def test_before_enrolment_there_is_none(checkpoints):
    assert checkpoints.newest() is None


def test_the_newest_is_that_of_the_highest_round_and_only_a_few_are_kept(run, checkpoints):
    for number in (0, 1, 2, 3):
        checkpoints.write(a_checkpoint(number))
    assert checkpoints.newest().round == 3
    assert len(list((run.path / "checkpoints").iterdir())) == KEPT


def test_the_model_in_a_checkpoint_cannot_be_changed_in_place():
    given = np.zeros(6)
    checkpoint = Checkpoint(1, given, "1:a")
    given += 1
    assert not checkpoint.weights.any()
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.weights += 1


def test_a_checkpoint_of_another_model_is_refused(run, checkpoints):
    checkpoints.write(a_checkpoint())
    other = Layout(LAYOUT.names, LAYOUT.shapes, "float64")
    with pytest.raises(InvalidArgument, match="another format or model"):
        Checkpoints(run, other).newest()


@pytest.mark.parametrize("damage", [b"", b"half a file", b"\x80\x04\x95 a pickle"])
def test_a_damaged_checkpoint_is_refused_with_what_to_do(run, checkpoints, damage):
    checkpoints.write(a_checkpoint())
    (path,) = (run.path / "checkpoints").iterdir()
    path.write_bytes(damage)
    with pytest.raises(InvalidArgument, match="put back a copy"):
        checkpoints.newest()


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_what_is_saved_is_what_was_released_and_no_state_of_a_generator(open_study, style):
    study = open_study(style)
    federation = study.federation()
    result = next(federation)
    path = study.folder / "run" / "checkpoints" / "round-000001.safetensors"
    with safe_open(path, framework="numpy") as file:
        note = json.loads(file.metadata()["dpfed"])
        names = set(file.keys())
        assert file.get_tensor("model/weights").tobytes() == result.weights.tobytes()
    assert names == {"model/weights"}
    assert set(note) == {
        "format",
        "round",
        "head",
        "layout",
        "clip_norm",
        "taken",
        "privacy",
        "files",
        "digest",
        "seal",
    }
    assert note["privacy"] == {"spent": result.facts()["spent"]}
    assert result.weights.shape == (DIMENSION,)


def test_what_a_checkpoint_says_was_spent_is_never_read_back(open_study):
    study = open_study()
    federation = study.federation()
    next(federation)
    found = federation._checkpoints.newest()
    federation._checkpoints.write(replace(found, privacy={"spent": []}))
    second = next(open_study().federation())
    assert second.spent[0].epsilon == pytest.approx(study.plan.local["harbour"].epsilon(1e-5, 2))
