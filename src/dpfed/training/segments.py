"""Book-keeping over the examples of several models: norms one example at a time, weighted sums model by model.

What is known of every layer is its input and the gradient of its output for all K·B examples. Whether these come from K
models or from one that all of them still are does not matter here; only the sums are per model.

>>> import torch
>>> from dpfed.training.rules.registry import LINEAR
>>> linear = torch.nn.Linear(2, 1)
>>> layer = Layer("", linear, LINEAR, {"weight": "weight", "bias": "bias"}, output=(1,))
>>> inputs, gradients = torch.ones(3, 4, 2), torch.ones(3, 4, 1)
>>> means([layer], [call(layer, inputs, gradients)], torch.ones(3, 4))["weight"].tolist()
[[[1.0, 1.0]], [[1.0, 1.0]], [[1.0, 1.0]]]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from dpfed.training.clip import TOLERANCE
from dpfed.training.gradients import REACH
from dpfed.training.rules import embedding
from dpfed.training.rules.embedding import Touched
from dpfed.training.rules.linear import Outer
from dpfed.training.rules.pieces import Call, Materialised
from dpfed.training.rules.registry import EMBEDDING, LINEAR, Rule

Stacked = dict[str, Tensor]
Piece = Outer | Touched | Materialised


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
        """Whether every example's gradient is written out."""
        return self.rule is not EMBEDDING and (self.rule is not LINEAR or len(self.output) > 1)

    @property
    def numbers(self) -> int:
        """How many numbers are held for one example: outputs, their gradients, and gradients that are written out."""
        written = sum(self.module.get_parameter(own).numel() for own in self.names) if self.is_written else 0
        return 2 * math.prod(self.output) + written


def call(layer: Layer, given: Tensor, gradient: Tensor) -> Call:
    """One layer's call over all examples of all models, (K, B, …), as the rules know it."""
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


@torch.no_grad()
def clipped_sums(layers: Sequence[Layer], calls: Sequence[Call], mask: Tensor, clip_norms: Tensor) -> Stacked:
    """Σ maskᵢ·min(1, clip/‖gᵢ‖)·gᵢ of each model, for a mask of shape (K, B) and one clip norm per model."""
    pieces = list(map(_piece, layers, calls))
    norms, longest = _norms(pieces).view(mask.shape), REACH * clip_norms.double().unsqueeze(1)
    bad = ~(norms <= longest)
    if bool(bad.any()):
        # A value that is not finite would poison the sum even with coefficient 0, so its example is emptied.
        pieces = [_piece(layer, _emptied(own, bad.flatten())) for layer, own in zip(layers, calls, strict=True)]
        norms = _norms(pieces).view(mask.shape)
    limits = clip_norms.double().unsqueeze(1) * (1 - TOLERANCE)
    coefficients = (limits / norms).clamp_(max=1.0).mul_(mask)
    return _sums(layers, pieces, coefficients.to(calls[0].pair[1].dtype))


@torch.no_grad()
def means(layers: Sequence[Layer], calls: Sequence[Call], mask: Tensor) -> Stacked:
    """Σ maskᵢ·gᵢ / Σ maskᵢ of each model; nothing is clipped."""
    coefficients = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return _sums(layers, list(map(_piece, layers, calls)), coefficients.to(calls[0].pair[1].dtype))


def _norms(pieces: list[Piece]) -> Tensor:
    return reduce(torch.hypot, [piece.norms() for piece in pieces])


def _piece(layer: Layer, call: Call) -> Piece:
    x, g = call.pair
    if layer.rule is LINEAR and g.dim() == 2:
        return Outer(x, g, call.trainable)
    if layer.rule is EMBEDDING:
        return embedding.gathered(*embedding.looked_up(call), layer.module.get_parameter("weight").shape)
    return layer.rule.direct(call)


def _sums(layers: Sequence[Layer], pieces: list[Piece], coefficients: Tensor) -> Stacked:
    """The weighted sums of all layers; pieces are let go one after the other."""
    sums: Stacked = {}
    for layer in reversed(layers):
        sums |= _summed(layer, pieces.pop(), coefficients)
    return sums


def _summed(layer: Layer, piece: Piece, coefficients: Tensor) -> Stacked:
    """The layer's weighted sums, model by model."""
    models, size = coefficients.shape
    sums: Stacked = {}
    if isinstance(piece, Touched):
        height = piece.shape[0]
        examples = piece.keys // height
        scaled = piece.values * coefficients.flatten()[examples].unsqueeze(1)
        tables = scaled.new_zeros(models * height, piece.shape[1])
        tables.index_add_(0, examples // size * height + piece.keys % height, scaled)
        return {layer.names["weight"]: tables.view(models, *piece.shape)}
    if isinstance(piece, Outer):
        scaled = piece.g.view(models, size, -1) * coefficients.unsqueeze(2)
        if "weight" in layer.names:
            sums[layer.names["weight"]] = torch.bmm(scaled.transpose(1, 2), piece.x.view(models, size, -1))
        if "bias" in layer.names:
            sums[layer.names["bias"]] = scaled.sum(1)
        return sums
    for own, rows in piece.rows.items():
        flat = torch.bmm(coefficients.unsqueeze(1), rows.values.view(models, size, -1)).squeeze(1)
        sums[layer.names[own]] = flat.view(models, *rows.shape)
    return sums


def _emptied(call: Call, bad: Tensor) -> Call:
    x, g = call.pair
    if x.is_floating_point():
        call.x = x.masked_fill(bad.view(-1, *[1] * (x.dim() - 1)), 0)
    call.gradient = g.masked_fill(bad.view(-1, *[1] * (g.dim() - 1)), 0)
    return call
