"""Gradient inversion: the record that a gradient gives away, without noise and with it.

In the first linear layer of a model the gradient of one record is its error times the record itself, and that of the
bias is the error alone. So whoever sees both divides, and has the record (Phong et al. 2017); the sign of the last
bias' gradient is its label (Zhao, Mopuri and Bilen 2020). Neither training nor guessing is needed: this is what a
server sees of a client that takes one step on one record. Noise in the gradient is noise in the record, many times as
large.

>>> from dpfed.models.mlp import MLP
>>> from dpfed.randomness import SeededSource
>>> record = SeededSource(1).normal((1, 8))
>>> seen = compute_gradient(MLP(8, (6,), 3), record, np.array([2]))
>>> found = invert(seen)
>>> np.allclose(found.record, record[0], atol=1e-4), found.label
(True, 2)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.audit.membership import pool_members
from dpfed.clipping import clip_gradients
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import Launch
from dpfed.federated.state.layout import Vector
from dpfed.randomness import RandomSource, or_system

WEAK = (0.01, 0.1)  # noise multipliers that protect nobody, to compare with
Gradient = Mapping[str, Tensor]
Rows = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Inverted:
    """What a gradient says about the one record behind it: its features, flat, and its class."""

    record: Floats = field(repr=False)
    label: int


@dataclass(frozen=True)
class Inversion:
    """How much of records was read from their gradients at one noise multiplier; None is without clip and noise.

    `likeness` is the mean correlation of what was read with the record, `labels` the share of classes that are right.
    """

    noise_multiplier: float | None
    likeness: float
    labels: float
    read: tuple[Floats, ...] = field(repr=False, compare=False)


def compute_gradient(model: nn.Module, inputs: Rows, labels: Rows) -> dict[str, Tensor]:
    """Return the gradient of the mean cross-entropy of these records, exact: private, for the owner alone."""
    dtype = next(model.parameters()).dtype
    records = torch.from_numpy(np.asarray(inputs, dtype=np.float64)).to(dtype)
    loss = nn.functional.cross_entropy(model(records), torch.from_numpy(np.asarray(labels, dtype=np.int64)))
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = torch.autograd.grad(loss, list(trained.values()))
    return dict(zip(trained, found, strict=True))


def invert(gradient: Gradient) -> Inverted:
    """Return the record and the class that explain a gradient best, where its first and last layers are linear.

    The matrix of the first layer is error × record: the record is the least-squares solution. What a later one gives
    away is what came out of the layers before it, and is refused.
    """
    layers = [(gradient[name], gradient[_bias_of(name)]) for name in gradient if _is_linear(name, gradient)]
    if not layers or not _is_linear(next(iter(gradient)), gradient):
        message = "the gradient begins with no linear layer with a bias, from which a record could be read"
        raise InvalidArgument("gradient", f"{message}: give that of a model such as MLP")
    weight, bias = (part.detach().to("cpu", torch.float64).numpy() for part in layers[0])
    size = float(bias @ bias)
    record = bias @ weight / size if size > 0 else np.zeros(weight.shape[1])
    return Inverted(np.asarray(record), int(np.argmin(layers[-1][1].detach().cpu().numpy())))


def measure_inversion(
    model: nn.Module,
    inputs: Rows,
    labels: Rows,
    noise_multipliers: Sequence[float | None] = (None, 0.01, 0.1, 1.0),
    *,
    clip_norm: float = 1.0,
    source: RandomSource | None = None,
) -> tuple[Inversion, ...]:
    """Return how much a server reads of each record from one step on it alone, at each noise multiplier.

    Privacy: none. What is read is of the records as they are: for the owner alone where these are private.
    """
    origin, bound = or_system(source), checks.positive(clip_norm=clip_norm)
    return tuple(_measure(model, inputs, labels, noise, bound, origin) for noise in noise_multipliers)


def invert_run(
    launch: Launch, weights: Vector, count: int, *, source: RandomSource | None = None
) -> tuple[Inversion, ...]:
    """Return how much is read of so many members, chosen by chance, from one step of the run's model on each of them.

    Without clip and noise, with the run's clip norm and little noise, and with the noise of the run's own steps, if
    these have Gaussian noise.

    Privacy: none. The result is of private records as they are: for the owner alone.
    """
    (inputs, labels), origin = pool_members(launch), or_system(source)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        message = "records without classes have no label to read, and their gradients are of another loss"
        raise InvalidArgument("gradients", f"{message}: leave --gradients out")
    order = np.argsort(origin.stream("inverted").words(len(labels)), kind="stable")[: checks.count(count=count)]
    local = launch.plan.one_local
    own = (local.sum_noise,) if launch.plan.noises_steps and (local.norm, local.tree) == ("l2", None) else ()
    noises: list[float | None] = [None, *sorted({*WEAK, *own})]
    clip_norm = local.clip_norm if math.isfinite(local.clip_norm) else 1.0
    with launch.model.borrow(weights):
        launch.model.module.eval()
        return measure_inversion(
            launch.model.module, inputs[order], labels[order], noises, clip_norm=clip_norm, source=origin
        )


def _measure(
    model: nn.Module,
    inputs: Rows,
    labels: Rows,
    noise: float | None,
    bound: float,
    source: RandomSource,
) -> Inversion:
    found = list(_invert_each(model, inputs, labels, noise, bound, source))
    flat = np.asarray(inputs, dtype=np.float64).reshape(len(inputs), -1)
    likeness = [_correlate(each.record, row) for each, row in zip(found, flat, strict=True)]
    hits = [each.label == int(label) for each, label in zip(found, labels, strict=True)]
    return Inversion(noise, float(np.mean(likeness)), float(np.mean(hits)), tuple(each.record for each in found))


def _invert_each(
    model: nn.Module,
    inputs: Rows,
    labels: Rows,
    noise: float | None,
    bound: float,
    source: RandomSource,
) -> Iterator[Inverted]:
    for number in range(len(inputs)):
        exact = compute_gradient(model, inputs[number : number + 1], labels[number : number + 1])
        yield invert(exact if noise is None else _release(exact, noise, bound, source))


def _release(gradient: Gradient, noise: float, bound: float, source: RandomSource) -> dict[str, Tensor]:
    """Return the gradient as a step of DP-SGD on one record releases it: clipped as a whole, with noise."""
    clipped = clip_gradients(dict(gradient), bound)
    std = checks.non_negative(noise_multiplier=noise) * bound
    return {name: value + std * torch.from_numpy(source.normal(tuple(value.shape))) for name, value in clipped.items()}


def _correlate(first: Floats, second: Floats) -> float:
    spreads = first.std() * second.std()
    return float(np.mean((first - first.mean()) * (second - second.mean())) / spreads) if spreads > 0 else 0.0


def _is_linear(name: str, gradient: Gradient) -> bool:
    return name.endswith("weight") and gradient[name].dim() == 2 and _bias_of(name) in gradient


def _bias_of(name: str) -> str:
    return name.removesuffix("weight") + "bias"
