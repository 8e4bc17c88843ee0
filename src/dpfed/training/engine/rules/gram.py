"""Gram matrices over the positions of each example, for norms of gradients that are not written out.

The gradient of a matrix product is Σₜ gₜxₜᵀ over the positions t of an example. Its squared norm is
Σₛₜ (xₛ·xₜ)(gₛ·gₜ), and what rounding may take from it is a share of Σₜ‖xₜ‖‖gₜ‖; the lengths are on the diagonals.
All of it is float64.

>>> import torch
>>> x, g = torch.tensor([[[3.0], [0.0]]]), torch.tensor([[[2.0], [1.0]]])
>>> grams = Grams(multiply_rows(x.double()), multiply_rows(g.double()), has_bias=True)
>>> grams.squares().tolist(), grams.reach().tolist()      # 6² for the weight, (2 + 1)² for the bias; (3 + 1)·2 + 1·1
([45.0], [9.0])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Grams:
    """The products of an example's inputs at any two positions, and of its output gradients, (B, T, T)."""

    inputs: Tensor | None  # None where the weight does not train
    outputs: Tensor
    has_bias: bool

    def squares(self) -> Tensor:
        """Return Σₛₜ (xₛ·xₜ + 1)(gₛ·gₜ), each term for a parameter that trains."""
        if self.inputs is None:
            return self.outputs.sum(2).sum(1).clamp_(min=0)
        inputs = self.inputs + 1 if self.has_bias else self.inputs
        return (inputs * self.outputs).sum(2).sum(1).clamp_(min=0)

    def reach(self) -> Tensor:
        """Return Σₜ(‖xₜ‖ + 1)‖gₜ‖, each term for a parameter that trains; rounding may take a share of it."""
        found = _measure_rows(self.outputs)
        if self.inputs is None:
            return found.sum(1)
        lengths = _measure_rows(self.inputs)
        return found.mul_(lengths.add_(1) if self.has_bias else lengths).sum(1)


def _measure_rows(products: Tensor) -> Tensor:
    """Return the length of the vector at each position, from the diagonals."""
    return products.diagonal(dim1=1, dim2=2).sqrt()


def multiply_rows(values: Tensor) -> Tensor:
    """Return the products of the vectors at any two positions, of (B, T, ·)."""
    return torch.bmm(values, values.transpose(1, 2))


def multiply_patches(x: Tensor, outputs: Sequence[int], sizes: Sequence[Sequence[int]]) -> Tensor:
    """Return the products of what is under a kernel at any two positions, of an image (B, C, height, width).

    A product of two patches is the sum of the products of their pixels, and each of those is in many patches: they are
    computed once, and nothing is unfolded. `sizes` are those of the kernel, its stride, padding and dilation.
    """
    kernel, stride, (top, left), dilation = sizes
    pixels = x.double().flatten(2)
    products = torch.bmm(pixels.transpose(1, 2), pixels).view(len(x), *x.shape[2:], *x.shape[2:])
    padded = functional.pad(products, (left, left, top, top) * 2)
    found = x.new_zeros(len(x), *outputs, *outputs, dtype=torch.float64)
    for point in product(*map(range, kernel)):
        starts = [place * step for place, step in zip(point, dilation, strict=True)]
        places = [
            slice(start, start + (length - 1) * step + 1, step)
            for start, length, step in zip(starts, outputs, stride, strict=True)
        ]
        found += padded[:, places[0], places[1], places[0], places[1]]
    return found.view(len(x), outputs[0] * outputs[1], -1)
