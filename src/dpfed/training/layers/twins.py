"""Fast forms of torch's own layers, put in their place while a model is trained privately, and taken away afterwards.

nn.RNN, nn.LSTM, nn.GRU, their cells and nn.MultiheadAttention use several weights inside of one function, where no hook
sees them: gradients of single examples would take one backward pass each. A twin computes the same by products that
hooks see. It stands outside of the model and has no parameters of its own: it uses those that its owner has at each
call. Only the owner's ``forward`` is another one, and only where there are gradients: modules, names, types and
state_dict of the model stay as they are, and so does whatever runs under ``torch.no_grad()``.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 3, batch_first=True))
>>> found = install(model)
>>> [path for path, _ in found["1"].products("1")], type(model[1]).__name__, list(model.state_dict())[1]
(['1.ih_l0', '1.hh_l0'], 'LSTM', '1.weight_ih_l0')
>>> found["1"].leave()
>>> "forward" in model[1].__dict__
False
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from dpfed.training.layers.attention import AttentionTwin
from dpfed.training.layers.recurrent import RecurrentTwin
from dpfed.training.layers.stepwise import CellTwin

Twin = AttentionTwin | RecurrentTwin | CellTwin
# Exactly these: a layer derived from one may do something else.
KINDS: dict[type[nn.Module], Callable[[Any], Twin]] = {
    nn.RNN: RecurrentTwin,
    nn.LSTM: RecurrentTwin,
    nn.GRU: RecurrentTwin,
    nn.RNNCell: CellTwin,
    nn.LSTMCell: CellTwin,
    nn.GRUCell: CellTwin,
    nn.MultiheadAttention: AttentionTwin,
}


class StandIn:
    """The forward pass of a layer that has a twin, installed for as long as it has users."""

    def __init__(self, owner: nn.Module) -> None:
        self._owner = weakref.ref(owner)
        self._twin = KINDS[type(owner)](owner)
        self._users = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the layer: by its twin where there are gradients and the twin can, else by torch."""
        owner = self._own()
        if torch.is_grad_enabled() and not _is_transformed():
            found = self._twin(owner, *arguments, **keywords)
            if found is not NotImplemented:
                return found
        return type(owner).forward(owner, *arguments, **keywords)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model, or a file of it, has torch's own forward pass.
        owner = self._own()
        return partial, (type(owner).forward, owner)

    def products(self, path: str) -> Iterator[tuple[str, nn.Module]]:
        """Yield the layers that the twin runs, with paths below that of the owner."""
        for name, product in self._twin.products.items():
            yield f"{path}.{name}" if path else name, product

    def enter(self) -> None:
        """Add one user."""
        self._users += 1

    def leave(self) -> None:
        """Remove one user; after the last one the layer has torch's own forward pass again."""
        self._users -= 1
        owner = self._owner()
        if not self._users and owner is not None and owner.__dict__.get("forward") is self:
            del owner.__dict__["forward"]

    def _own(self) -> Any:
        owner = self._owner()
        if owner is None:
            raise ReferenceError("the layer of this twin was deleted: keep a reference to the model")
        return owner


def install(model: nn.Module) -> dict[str, StandIn]:
    """Install a twin in every layer that has one; return them by path; call ``leave`` on each when done."""
    found = {}
    for path, module in model.named_modules():
        if type(module) in KINDS and (stand_in := _get_stand_in(module)) is not None:
            stand_in.enter()
            found[path] = stand_in
    return found


def _get_stand_in(module: nn.Module) -> StandIn | None:
    """Return the stand-in of a layer, a new one if need be; None for a layer with a forward of its own."""
    present = module.__dict__.get("forward")
    if isinstance(present, StandIn):
        return present
    is_copy = isinstance(present, partial) and present.func is type(module).forward and present.args == (module,)
    if present is not None and not is_copy:
        return None
    module.__dict__["forward"] = stand_in = StandIn(module)
    return stand_in


def _is_transformed() -> bool:
    """Return whether vmap or grad of torch.func is active, which cannot use a twin's own gradients."""
    return torch._C._functorch.peek_interpreter_stack() is not None
