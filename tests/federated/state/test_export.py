from __future__ import annotations

import hashlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from dpfed.errors import InvalidArgument
from dpfed.federated.state.checkpoint import Checkpoint, Checkpoints
from dpfed.federated.state.export import newest
from dpfed.federated.state.layout import Layout
from dpfed.runs.directory import RunDirectory

LAYOUT = Layout(("layer.weight", "layer.bias"), ((2, 2), (2,)), "float32")
WEIGHTS = np.arange(6, dtype=np.float32)


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    for number in (1, 2):
        Checkpoints(directory, LAYOUT).write(Checkpoint(number, number * WEIGHTS, "1:a", {"mean": np.zeros(6)}))
    return directory


def test_the_newest_model_is_written_by_the_names_of_its_parameters_and_nothing_else_is(run, tmp_path):
    model, path = newest(run), tmp_path / "model.safetensors"
    assert model.round == 2
    assert model.write(path, {"run": "study"}) == hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_file(path)
    assert found.keys() == {"layer.weight", "layer.bias"}
    assert found["layer.weight"].tolist() == [[0.0, 2.0], [4.0, 6.0]]


def test_a_model_that_is_not_finite_is_not_exported(run, tmp_path):
    Checkpoints(run, LAYOUT).write(Checkpoint(3, WEIGHTS * np.float32(np.nan), "1:a"))
    with pytest.raises(InvalidArgument, match="not finite"):
        newest(run).write(tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_a_run_without_a_model_and_a_damaged_one_are_refused(run, tmp_path):
    with pytest.raises(InvalidArgument, match="holds no model yet"):
        newest(RunDirectory(tmp_path / "another"))
    (run.path / "checkpoints" / "round-000002.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InvalidArgument, match="put back a copy"):
        newest(run)
