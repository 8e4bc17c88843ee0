"""Checkpoints: what is read is numbers that fit, or nothing changes."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dpfed import models
from dpfed.errors import InvalidArgument
from dpfed.training import checkpoint

NOTE = {"format": 1, "facts": {}, "optimizer": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def mlp(seed: int = 0, **options: object) -> nn.Module:
    return models.MLP(features=4, hidden=(3,), classes=2, seed=seed, **options)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(optimizer_of, seed: int = 0, steps: int = 3):
    model = mlp(seed)
    optimizer = optimizer_of(model.parameters())
    for step in range(steps):
        train_step(model, optimizer, step)
    return model, optimizer


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
    (model(inputs) ** 2).sum().backward()
    optimizer.step()


def written(path: Path, *, note: object = NOTE, **changed: object) -> None:
    """A file with the parameters of an MLP, some of them changed (None takes one away), and that note."""
    tensors = {f"model.{name}": parameter.detach() for name, parameter in mlp(1).named_parameters()}
    tensors |= {name.replace("__", "."): value for name, value in changed.items()}
    text = note if isinstance(note, str) else json.dumps(note)
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path, {"dpfed": text})


def refused(path: Path, match: str, model: nn.Module | None = None, **options: object) -> None:
    """Loading is refused and the model is the one it was."""
    model = mlp(2) if model is None else model
    before = weights(model).clone()
    with pytest.raises(InvalidArgument, match=match):
        checkpoint.load(path, model, **options)
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("kind", ["logistic", "mlp", "cnn", "resnet", "transformer", "unet"])
def test_every_reference_model_comes_back(kind, path):
    source, target = models.build(kind, seed=1), models.build(kind, seed=2)
    checkpoint.save(path, source)
    assert checkpoint.load(path, target) == {}
    assert torch.equal(weights(source), weights(target))


def test_facts_come_back(path):
    facts = {"step": 40, "head": "12:ab34", "rates": [0.5, None, True], "name": "Zürich"}
    checkpoint.save(path, mlp(), facts=facts)
    assert checkpoint.load(path, mlp()) == facts


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, betas=(0.8, 0.9)),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ],
    ids=["sgd", "momentum", "adamw", "adagrad"],
)
def test_training_goes_on_as_if_it_had_never_stopped(optimizer_of, path):
    model, optimizer = trained(optimizer_of)
    checkpoint.save(path, model, optimizer=optimizer)
    resumed = mlp(9)
    resumed_optimizer = optimizer_of(resumed.parameters())
    checkpoint.load(path, resumed, optimizer=resumed_optimizer)
    path.write_bytes(b"")  # what was loaded must not be a view of the file
    for step in range(10, 13):
        train_step(model, optimizer, step)
        train_step(resumed, resumed_optimizer, step)
    assert torch.equal(weights(model), weights(resumed))


class Trap:
    """A pickle of this makes a directory when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("writer", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
def test_a_pickle_that_calls_itself_safetensors_is_refused_and_not_run(writer, path, tmp_path):
    writer(Trap(tmp_path / "ran"), path)
    refused(path, "no checkpoint of dpfed .* pickles, which run code, are never read")
    assert not (tmp_path / "ran").exists()


def test_the_trap_of_the_test_above_is_live(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"\x08", b"not a checkpoint at all", struct.pack("<Q", 2**62) + b"{}"])
def test_bytes_that_are_no_checkpoint_are_refused(content, path):
    path.write_bytes(content)
    refused(path, "no checkpoint of dpfed")


def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(path):
    checkpoint.save(path, mlp(1))
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        refused(path, "no checkpoint of dpfed")


def test_a_file_that_is_not_there_and_a_directory_are_refused(path, tmp_path):
    refused(path, "FileNotFoundError")
    refused(tmp_path, "no checkpoint of dpfed")


def test_safetensors_of_somebody_else_are_refused(path):
    save_file({"weight": torch.zeros(2)}, path)
    refused(path, "no checkpoint of dpfed")


@pytest.mark.parametrize(
    ("note", "match"),
    [
        ("{", "no checkpoint of dpfed"),
        ("[" * 100_000, "no checkpoint of dpfed"),
        ([], "no checkpoint of dpfed"),
        (NOTE | {"format": 2}, "not of format 1"),
        (NOTE | {"more": 1}, "not of format 1"),
        ({"format": 1, "facts": {}}, "not of format 1"),
        (NOTE | {"facts": [1]}, "no JSON object"),
        (NOTE | {"optimizer": {"groups": [], "state": {}}}, "which would be lost: call load"),
    ],
)
def test_a_note_of_another_form_is_refused(note, match, path):
    written(path, note=note)
    refused(path, match)


