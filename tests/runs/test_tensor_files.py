"""Arrays and a note in one file: bit for bit as they were, and nothing in the file can run."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.runs import tensor_files

ARRAYS = {"w": np.array([[1.0, -0.0], [2.5, 1e-300]]), "b": np.arange(3, dtype=np.float32)}


def test_arrays_and_note_come_back_bit_for_bit(tmp_path):
    tensor_files.write(tmp_path / "a.safetensors", ARRAYS, {"round": 3, "head": "12:ab"}, mode=0o600)
    note, arrays = tensor_files.read(tmp_path / "a.safetensors")
    assert note == {"round": 3, "head": "12:ab"}
    assert {name: array.tobytes() for name, array in arrays.items()} == {n: a.tobytes() for n, a in ARRAYS.items()}
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o600


def test_tensors_of_torch_are_copies_that_outlive_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    tensor_files.write(path, {"w": torch.ones(3, dtype=torch.bfloat16)}, {}, library=tensor_files.TORCH)
    _, arrays = tensor_files.read(path, library=tensor_files.TORCH)
    path.write_bytes(b"")
    assert arrays["w"].tolist() == [1.0, 1.0, 1.0]


def test_an_export_says_its_digest_and_has_no_note(tmp_path):
    known = tensor_files.export(tmp_path / "a.safetensors", ARRAYS, {"run": "study"})
    assert known == hashlib.sha256((tmp_path / "a.safetensors").read_bytes()).hexdigest()
    with pytest.raises(tensor_files.Unreadable) as refusal:
        tensor_files.read(tmp_path / "a.safetensors")
    assert refusal.value.kind == "KeyError"


@pytest.mark.parametrize("content", [b"", b"nonsense", pickle.dumps({"w": 1}), None])
def test_what_is_no_such_file_is_unreadable(tmp_path, content):
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(tensor_files.Unreadable):
        tensor_files.read(tmp_path / "a")


@pytest.mark.parametrize("text", ["[1]", "3", "{", "[" * 100_000])
def test_a_note_that_is_no_object_is_unreadable(tmp_path, text):
    tensor_files.export(tmp_path / "a", ARRAYS, {tensor_files.NOTE: text})
    with pytest.raises(tensor_files.Unreadable):
        tensor_files.read(tmp_path / "a")


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, np.ones(2)])
def test_a_note_that_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path, value):
    with pytest.raises(InvalidArgument, match="JSON values"):
        tensor_files.write(tmp_path / "a", ARRAYS, {"fact": value})
    assert list(tmp_path.iterdir()) == []
