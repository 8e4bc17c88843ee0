"""Checkpoints of numbers and of nothing that could run: one safetensors file with a JSON text in its header.

A pickle executes what its author likes when it is read, so none ever is. A file appears whole or not at all, and one
that does not fit the model is refused before a single weight has changed. Parameters are all that is kept of a
model: a buffer may be a statistic of the data, so none leaves, and a model that is loaded keeps those it was built
with. Facts are the caller's, such as the step or the head of the ledger (never a balance).

>>> import tempfile
>>> from dpfed.models.logistic import Logistic
>>> path = f"{tempfile.mkdtemp()}/model.safetensors"
>>> save(path, Logistic(seed=1), facts={"step": 40})
>>> load(path, Logistic(seed=2))
{'step': 40}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dpfed.errors import InvalidArgument
from dpfed.runs import tensor_files

FORMAT = 1
MODEL, OPTIMIZER = "model.", "optimizer."
Tensors = dict[str, Tensor]


def save(
    path: str | Path, model: nn.Module, *, optimizer: Optimizer | None = None, facts: Mapping[str, Any] | None = None
) -> None:
    """Write the model's parameters, the optimizer's state and the facts, durably and all at once."""
    tensors = _parameters(model)
    state, groups = _optimizer_state(optimizer, tensors)
    tensors |= state
    _check_finite(path, tensors)
    note = {"format": FORMAT, "facts": dict(facts or {}), "optimizer": groups}
    plain = {name: _copy(tensor) for name, tensor in tensors.items()}
    tensor_files.write(Path(path), plain, note, library=tensor_files.TORCH)


def load(path: str | Path, model: nn.Module, *, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Load the parameters into the model, and the state into the optimizer; return the facts of the checkpoint."""
    note, tensors = _read(Path(path))
    _check_finite(path, tensors)
    own = _parameters(model)
    _check_fit(path, own, {name: tensor for name, tensor in tensors.items() if not name.startswith(OPTIMIZER)})
    restored = _check_optimizer(path, optimizer, note["optimizer"], tensors)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])
    if optimizer is not None:
        optimizer.load_state_dict(restored)
    facts: dict[str, Any] = note["facts"]
    return facts


# --- the optimizer: its tensors beside the model's, everything else in the note ---


def _optimizer_state(optimizer: Optimizer | None, own: Tensors) -> tuple[Tensors, dict[str, Any] | None]:
    if optimizer is None:
        return {}, None
    _check_same_parameters(optimizer, own)
    saved = optimizer.state_dict()
    tensors, plain = {}, {}
    for index, entries in saved["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{index}.{name}"] = value
            else:
                plain[f"{OPTIMIZER}{index}.{name}"] = value
    for name, tensor in tensors.items():
        _check_state_shape(name, tensor, optimizer)
    return tensors, {"groups": saved["param_groups"], "state": plain}


def _check_optimizer(path: str | Path, optimizer: Optimizer | None, note: Any, tensors: Tensors) -> dict[str, Any]:
    """Return the state for the optimizer's ``load_state_dict``, if it fits; {} without an optimizer."""
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(OPTIMIZER)}
    if optimizer is None:
        if found or note is not None:
            _refuse(path, "holds an optimizer's state, which would be lost: call load(path, model, optimizer=...)")
        return {}
    if not isinstance(note, dict) or set(note) != {"groups", "state"} or not isinstance(note["state"], dict):
        _refuse(path, "holds no optimizer's state to load: call load(path, model) without an optimizer")
    _check_groups(path, optimizer, note["groups"])
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**note["state"], **found}.items():
        if isinstance(value, Tensor):
            _check_state_shape(name, value, optimizer)
        index, _, entry = name.removeprefix(OPTIMIZER).partition(".")
        if not index.isdecimal() or int(index) >= len(_parameters_of(optimizer)) or not entry:
            _refuse(path, f"has the state {name!r}, which belongs to no parameter of the optimizer: build the same one")
        state.setdefault(int(index), {})[entry] = value
    return {"state": state, "param_groups": note["groups"]}


def _check_groups(path: str | Path, optimizer: Optimizer, groups: Any) -> None:
    own = optimizer.state_dict()["param_groups"]
    shape = [(set(group), group["params"]) for group in own]
    is_list = isinstance(groups, list) and all(isinstance(group, dict) for group in groups)
    if not is_list or [(set(group), group.get("params")) for group in groups] != shape:
        _refuse(path, f"was written with another optimizer than this {type(optimizer).__name__}: build the same one")


def _check_same_parameters(optimizer: Optimizer, own: Tensors) -> None:
    known = {id(parameter) for parameter in own.values()}
    if any(id(parameter) not in known for parameter in _parameters_of(optimizer)):
        raise InvalidArgument(
            "optimizer",
            "optimizer trains parameters that are not this model's, and would not find them again: build it from "
            "model.parameters()",
        )


def _check_state_shape(name: str, tensor: Tensor, optimizer: Optimizer) -> None:
    index = name.removeprefix(OPTIMIZER).partition(".")[0]
    trained = _parameters_of(optimizer)
    if not index.isdecimal() or int(index) >= len(trained):
        raise InvalidArgument(
            "optimizer", f"the state {name!r} belongs to no parameter of the optimizer: build the same one"
        )
    if tensor.shape not in ((), trained[int(index)].shape):
        message = f"the optimizer's state {name!r} of shape {tuple(tensor.shape)} has not the shape of its parameter"
        raise InvalidArgument("optimizer", f"{message}: use an optimizer with elementwise state, such as SGD or Adam")


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# --- the model ---


def _parameters(model: nn.Module) -> Tensors:
    return {MODEL + name: parameter for name, parameter in model.named_parameters()}


def _check_fit(path: str | Path, own: Tensors, found: Tensors) -> None:
    """Refuse a file whose names, shapes or types are not those of the model."""
    missing, unknown = sorted(set(own) - set(found)), sorted(set(found) - set(own))
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which the model has not"
        _refuse(path, f"{what}: build the model it was written for")
    for name, tensor in found.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            has, wants = (f"{tuple(t.shape)} of {t.dtype}" for t in (tensor, own[name]))
            _refuse(path, f"has {name!r} as {has}, the model as {wants}: build the model it was written for")


def _check_finite(path: str | Path, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            _refuse(
                path,
                f"would hold NaN or infinity in {name!r}, which nobody can train: go back to an earlier model",
            )


# --- the file ---


def _read(path: Path) -> tuple[dict[str, Any], Tensors]:
    try:
        note, tensors = tensor_files.read(path, library=tensor_files.TORCH)
    except tensor_files.Unreadable as error:
        message = f"is no checkpoint of dpfed ({error.kind}), and pickles, which run code, are never read"
        _refuse(path, f"{message}: write it with checkpoint.save")
    if set(note) != {"format", "facts", "optimizer"} or note["format"] != FORMAT:
        _refuse(path, f"is not of format {FORMAT}: read it with the version of dpfed that wrote it")
    if not isinstance(note["facts"], dict):
        _refuse(path, "has facts that are no JSON object: write it again with checkpoint.save")
    return note, tensors


def _copy(tensor: Tensor) -> Tensor:
    # A copy: parameters may share memory (a view of another), which the format cannot hold.
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _refuse(path: str | Path, reason: str) -> NoReturn:
    raise InvalidArgument("path", f"{path} {reason}") from None
