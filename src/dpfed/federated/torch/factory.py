"""The torch model that a configuration describes, and the public weights it starts from.

What the data decide of a model (features, channels, classes) follows from the shape of a record and from the *declared*
classes, never from the labels: a class that one record has would tell of it.

>>> from dpfed.models.cnn import CNN
>>> fill_options(CNN, {"size": 8}, shape=(1, 8, 8), classes=10)
{'channels': 1, 'classes': 10, 'size': 8}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import nn

from dpfed.config.run import RunConfig
from dpfed.config.training import Local
from dpfed.errors import InvalidArgument
from dpfed.federated.data import DataFacts
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch import losses
from dpfed.federated.torch.model import TorchModel
from dpfed.models.registry import KINDS, build
from dpfed.references import is_reference, resolve
from dpfed.training.optimizing import Constant, Cosine, OptimizerSettings, Step


def build_model(config: RunConfig, facts: DataFacts, directory: Path) -> TorchModel:
    """Return the model of a configuration for such data; modules of your own are looked for in `directory` first."""
    block = config.model
    if facts.shape is None:
        message = "the shape of a record is not declared, and a model is made for one: declare data.shape, such as [30]"
        raise InvalidArgument("shape", message)
    classes = len(facts.classes or config.data.classes)
    factory = make_factory(block.kind, block.options, facts.shape, classes, directory)
    return TorchModel(factory, losses.find_loss(block.loss, directory), recipe=make_settings(config.local))


def make_factory(
    kind: str,
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    directory: Path,
    tokens: int | None = None,
) -> Callable[[], nn.Module]:
    """Return what makes the model of that kind for records of that shape."""
    make = _find_maker(kind, directory)
    chosen = fill_options(make, options, shape, classes, tokens)
    return partial(build, kind, **chosen) if kind in KINDS else partial(make, **chosen)


def fill_options(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    classes: int,
    tokens: int | None = None,
) -> dict[str, Any]:
    """Return the options, completed by what the model takes of a record's shape, the classes and the tokens."""
    known = {"features": math.prod(shape), "classes": classes}
    if tokens is not None:
        known["vocabulary"] = tokens
    if len(shape) == 3:
        known["channels"] = shape[0]
    if make is KINDS["cnn"]:
        known["size"] = shape[-1]
    wanted = {name: value for name, value in known.items() if name in inspect.signature(make).parameters}
    chosen = {**wanted, **options}
    if chosen.get("classes") == 0:
        message = "classes is missing: declare data.classes, or give model.options.classes (1 for a quantity)"
        raise InvalidArgument("classes", message)
    return {name: chosen[name] for name in sorted(chosen)}


def first_weights(made: TorchModel, init: str | None, directory: Path) -> Vector:
    """Return the weights in the public .safetensors file `init`, or those from the model's public seed."""
    if init is None:
        return made.first_weights
    try:
        return made.layout.flatten(load_file(directory / init))
    except (OSError, SafetensorError) as error:
        raise InvalidArgument(
            "init", f"model.init: {init} cannot be read as safetensors ({error}): save the weights in that format"
        ) from None
    except InvalidArgument as error:
        raise InvalidArgument("init", f"model.init: {init} holds another model: {error}") from None


def threads() -> int:
    """Return how many threads torch computes with."""
    return torch.get_num_threads()


def _find_maker(kind: str, directory: Path) -> Callable[..., Any]:
    if kind in KINDS:
        return KINDS[kind]
    if not is_reference(kind):
        message = f"model.kind must be one of {', '.join(KINDS)} or package.module:name, got {kind!r}"
        raise InvalidArgument("kind", message)
    made = resolve(kind, directory)
    if not callable(made) or isinstance(made, nn.Module):  # a model can be called as well, and makes outputs
        raise InvalidArgument(
            "kind", f"model.kind: {kind} is no class or function that makes a model: name one that does"
        )
    return made  # type: ignore[no-any-return]


def make_settings(local: Local) -> OptimizerSettings:
    """Return the optimizer of a client, with its schedule."""
    kinds = {"constant": Constant, "cosine": Cosine, "step": Step}
    schedule: Any = kinds[local.schedule.kind](**local.schedule.model_dump(exclude={"kind"}))
    return OptimizerSettings(local.optimizer, local.momentum, local.weight_decay, schedule)
