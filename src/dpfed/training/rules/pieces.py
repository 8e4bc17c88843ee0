"""What a rule makes of one call of a layer: per-example norms now, the weighted sum once the clip is known.

Book-keeping needs two numbers of a layer: the norm of each example's gradient, and Σ cᵢgᵢ for clip
coefficients cᵢ that are known only when every layer has spoken. A piece holds what is needed between the two.
Where gradients are materialised, norm and sum come from the same tensor, so rounding cannot part them.

>>> rows = Rows(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.Size([2]))
>>> piece = Materialised({"bias": rows})
>>> piece.norms().tolist()
[5.0, 2.0]
>>> piece.weighted(torch.tensor([1.0, 0.5]))["bias"].tolist()
[3.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
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
        """‖gᵢ‖ of every example in float64, never too small beyond the stated tolerance."""

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Σ cᵢgᵢ for each parameter of the module."""

    def only(self, names: Collection[str]) -> Self:
        """The same for these of its parameters."""


@runtime_checkable
class Written(Piece, Protocol):
    """A piece that has every number of the gradients, or their factors, so that norm and sum are of the same ones."""

    def absolute_norms(self) -> Tensor:
        """‖gᵢ‖₁ of every example in float64."""


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

    def weighted(self, coefficients: Tensor) -> Tensor:
        """Σ cᵢgᵢ in the parameter's shape."""
        flat = torch.matmul(coefficients, self.values)
        if self.layout is None or self.order is None:
            return flat.reshape(self.shape)
        return flat.reshape(self.layout).permute(self.order).reshape(self.shape)

    def norms(self) -> Tensor:
        """‖gᵢ‖ of every example."""
        if self.values.dim() == 2:
            return lengths(self.values).double()
        return square_norms(self.values.flatten(0, 1)).view(self.values.shape[:2]).sum(0).sqrt_()

    def absolute_norms(self) -> Tensor:
        """‖gᵢ‖₁ of every example."""
        found = absolute_norms(self.values)
        return found if found.dim() == 1 else found.sum(0)


@dataclass(frozen=True, slots=True)
class Materialised:
    """Gradients that are written out, one row per example."""

    rows: Mapping[str, Rows]

    def norms(self) -> Tensor:
        """‖gᵢ‖ over all parameters."""
        return reduce(torch.hypot, [rows.norms() for rows in self.rows.values()])

    def absolute_norms(self) -> Tensor:
        """‖gᵢ‖₁ over all parameters."""
        return torch.stack([rows.absolute_norms() for rows in self.rows.values()]).sum(0)

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Σ cᵢgᵢ for each parameter."""
        return {name: rows.weighted(coefficients) for name, rows in self.rows.items()}

    def only(self, names: Collection[str]) -> Materialised:
        """The rows of these parameters."""
        return Materialised({name: rows for name, rows in self.rows.items() if name in names})


def lengths(rows: Tensor) -> Tensor:
    """The L2 norm of each row of a matrix, of its type or in float64."""
    if rows.shape[1] > BLOCK:
        return square_norms(rows).sqrt_()
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms


def square_norms(rows: Tensor) -> Tensor:
    """The squared L2 norm of each row of a matrix, in float64."""
    length = rows.shape[1]
    if length <= BLOCK:
        return lengths(rows).double().square_()
    whole = length - length % BLOCK
    parts: Tensor = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), -1, BLOCK), dim=2)
    total = parts.double().square_().sum(1)
    return total if whole == length else total + square_norms(rows[:, whole:])


def absolute_norms(rows: Tensor) -> Tensor:
    """The L1 norm of each row, along the last axis, added up in float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, ord=1, dim=-1, dtype=torch.float64)
    return norms


def rows_of(gradients: Tensor) -> Rows:
    """Gradients of shape (B, *parameter) as rows."""
    return Rows(gradients.reshape(len(gradients), -1), gradients.shape[1:])
