"""Linear layers: the gradient of one example is Σₜ gₜ xₜᵀ over its positions.

Without positions it has rank one, so norm = √(‖x‖² + 1)·‖g‖ (the 1 is the bias) and the clipped sum is one
matrix product: clipping is almost free. With positions (T, d) the gradients are written out by one batched
product, or, where that is dearer, the norm comes from two T×T Gram matrices.

>>> import torch
>>> layer = torch.nn.Linear(2, 1)
>>> outer = OuterProduct(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]]), ("weight", "bias"))
>>> [round(norm, 4) for norm in outer.norms().tolist()]
[10.198]
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpfed.training.engine.rules.contributions import Call, Materialised, Method, Piece, Rows, absolute_norms, row_norms
from dpfed.training.engine.rules.gram import Grams, multiply_rows

# Gradients that would take more memory than this are not written out where there is another way.
LARGE = 2**20  # weights of which the gradients of single examples, written out, would fill memory
# Where positions cancel, a norm from Gram matrices is off by a share of Σₜ‖xₜ‖‖gₜ‖ and not of itself. In float64, with
# k roundings one after the other, the share is at most √(k·2⁻⁵³); k = 8000 makes this one, which is always added.
ROUNDING = 8 * 2.0**-23
# What underflow can hide of a float32 norm, for each number of which the squares are added, where processors take what
# is below 2⁻¹²⁶ for zero; an output gradient may multiply it by any number.
UNDERFLOW = 1.25e-19
# Output gradients are scaled to 2⁻⁶⁰ of a clip norm or more, by taking powers of two from inputs that are larger: below
# 2⁻¹²⁶ a number is rounded to as much as twice itself, and the input may be as large as 2¹²⁸.
MOST_BITS = 60
ONE = torch.tensor(1.0)


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """Gradients of rank one, for one position per example; never written out."""

    x: Tensor
    g: Tensor
    names: tuple[str, ...]

    def norms(self) -> Tensor:
        """Return ‖gᵢ‖·√(‖xᵢ‖² + 1), each term for a parameter that trains.

        ‖gᵢ‖ is in float64, so only ‖xᵢ‖ has an error.
        """
        found: Tensor = torch.linalg.vector_norm(self.g, dim=1, dtype=torch.float64)
        if "weight" not in self.names:
            return found
        hidden = torch.tensor(UNDERFLOW * math.sqrt(self.x.shape[1]))
        return found.mul_(torch.hypot(row_norms(self.x), ONE if "bias" in self.names else hidden))

    def absolute_norms(self) -> Tensor:
        """Return ‖gᵢ‖₁·(‖xᵢ‖₁ + 1), each term for a parameter that trains."""
        found = absolute_norms(self.g)
        if "weight" not in self.names:
            return found
        return found.mul_(absolute_norms(self.x).add_(1.0 if "bias" in self.names else 0.0))

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ: one matrix product for the weight, a sum for the bias."""
        scaled = self.g * coefficients.unsqueeze(1)
        sums = {}
        if "weight" in self.names:
            x, g = balance(self.x, self.g)
            sums["weight"] = torch.mm((scaled if g is self.g else g * coefficients.unsqueeze(1)).t(), x)
        if "bias" in self.names:
            sums["bias"] = scaled.sum(0)
        return sums

    def only(self, names: Collection[str]) -> OuterProduct:
        """Return the same for the weight or the bias alone."""
        return replace(self, names=tuple(names))