def test_an_unknown_or_missing_parameter_is_refused(path):
    written(path, model__extra=torch.zeros(1))
    refused(path, "'model.extra', which the model has not")
    written(path, elsewhere=torch.zeros(1))
    refused(path, "'elsewhere', which the model has not")
    written(path, model__layers__1__bias=None)
    refused(path, "lacks 'model.layers.1.bias'")
    written(path, optimizer__0__momentum_buffer=torch.zeros(3, 4))
    refused(path, "which would be lost: call load")


@pytest.mark.parametrize("value", [torch.zeros(1), torch.zeros(3, 1), torch.zeros(3).double(), torch.zeros(3).int()])
def test_another_shape_or_type_is_refused_even_where_it_would_broadcast(value, path):
    written(path, model__layers__1__bias=value)
    refused(path, "has 'model.layers.1.bias' as .*, the model as")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_neither_written_nor_read(bad, path):
    written(path, model__layers__1__bias=torch.tensor([0.0, bad, 0.0]))
    refused(path, "NaN or infinity")
    model = mlp()
    with torch.no_grad():
        next(model.parameters())[0, 0] = bad
    with pytest.raises(InvalidArgument, match="NaN or infinity"):
        checkpoint.save(path.with_name("other"), model)
    assert not path.with_name("other").exists()


def test_an_optimizer_that_was_not_written_is_refused(path):
    checkpoint.save(path, mlp(1))
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(path, "holds no optimizer's state", model, optimizer=optimizer)


def test_the_state_of_another_optimizer_is_refused(path):
    model, optimizer = trained(lambda parameters: torch.optim.Adam(parameters))
    checkpoint.save(path, model, optimizer=optimizer)
    other = mlp(2)
    refused(path, "another optimizer than this SGD", other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    first_layer = torch.optim.Adam(other.layers[1].parameters())
    refused(path, "another optimizer than this Adam", other, optimizer=first_layer)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("optimizer.9.momentum_buffer", torch.zeros(3, 4), "belongs to no parameter"),
        ("optimizer.x.momentum_buffer", torch.zeros(3, 4), "belongs to no parameter"),
        ("optimizer.0.momentum_buffer", torch.zeros(3, 1), "has not the shape of its parameter"),
        ("optimizer.0", torch.zeros(3, 4), "belongs to no parameter"),
    ],
)
def test_a_state_that_fits_no_parameter_is_refused(name, value, match, path):
    model = mlp(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note = NOTE | {"optimizer": {"groups": optimizer.state_dict()["param_groups"], "state": {}}}
    written(path, note=note, **{name.replace(".", "__"): value})
    refused(path, match, model, optimizer=optimizer)
    assert not optimizer.state


def test_an_optimizer_of_another_model_is_refused(path):
    optimizer = torch.optim.SGD(mlp(3).parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match="not this model's"):
        checkpoint.save(path, mlp(), optimizer=optimizer)


@pytest.mark.parametrize("facts", [{"epsilon": float("nan")}, {"when": object()}, {"weights": torch.zeros(1)}])
def test_facts_that_are_not_json_are_refused_and_nothing_is_written(facts, path, tmp_path):
    with pytest.raises(InvalidArgument, match="JSON values"):
        checkpoint.save(path, mlp(), facts=facts)
    assert not list(tmp_path.iterdir())


def test_buffers_never_leave(path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=1.0))
    model(torch.randn(8, 4) + 5)
    checkpoint.save(path, model)
    assert set(load_file(path)) == {f"model.{name}" for name, _ in model.named_parameters()}
    fresh = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    checkpoint.load(path, fresh)
    assert not fresh[1].running_mean.any()


def test_shared_and_transposed_parameters_come_back(path):
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        model[1].bias = nn.Parameter(torch.arange(6.0)[::2])
        return model

    source, target = tied(), tied()
    checkpoint.save(path, source)
    checkpoint.load(path, target)
    assert torch.equal(weights(source), weights(target))
    assert target[1].weight is target[0].weight


def test_a_write_that_fails_leaves_the_old_checkpoint_and_no_litter(path, tmp_path, monkeypatch):
    checkpoint.save(path, mlp(1), facts={"step": 1})

    def full(_: int) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            checkpoint.save(path, mlp(2), facts={"step": 2})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert checkpoint.load(path, mlp()) == {"step": 1}


def test_a_later_checkpoint_takes_the_place_of_the_earlier_one(path, tmp_path):
    checkpoint.save(path, mlp(1), facts={"step": 1})
    checkpoint.save(str(path), mlp(2), facts={"step": 2})
    model = mlp()
    assert checkpoint.load(str(path), model) == {"step": 2}
    assert torch.equal(weights(model), weights(mlp(2)))
    assert len(list(tmp_path.iterdir())) == 1
