"""Linear layers: the gradient of one example is Σₜ gₜ xₜᵀ over its positions.

Without positions it has rank one, so norm² = (‖x‖² + 1)·‖g‖² (the 1 is the bias) and the clipped sum is one
matrix product: clipping is almost free. With positions (T, d) the gradients are written out by one batched
product, or, where that is dearer, the norm comes from two T×T Gram matrices.

>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> outer = Outer(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]]), ("weight", "bias"))
>>> [round(square, 4) for square in outer.square_norms().tolist()]
[104.0]
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpfed.training.rules.pieces import Call, Materialised, Method, Piece, Rows, absolute_norms, lengths

# Gradients that would take more memory than this are not written out where there is another way.
DIRECT_BYTES = 2**28
# Room for the rounding of a sum that is computed apart from its norm, in units of the dtype's ε · Σₜ‖xₜ‖‖gₜ‖.
ROUNDING = 8.0
# What underflow can hide of a float32 norm of 1024 squares; an output gradient may multiply it by any number.
UNDERFLOW = torch.tensor(4e-18)
ONE = torch.tensor(1.0)


@dataclass(frozen=True, slots=True)
class Outer:
    """One position per example: gradients of rank one, never written out."""

    x: Tensor
    g: Tensor
    names: tuple[str, ...]

    def square_norms(self) -> Tensor:
        """‖gᵢ‖²·(‖xᵢ‖² + 1), each term for a parameter that trains; ‖gᵢ‖ in float64, so only ‖xᵢ‖ has an error."""
        norms: Tensor = torch.linalg.vector_norm(self.g, dim=1, dtype=torch.float64)
        if "weight" in self.names:
            floor = ONE if "bias" in self.names else UNDERFLOW
            norms = norms.mul_(torch.hypot(lengths(self.x), floor))
        return norms.square_()

    def absolute_norms(self) -> Tensor:
        """‖gᵢ‖₁·(‖xᵢ‖₁ + 1), each term for a parameter that trains."""
        norms = absolute_norms(self.g)
        if "weight" not in self.names:
            return norms
        return norms.mul_(absolute_norms(self.x).add_(1.0 if "bias" in self.names else 0.0))

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """One matrix product for the weight, one for the bias."""
        sums = {}
        if "weight" in self.names:
            sums["weight"] = torch.mm((self.g * coefficients.unsqueeze(1)).t(), self.x)
        if "bias" in self.names:
            sums["bias"] = torch.mv(self.g.t(), coefficients)
        return sums

    def only(self, names: Collection[str]) -> Outer:
        """The same for the weight or the bias alone."""
        return replace(self, names=tuple(names))


@dataclass(frozen=True, slots=True)
class Ghost:
    """Positions (B, T, ·): norms from Gram matrices, the sum from one product; nothing is written out.

    The sum is computed apart from the norm, in the layer's own precision, so its rounding (which grows with
    Σₜ‖xₜ‖‖gₜ‖, not with the norm, when positions cancel) is added to the norm.
    """

    x: Tensor
    g: Tensor
    names: tuple[str, ...]
    shape: torch.Size

    def square_norms(self) -> Tensor:
        """The squared norms in float64, with room for the rounding of the sum."""
        return self.squares().sqrt_().add_(self.room()).square_()

    def squares(self) -> Tensor:
        """Σₛₜ (xₛ·xₜ + 1)(gₛ·gₜ) in float64."""
        x, g = self.x.double(), self.g.double()
        inputs = torch.bmm(x, x.transpose(1, 2)) if "weight" in self.names else x.new_zeros(())
        if "bias" in self.names:
            inputs = inputs + 1
        outputs = torch.bmm(g, g.transpose(1, 2))
        return (inputs * outputs).flatten(1).sum(1).clamp_(min=0)

    def room(self) -> Tensor:
        """How far the sum, in the layer's own precision, may be from the gradient whose norm is known."""
        lengths = self.x.norm(dim=2) if "weight" in self.names else self.x.new_zeros(self.x.shape[:2])
        if "bias" in self.names:
            lengths = lengths + 1
        total: Tensor = (lengths * self.g.norm(dim=2)).double().sum(1)
        return total.mul_(ROUNDING * torch.finfo(self.g.dtype).eps)

    def weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """One matrix product over all positions of all examples."""
        scaled = (self.g * coefficients.view(-1, 1, 1)).flatten(0, 1)
        sums = {}
        if "weight" in self.names:
            sums["weight"] = (scaled.t() @ self.x.flatten(0, 1)).reshape(self.shape)
        if "bias" in self.names:
            sums["bias"] = scaled.sum(0)
        return sums

    def only(self, names: Collection[str]) -> Ghost:
        """The same for the weight or the bias alone."""
        return replace(self, names=tuple(names))


def methods(call: Call) -> dict[str, Method]:
    """The ways to handle this call."""
    x, g = call.pair
    if g.dim() == 2:
        return {"outer": outer}
    if g.shape[0] * x.shape[-1] * g.shape[-1] * g.element_size() > DIRECT_BYTES:
        return {"ghost": ghost}
    return {"direct": direct, "ghost": ghost}


def outer(call: Call) -> Piece:
    """Gradients of rank one."""
    x, g = call.pair
    return Outer(x, g, call.trainable)


def ghost(call: Call) -> Piece:
    """Norms without gradients."""
    x, g = positions(call)
    return Ghost(x, g, call.trainable, torch.Size((g.shape[2], x.shape[2])))


def direct(call: Call) -> Materialised:
    """Gradients written out."""
    x, g = positions(call)
    rows = {}
    if "weight" in call.trainable:
        gradients = torch.bmm(g.transpose(1, 2), x)
        rows["weight"] = Rows(gradients.flatten(1), gradients.shape[1:])
    if "bias" in call.trainable:
        rows["bias"] = Rows(g.sum(1), g.shape[2:])
    return Materialised(rows)


def positions(call: Call) -> tuple[Tensor, Tensor]:
    """Input and output gradient as (B, T, features)."""
    x, g = call.pair
    size = g.shape[0]
    return x.reshape(size, -1, x.shape[-1]), g.reshape(size, -1, g.shape[-1])


KINDS: tuple[type[nn.Module], ...] = (nn.Linear,)
