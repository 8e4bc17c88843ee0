"""Any other module: vmap(grad) over the module alone, from its input and the gradient of its output.

It needs no knowledge of the module but runs its forward pass again, one example at a time under ``vmap``. What vmap
refuses (randomness, state, a result without example axis) is left to the whole-model way.

>>> import torch
>>> from torch import nn
>>> found = gradients(nn.Linear(2, 1, bias=False), ("weight",), torch.eye(2), torch.ones(2, 1))
>>> found["weight"].tolist()
[[[1.0, 0.0]], [[0.0, 1.0]]]
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed.training.rules.pieces import Call, Materialised, Method, rows_of


def methods(_: Call) -> dict[str, Method]:
    """The one way."""
    return {"leaf": direct}


def direct(call: Call) -> Materialised:
    """Gradients written out by vmap(grad) of the module, in its own precision, and given in that of the call."""
    wide = call.pair[1].dtype
    own = call.module.get_parameter(call.trainable[0]).dtype
    x, g = (value.to(own) if value.is_floating_point() else value for value in call.pair)
    version = x._version
    found = gradients(call.module, call.trainable, x, g, call.arguments[1:])
    if x._version != version:
        # What was recorded is then the input after the change, and a hook cannot tell: running it again does.
        raise RuntimeError(f"{call.path or 'the model'} changes its own input in place")
    return Materialised({name: rows_of(rows.to(wide)) for name, rows in found.items()})


def gradients(
    module: nn.Module, names: Sequence[str], x: Tensor, g: Tensor, others: tuple[object, ...] = ()
) -> dict[str, Tensor]:
    """∂⟨module(xᵢ), gᵢ⟩ for each example i and each named parameter of the module's own, through all its uses there.

    A parameter that has several names, also as a child's, comes under the first one.
    """

    def product(parameters: dict[str, Tensor], x: Tensor, g: Tensor) -> Tensor:
        out = functional_call(module, parameters, (x.unsqueeze(0), *others))
        if not isinstance(out, Tensor) or out.shape != (1, *g.shape):
            raise RuntimeError(f"one example gives {getattr(out, 'shape', type(out))}, not {(1, *g.shape)}")
        return (out.squeeze(0) * g).sum()

    once = {id(module.get_parameter(name)): name for name in reversed(names)}
    parameters = {name: module.get_parameter(name).detach() for name in names if name in once.values()}
    found: dict[str, Tensor] = vmap(grad(product), in_dims=(None, 0, 0))(parameters, x, g)
    return found
