"""Norms of single examples of several models, and weighted sums of their gradients, model by model.

Given are every layer's input and output gradient for all K·B examples. Whether these come from K models or from one
that all still equal does not matter here; only the sums are per model.

>>> import torch
>>> from dpfed.training.engine.rules.registry import LINEAR
>>> linear = torch.nn.Linear(2, 1)
>>> layer = Layer("", linear, LINEAR, {"weight": "weight", "bias": "bias"}, output=(1,))
>>> inputs, gradients = torch.ones(3, 4, 2), torch.ones(3, 4, 1)
>>> average([layer], [make_call(layer, inputs, gradients)], torch.ones(3, 4))["weight"].tolist()
[[[1.0, 1.0]], [[1.0, 1.0]], [[1.0, 1.0]]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.engine.gradients import REACH
from dpfed.training.engine.rules import embedding
from dpfed.training.engine.rules.contributions import Call, Materialised
from dpfed.training.engine.rules.embedding import TouchedRows
from dpfed.training.engine.rules.linear import OuterProduct, balance
from dpfed.training.engine.rules.registry import EMBEDDING, LINEAR, Rule

Stacked = dict[str, Tensor]
Contribution = OuterProduct | TouchedRows | Materialised


@dataclass(frozen=True)
class Layer:
    """A layer with parameters of its own: its rule, their names in the model, and the shape of one output."""

    path: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]
    output: tuple[int, ...]

    @property
    def is_written(self) -> bool:
        """Whether the gradient of every example is held in memory."""
        return self.rule is not EMBEDDING and (self.rule is not LINEAR or len(self.output) > 1)

    @property
    def numbers(self) -> int:
        """The count of numbers held for one example: outputs, their gradients, and gradients that are written out."""
        written = sum(self.module.get_parameter(own).numel() for own in self.names) if self.is_written else 0
        return 2 * math.prod(self.output) + written


def make_call(layer: Layer, given: Tensor, gradient: Tensor) -> Call:
    """Return one layer's call over all examples of all models, (K, B, …), in the form that rules take."""
    return Call(
        path=layer.path,
        module=layer.module,
        arguments=(),
        keywords={},
        x=given.detach().flatten(0, 1),
        version=0,
        trainable=tuple(layer.names),
        edge=None,
        shape=torch.Size((gradient.shape[0] * gradient.shape[1], *layer.output)),
        gradient=gradient.flatten(0, 1),
    )


def fill_masked(mask: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """Return examples (K, B, …) with the first that is not masked in place of all that are, if there is one."""
    first, gone = mask.nonzero()[:1].tolist(), mask == 0
    if not first:
        return parts
    model, place = first[0]
    return tuple(part.where(~gone.view(*gone.shape, *[1] * (part.dim() - 2)), part[model, place]) for part in parts)


@torch.no_grad()
def sum_clipped(layers: Sequence[Layer], calls: Sequence[Call], mask: Tensor, clip_norms: Tensor) -> Stacked:
    """Return Σ maskᵢ·min(1, clip/‖gᵢ‖)·gᵢ of each model, for a mask (K, B) and one clip norm per model."""
    pieces = list(map(_contribute, layers, calls))
    norms, longest = _compute_norms(pieces).view(mask.shape), REACH * clip_norms.double().unsqueeze(1)
    bad = ~(norms <= longest)
    if bool(bad.any()):
        # A value that is not finite would make the sum NaN even with coefficient 0, so its example becomes zero.
        gone = bad.flatten()
        emptied = [_contribute(layer, _empty(own, gone)) for layer, own in zip(layers, calls, strict=True)]
        pieces = [each.without(gone) if isinstance(each, Materialised) else each for each in emptied]
        norms = _compute_norms(pieces).view(mask.shape)
    limits = clip_norms.double().unsqueeze(1) * (1 - TOLERANCE)
    coefficients = (limits / norms).clamp_(max=1.0).mul_(mask)
    return _sum_layers(layers, pieces, coefficients.to(calls[0].pair[1].dtype))


@torch.no_grad()
def average(layers: Sequence[Layer], calls: Sequence[Call], mask: Tensor) -> Stacked:
    """Return Σ maskᵢ·gᵢ / Σ maskᵢ of each model, unclipped."""
    coefficients = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return _sum_layers(layers, list(map(_contribute, layers, calls)), coefficients.to(calls[0].pair[1].dtype))


def _compute_norms(pieces: list[Contribution]) -> Tensor:
    return reduce(torch.hypot, [piece.norms() for piece in pieces])


def _contribute(layer: Layer, call: Call) -> Contribution:
    x, g = call.pair
    if layer.rule is LINEAR and g.dim() == 2:
        return OuterProduct(x, g, call.trainable)
    if layer.rule is EMBEDDING:
        return embedding.sum_by_row(*embedding.find_lookups(call), layer.module.get_parameter("weight").shape)
    return layer.rule.direct(call)


def _sum_layers(layers: Sequence[Layer], pieces: list[Contribution], coefficients: Tensor) -> Stacked:
    """Return the weighted sums of all layers; each layer's contribution is freed when it is summed."""
    sums: Stacked = {}
    for layer in reversed(layers):
        sums |= _sum_layer(layer, pieces.pop(), coefficients)
    return sums


def _sum_layer(layer: Layer, piece: Contribution, coefficients: Tensor) -> Stacked:
    """Return the layer's weighted sums, model by model."""
    models, size = coefficients.shape
    sums: Stacked = {}
    if isinstance(piece, TouchedRows):
        height = piece.shape[0]
        examples = piece.keys // height
        scaled = piece.values * coefficients.flatten()[examples].unsqueeze(1)
        tables = scaled.new_zeros(models * height, piece.shape[1])
        tables.index_add_(0, examples // size * height + piece.keys % height, scaled)
        return {layer.names["weight"]: tables.view(models, *piece.shape)}
    if isinstance(piece, OuterProduct):
        x, g = balance(piece.x, piece.g)
        scaled = g.view(models, size, -1) * coefficients.unsqueeze(2)
        if "weight" in layer.names:
            sums[layer.names["weight"]] = torch.bmm(scaled.transpose(1, 2), x.view(models, size, -1))
        if "bias" in layer.names:
            plain = scaled if g is piece.g else piece.g.view(models, size, -1) * coefficients.unsqueeze(2)
            sums[layer.names["bias"]] = plain.sum(1)
        return sums
    for own, rows in piece.rows.items():
        flat = torch.bmm(coefficients.unsqueeze(1), rows.values.view(models, size, -1)).squeeze(1)
        sums[layer.names[own]] = flat.view(models, *rows.shape)
    return sums


def _empty(call: Call, bad: Tensor) -> Call:
    x, g = call.pair
    if x.is_floating_point():
        call.x = x.masked_fill(bad.view(-1, *[1] * (x.dim() - 1)), 0)
    call.gradient = g.masked_fill(bad.view(-1, *[1] * (g.dim() - 1)), 0)
    return call
