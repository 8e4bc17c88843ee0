"""Any module without a rule of its own, and bare parameters of a module with children: vmap(grad) of the module alone.

It takes the module's input and the gradient of its output, needs no knowledge of the module, and runs its forward pass
again, one example at a time under ``vmap``. What vmap refuses (randomness, state, a result without an axis of examples)
runs through the whole model (`slow`).

Of a module with children only its own parameters are differentiated (a class token, a layer scale); those of its
children are constants here: each child has its rule. The price is the owner's forward pass once more, so a scale that
is used often belongs in a small module of its own.

>>> import torch
>>> from torch import nn
>>> found = differentiate(nn.Linear(2, 1, bias=False), ("weight",), torch.eye(2), torch.ones(2, 1))
>>> found["weight"].tolist()
[[[1.0, 0.0]], [[0.0, 1.0]]]
>>> owns_bare_parameters(nn.TransformerEncoderLayer(2, 1)), owns_bare_parameters(nn.MultiheadAttention(2, 1))
(False, True)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed.training.engine.rules.contributions import Call, Materialised, Method, rows_of


def owns_bare_parameters(module: nn.Module) -> bool:
    """Return whether the module has parameters of its own beside children."""
    has_children = next(module.children(), None) is not None
    return has_children and any(True for _ in module.parameters(recurse=False))


def methods(_: Call) -> dict[str, Method]:
    """Return the only method for a module without children."""
    return {"leaf": direct}


def owner_methods(_: Call) -> dict[str, Method]:
    """Return the only method for bare parameters of a module with children."""
    return {"parameter": direct}


def direct(call: Call) -> Materialised:
    """Write out the gradients by vmap(grad) of the module, in its own precision, and convert them to the call's."""
    wide = call.pair[1].dtype
    own = call.module.get_parameter(call.trainable[0]).dtype
    x, g = (value.to(own) if value.is_floating_point() else value for value in call.pair)
    version = x._version
    found = differentiate(call.module, call.trainable, x, g, call.arguments[1:])
    if x._version != version:
        # What was recorded is then the input after the change; a hook cannot see that, running it again can.
        raise RuntimeError(f"{call.path or 'the model'} changes its own input in place")
    return Materialised({name: rows_of(rows.to(wide)) for name, rows in found.items()})


def differentiate(
    module: nn.Module, names: Sequence[str], x: Tensor, g: Tensor, others: tuple[object, ...] = ()
) -> dict[str, Tensor]:
    """Return ∂⟨module(xᵢ), gᵢ⟩ for each example i and each of the module's own named parameters.

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
