"""The last part of a clipped sum: coefficients from the norms, weighted sums, zeros for examples that are not finite.

>>> import torch
>>> compute_coefficients(torch.tensor([0.5, 4.0, torch.inf]), limit=1.0).tolist()
[1.0, 0.25, 0.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import Clip, Named
from dpfed.training.engine.forward import anomaly_mode_off
from dpfed.training.engine.rules.contributions import Call

Sums = dict[str, Tensor]


class RecordFails(Exception):
    """The backward pass fails for a reason in an example."""


def differentiate(calls: list[Call], losses: Tensor, dtype: torch.dtype) -> None:
    """Set the output gradient of every call, all by one backward pass."""
    edges = [call.edge for call in calls if call.edge is not None]
    # Of the sum: for weights given as a tensor torch imports sympy, which takes a quarter of its own start.
    with anomaly_mode_off():
        found: Sequence[Tensor | None] = torch.autograd.grad(losses.sum(), edges, allow_unused=True)
    for call, gradient in zip(calls, found, strict=True):
        if gradient is None:
            gradient = losses.new_zeros(call.shape, dtype=dtype)
        call.gradient = gradient if gradient.shape == call.shape else gradient.reshape(call.shape)
        x = call.x
        if gradient.dtype != dtype or (x is not None and x.dtype != dtype and x.is_floating_point()):
            message = f"{call.path or 'the model'} ran in {gradient.dtype} with {dtype} parameters"
            raise InvalidArgument("model", f"{message}, and norms need the precision: train without autocast")


def widen(call: Call) -> Call:
    """Return the call in float64."""
    x, g = call.pair
    statistics = None if call.statistics is None else (call.statistics[0].double(), call.statistics[1].double())
    weights = None if call.weights is None else call.weights.double()
    x = x.double() if x.is_floating_point() else x
    return replace(call, x=x, gradient=g.double(), statistics=statistics, weights=weights)


def make_dense(parameter: Tensor, row: Tensor | None) -> Tensor:
    """Return one example's gradient as a dense tensor; zeros if the loss does not depend on the parameter."""
    if row is None:
        return torch.zeros_like(parameter)
    return row.to_dense() if row.is_sparse else row


def sum_clipped(
    clip: Clip,
    groups: list[list[Named]],
    lengths: Sequence[Tensor],
    parameters: Mapping[str, nn.Parameter],
    dtype: torch.dtype,
    mask: Tensor | None = None,
) -> Sums:
    """Return Σ cᵢgᵢ under the parameters' full names, each group of pieces with coefficients from its own lengths.

    A parameter that no loss depends on has zeros. Pieces are let go one after the other.
    """
    limit = clip.limit(len(groups))
    coefficients = [compute_coefficients(own, limit, mask).to(dtype) for own in lengths]
    sums: dict[str, Tensor] = {}
    for pieces, weights in zip(groups, coefficients, strict=True):
        while pieces:
            piece, names = pieces.pop()
            sums |= {names[own]: value for own, value in piece.sum_weighted(weights).items()}
    return {
        name: sums[name] if name in sums else torch.zeros_like(own, dtype=dtype) for name, own in parameters.items()
    }


def compute_coefficients(lengths: Tensor, limit: float, mask: Tensor | None = None) -> Tensor:
    """Return min(1, limit/length) for every example, 0 for one that is masked."""
    found = lengths.reciprocal().mul_(limit).clamp_(max=1.0)
    return found if mask is None else found.mul_(mask)


def zero_call(call: Call, bad: Tensor) -> Call:
    """Return the call with zeros for bad examples: a value that is not finite spoils a sum even with coefficient 0."""
    x, g = call.pair
    x = zero_rows(x, bad) if x.is_floating_point() else x
    weights = None if call.weights is None else zero_rows(call.weights, bad)
    return replace(call, x=x, gradient=zero_rows(g, bad), statistics=None, weights=weights)


def zero_rows(values: Tensor, bad: Tensor) -> Tensor:
    """Return the values with zeros in the rows of bad examples."""
    return values.masked_fill(bad.view(-1, *[1] * (values.dim() - 1)), 0)


def require_mask(weights: Tensor | None, losses: Tensor) -> Tensor | None:
    """Return the weights of the losses in float64; refuse any but 0 and 1, by which a clipped sum could grow."""
    if weights is None:
        return None
    if weights.shape != losses.shape or not bool(((weights == 0) | (weights == 1)).all()):
        message = f"weights must be 0 or 1 for each of the {len(losses)} examples, got {tuple(weights.shape)} values"
        raise InvalidArgument(
            "weights", f"{message}; another weight would undo the clipping: give a mask of zeros and ones"
        )
    return weights.to(torch.float64)