@dataclass(frozen=True, slots=True)
class Ghost:
    """Gradients over positions (B, T, ·), never written out: norms from Gram matrices, the sum from one product.

    The sum is computed apart from the norm, and both are off by shares of Σₜ‖xₜ‖‖gₜ‖, which one record can make as much
    longer than its gradient as it likes: its positions only have to cancel. So both are float64 and the norm has
    ``room`` for them, and a layer in float64, for which that room would be too coarse, is not served like this.
    """

    x: Tensor
    g: Tensor
    names: tuple[str, ...]
    shape: torch.Size

    def norms(self) -> Tensor:
        """Return the norms in float64, with room for all rounding."""
        grams = self.grams()
        return grams.squares().sqrt_().add_(grams.reach().mul_(self.share))

    def grams(self) -> Grams:
        """Return the Gram matrices of inputs and output gradients."""
        inputs = multiply_rows(self.x.double()) if "weight" in self.names else None
        return Grams(inputs, multiply_rows(self.g.double()), "bias" in self.names)

    @property
    def share(self) -> float:
        """The share of Σₜ‖xₜ‖‖gₜ‖ by which rounding may move norm and sum from those of the gradient."""
        (positions, inputs), outputs = self.x.shape[1:], self.g.shape[2]
        return rounding_share(inputs + outputs + 2 * positions)

    def sum_weighted(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ by one matrix product over all positions of all examples."""
        return {name: value.to(self.g.dtype) for name, value in self.sum_in_float64(coefficients).items()}

    def sum_in_float64(self, coefficients: Tensor) -> dict[str, Tensor]:
        """Return Σ cᵢgᵢ in float64."""
        scaled = (self.g.double() * coefficients.double().view(-1, 1, 1)).flatten(0, 1)
        sums = {}
        if "weight" in self.names:
            sums["weight"] = (scaled.t() @ self.x.double().flatten(0, 1)).reshape(self.shape)
        if "bias" in self.names:
            sums["bias"] = scaled.sum(0)
        return sums

    def only(self, names: Collection[str]) -> Ghost:
        """Return the same for the weight or the bias alone."""
        return replace(self, names=tuple(names))


def balance(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and output gradients with the same products: powers of two are taken from inputs above 2⁶⁰."""
    # No number is larger than the length of all, which takes a twentieth of the time of their maximum. Half: rounding.
    if not float(torch.linalg.vector_norm(x)) > 2.0 ** (MOST_BITS - 1):
        return x, g
    _, bits = torch.frexp(x.flatten(1).abs().amax(1))
    powers = torch.exp2((bits - MOST_BITS).clamp_(min=0).to(x.dtype))
    return x / powers.view(-1, *[1] * (x.dim() - 1)), g * powers.view(-1, *[1] * (g.dim() - 1))


def measure_vectors(values: Tensor) -> Tensor:
    """Return the lengths of vectors along the last axis in float64."""
    lengths: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
    return lengths


def rounding_share(roundings: int) -> float:
    """Return the share of Σₜ‖xₜ‖‖gₜ‖ by which a norm from Gram matrices may be off."""
    return max(ROUNDING, math.sqrt((roundings + 8) * 2.0**-53))


def can_be_ghost(g: Tensor) -> bool:
    """Return whether norms from Gram matrices are precise enough."""
    return g.dtype == torch.float32


def methods(call: Call) -> dict[str, Method]:
    """Return the methods for this call, by name."""
    _, g = call.pair
    if g.dim() == 2:
        return {"outer": outer}
    if not can_be_ghost(g):
        return {"direct": direct}
    return {"direct": direct, "ghost": ghost}


def hides(call: Call) -> bool:
    """Return whether a layer is so large, for its positions, that its gradients are not written out."""
    if call.x is None or call.x.dim() < 3 or not can_be_ghost(call.x):
        return False
    weights = call.x.shape[-1] * call.shape[-1]
    return max(LARGE, 2 * call.x.shape[1:-1].numel() ** 2) < weights


def outer(call: Call) -> Piece:
    """Return the gradients as products of rank one."""
    x, g = call.pair
    return OuterProduct(x, g, call.trainable)


def ghost(call: Call) -> Piece:
    """Return the gradients over positions without writing them out."""
    x, g = flatten_positions(call)
    return Ghost(x, g, call.trainable, torch.Size((g.shape[2], x.shape[2])))


def direct(call: Call) -> Materialised:
    """Write out the gradients."""
    x, g = flatten_positions(call)
    rows = {}
    if "weight" in call.trainable:
        gradients = torch.bmm(g.transpose(1, 2), x)
        rows["weight"] = Rows(gradients.flatten(1), gradients.shape[1:])
    if "bias" in call.trainable:
        rows["bias"] = Rows(g.sum(1), g.shape[2:])
    return Materialised(rows)


def flatten_positions(call: Call) -> tuple[Tensor, Tensor]:
    """Return input and output gradient as (B, T, features)."""
    x, g = call.pair
    size = g.shape[0]
    return x.reshape(size, -1, x.shape[-1]), g.reshape(size, -1, g.shape[-1])


KINDS: tuple[type[nn.Module], ...] = (nn.Linear,)
