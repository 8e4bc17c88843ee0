"""What one call of a layer contributes: per-example norms now, the weighted sum once the coefficients are known.

Book-keeping needs two things of a layer: the norm of each example's gradient, and Σ cᵢgᵢ for clip coefficients cᵢ,
which are known only when all layers' norms are. A piece holds what is needed between the two. Where gradients are
materialised, norm and sum come from the same tensor, so rounding cannot make them differ.

>>> rows = Rows(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.Size([2]))
>>> piece = Materialised({"bias": rows})
>>> piece.norms().tolist()
[5.0, 2.0]
>>> piece.sum_weighted(torch.tensor([1.0, 0.5]))["bias"].tolist()
[3.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

# A float32 norm adds up at most this many squares in float32; blocks are added in float64. In whatever order it adds
# them, each square and sum is off by at most 2⁻²⁴ of itself and all are positive, so the norm's relative error is at
# most (BLOCK + 1)/2 · 2⁻²⁴, and with the root's and the conversion's own rounding below NORM_ERROR = 3.2e-5, however
# long the gradient is. Underflow takes at most √BLOCK · 2⁻⁶³ ≈ 4e-18 of it.
BLOCK = 1024
NORM_ERROR = 3.2e-5


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module in the forward pass, and later the gradient with respect to its output."""

    path: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    x: Tensor | None
    version: int
    trainable: tuple[str, ...]
    edge: GradientEdge | None
    shape: torch.Size
    statistics: tuple[Tensor, Tensor] | None = None
    gradient: Tensor | None = None
    weights: Tensor | None = None  # of the words of a bag

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """The layer's input and the gradient with respect to its output, both with the example as first axis."""
        if self.x is None or self.gradient is None:
            raise RuntimeError(f"{self.path} has no input or no gradient")
        return self.x, self.gradient


class Piece(Protocol):
    """Per-example gradients of one call, written out or not."""

    def norms(self) -> Tensor:
        """Return ‖gᵢ‖ of every example in float64, too small by no more than the tolerance stated above."""

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ for each parameter of the module."""

    def only(self, names: Collection[str]) -> Self:
        """Return the piece with only these of its parameters."""


@runtime_checkable
class WrittenPiece(Piece, Protocol):
    """A piece that holds all numbers of the gradients, or their factors, so that norm and sum come from the same."""

    def absolute_norms(self) -> Tensor:
        """Return ‖gᵢ‖₁ of every example in float64."""


Method = Callable[[Call], Piece]


@dataclass(frozen=True, slots=True)
class Rows:
    """Per-example gradients of one parameter, flat: (B, n), or (K, B, n) in the order of a fast kernel.

    ``layout`` and ``order`` say how a flat sum becomes the parameter's shape: view, then permute.
    """

    values: Tensor
    shape: torch.Size
    layout: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None

    def sum_weighted(self, coefficients: Tensor) -> Tensor:
        """Return Σ cᵢgᵢ in the parameter's shape."""
        flat = torch.matmul(coefficients, self.values)
        if self.layout is None or self.order is None:
            return flat.reshape(self.shape)
        return flat.reshape(self.layout).permute(self.order).reshape(self.shape)

    def norms(self) -> Tensor:
        """Return ‖gᵢ‖ of every example."""
        if self.values.dim() == 2:
            return row_norms(self.values).double()
        return square_norms(self.values.flatten(0, 1)).view(self.values.shape[:2]).sum(0).sqrt_()

    def without(self, bad: Tensor) -> Rows:
        """Return the same with zeros for these examples."""
        # Not in place: rows that are all the same may be one in memory.
        return replace(self, values=self.values.masked_fill(bad.unsqueeze(1), 0))

    def absolute_norms(self) -> Tensor:
        """Return ‖gᵢ‖₁ of every example."""
        found = absolute_norms(self.values)
        return found if found.dim() == 1 else found.sum(0)


@dataclass(frozen=True, slots=True)
class Materialised:
    """Gradients that are written out, one row per example."""

    rows: Mapping[str, Rows]

    def norms(self) -> Tensor:
        """Return ‖gᵢ‖ over all parameters."""
        return reduce(torch.hypot, [rows.norms() for rows in self.rows.values()])

    def absolute_norms(self) -> Tensor:
        """Return ‖gᵢ‖₁ over all parameters."""
        return torch.stack([rows.absolute_norms() for rows in self.rows.values()]).sum(0)

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ for each parameter."""
        return {name: rows.sum_weighted(coefficients) for name, rows in self.rows.items()}

    def without(self, bad: Tensor) -> Materialised:
        """Return the same with zeros for these examples, whatever was written out for them."""
        return Materialised({name: rows.without(bad) for name, rows in self.rows.items()})

    def only(self, names: Collection[str]) -> Materialised:
        """Return the rows of these parameters only."""
        return Materialised({name: rows for name, rows in self.rows.items() if name in names})


def without(piece: Piece, bad: Tensor) -> Piece:
    """Return the piece of examples that were emptied, with zeros where it has their gradients written out.

    Zeros may still give no number: of x/‖x‖, or through the root of a parameter that is zero.
    """
    return piece.without(bad) if isinstance(piece, Materialised) else piece


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of each row of a matrix, in its own type or in float64."""
    if rows.shape[1] > BLOCK:
        return square_norms(rows).sqrt_()
    return _root(rows)


def square_norms(rows: Tensor) -> Tensor:
    """Return the squared L2 norm of each row of a matrix, in float64."""
    length = rows.shape[1]
    if length <= BLOCK:
        return row_norms(rows).double().square_()
    whole = length - length % BLOCK
    parts = _root(rows[:, :whole].reshape(len(rows), -1, BLOCK))
    total = parts.double().square_().sum(1)
    return total if whole == length else total + square_norms(rows[:, whole:])


def _root(rows: Tensor) -> Tensor:
    """Return the L2 norm along the last axis, in float64 where squares leave the range of float32.

    Such a gradient is not too long: else it would count as such where gradients are written out, and be cut elsewhere.
    """
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    if norms.dtype == torch.float64 or bool(norms.isfinite().all()):
        return norms
    return torch.where(norms.isfinite(), norms, torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64))


def absolute_norms(rows: Tensor) -> Tensor:
    """Return the L1 norm of each row, along the last axis, added up in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, ord=1, dim=-1, dtype=torch.float64)
    return norms


def rows_of(gradients: Tensor) -> Rows:
    """Return gradients of shape (B, *parameter) as rows."""
    return Rows(gradients.reshape(len(gradients), -1), gradients.shape[1:])
