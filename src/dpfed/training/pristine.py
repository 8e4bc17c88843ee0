"""Modules that several owners of data use in turn: each finds them as they were made, whatever the last one did.

A model that notes something of its records in a forward pass (an attribute, a buffer, a hook, a frozen parameter) would
carry it from one client's training into the next one's update, past the clip that bounds the first.

>>> from torch import nn
>>> model = nn.Linear(2, 1)
>>> model.seen = {"largest": [0.0]}
>>> kept = Pristine([model])
>>> model.seen["largest"].append(9.0)
>>> model.training = False
>>> kept.bring_back()
>>> model.seen, model.training
({'largest': [0.0]}, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from itertools import chain
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor, nn

from dpfed.training.engine.kept import Snapshots

# What nobody writes into, and what is restored by torch's own tables.
_LEFT = (str, bytes, int, float, complex, type, type(None), FunctionType, BuiltinFunctionType, Tensor, nn.Module)
_TORCHS = frozenset(vars(nn.Module()))


class Pristine:
    """What modules are when this is made, with all that their attributes hold.

    Privacy: nothing that is reached from the modules by attributes and containers stays from one use to the next. What
    a forward pass keeps elsewhere (a class, a global) does, and so does what cannot be copied, such as a lock.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list(modules)
        self._snapshot = Snapshots(self._modules).take()
        shared = chain(self._modules, *(chain(each.parameters(), each.buffers()) for each in self._modules))
        self._shared = {id(each): each for each in shared}
        self._deep = [
            (module, name, self._copy(value))
            for module in self._modules
            for name, value in vars(module).items()
            if name not in _TORCHS and not _is_plain(value)
        ]

    def bring_back(self) -> None:
        """Make the modules what they were."""
        self._snapshot.bring_back()
        for module, name, value in self._deep:
            vars(module)[name] = self._copy(value)

    def _copy(self, value: Any) -> Any:
        """Return a copy of all that an attribute holds but the modules and tensors, which are restored themselves."""
        try:
            return deepcopy(value, dict(self._shared))
        except Exception:  # somebody else's object: it is left as it is
            return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, _LEFT) or (isinstance(value, tuple | frozenset) and all(map(_is_plain, value)))
