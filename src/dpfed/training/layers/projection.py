"""Layers that a twin (`twins`) runs the weights of another module through, so that the engine's hooks see each use.

torch's recurrent layers and its attention hold the weights of several matrix products and use them as functions, where
no hook sees them. A twin has one of these for each product. They stand outside of the model; at every call they are
given the parameters that its owner has now.

>>> import torch
>>> from torch import nn
>>> owner = nn.Linear(2, 3)
>>> product = Projection()
>>> tie(product, owner.weight, owner.bias), product(torch.ones(1, 2)).shape
(True, torch.Size([1, 3]))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable


class Projection(nn.Linear):
    """A Linear with the weight and the bias of another module."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def extra_repr(self) -> str:
        """Return the shape of the weight, for ``repr``."""
        return f"{tuple(self.weight.shape)}"


class KnownResult(Function):
    """A matrix product with a known result, as a function of its weights only: it gives the input no gradient."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, x: Tensor, *_: Tensor | None) -> Tensor:
        """Return the result, as a function of the arguments after the input: the weight and the bias."""
        ctx.save_for_backward(x)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the weight and the bias, for plain autograd; the engine never asks for them."""
        (x,) = ctx.saved_tensors
        flat = gradients[0].reshape(-1, gradients[0].shape[-1])
        weight = flat.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[2] else None
        return None, None, weight, flat.sum(0) if ctx.needs_input_grad[3] else None


class KnownProjection(Projection):
    """A projection with a known result, which the steps of a recurrent layer have computed.

    The values of the result are never read: it gives the shape, and an edge in autograd's graph.
    """

    def forward(self, input: Tensor, result: Tensor | None = None) -> Tensor:
        """Return the result, as a function of weight and bias."""
        if result is None:
            raise TypeError("KnownProjection computes nothing itself: give the result")
        found: Tensor = KnownResult.apply(result, input.detach(), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def tie(product: Projection, weight: Tensor | None, bias: Tensor | None = None) -> bool:
    """Give a product the parameters that it uses from now on; return whether there is a weight."""
    product._parameters["weight"] = weight  # type: ignore[assignment]
    product._parameters["bias"] = bias  # type: ignore[assignment]
    return isinstance(weight, Tensor)


def tie_recurrent(products: Mapping[str, Projection], owner: nn.Module) -> bool:
    """Give each product the weight and the bias of its name in a recurrent layer; return whether all have a weight."""
    own = owner._parameters
    return all(tie(product, own.get(f"weight_{name}"), own.get(f"bias_{name}")) for name, product in products.items())


def needs_gradient(products: Mapping[str, Projection], *given: Tensor | None) -> bool:
    """Return whether a parameter or an input needs a gradient: for a frozen layer torch's own pass is faster."""
    own = (value for product in products.values() for value in product._parameters.values())
    return any(value is not None and value.requires_grad for value in (*own, *given))
