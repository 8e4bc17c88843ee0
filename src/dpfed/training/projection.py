"""Layers that a twin (`twins`) runs the weights of another module through, so that the engine's hooks see each use.

torch's recurrent layers and its attention hold the weights of several matrix products and use them as functions, where
no hook sees them. A twin has one of these for each product. They stand outside of the model; at every call they are
given the parameters that its owner has now.

>>> import torch
>>> from torch import nn
>>> owner = nn.Linear(2, 3)
>>> product = Projection()
>>> tied(product, owner.weight, owner.bias), product(torch.ones(1, 2)).shape
(True, torch.Size([1, 3]))
"""

from __future__ import annotations

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
        """Return the sizes."""
        return f"{tuple(self.weight.shape)}"


class Used(Function):
    """A product whose result is known, as a function of its weights; the input's gradient is somebody else's."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, x: Tensor, *_: Tensor | None) -> Tensor:
        """Return the result, as a function of what comes behind the input: the weight and the bias."""
        ctx.save_for_backward(x)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the weight and the bias; book-keeping never asks for them."""
        (x,) = ctx.saved_tensors
        flat = gradients[0].reshape(-1, gradients[0].shape[-1])
        weight = flat.t() @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[2] else None
        return None, None, weight, flat.sum(0) if ctx.needs_input_grad[3] else None


class Known(Projection):
    """A projection of which the result is known already, as it came out of the steps of a recurrent layer.

    What is given as the result is not read by anybody: it has the shape, and stands for the edge in autograd's graph.
    """

    def forward(self, input: Tensor, result: Tensor | None = None) -> Tensor:
        """Return the result, as a function of weight and bias."""
        if result is None:
            raise TypeError("a product that is known needs its result")
        found: Tensor = Used.apply(result, input.detach(), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return found


def tied(product: Projection, weight: Tensor | None, bias: Tensor | None = None) -> bool:
    """Give a product the parameters that it uses from now on; return whether there is a weight at all."""
    product._parameters["weight"] = weight  # type: ignore[assignment]
    product._parameters["bias"] = bias  # type: ignore[assignment]
    return isinstance(weight, Tensor)
