"""Modules that are, after every pass of a model, what they were before it, with their buffers and parameters.

What a pass writes into these, or does to the modules, would carry something of the records to later passes, and to
whoever gets the model, without noise. Models that do so with any record are refused (`compat.probe`). Of one that does
it for some records only (it counts missing values, say) nothing is known before they are drawn, and a refusal would
tell of them. So what was done is taken back, in silence.

>>> import torch
>>> from torch import nn
>>> class Counting(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.register_buffer("missing", torch.zeros(()))
...     def forward(self, x):
...         self.missing += x.isnan().sum()
...         return x
>>> model = Counting()
>>> kept = Kept(model)
>>> _ = model(torch.tensor([torch.nan]))
>>> model.missing
tensor(0.)
>>> kept.close()
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import is_
from typing import Any

import torch
from torch import nn
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from dpfed.training.copied import Copy, are_same

# What every module has: its tables of parameters, buffers, modules and hooks, and its mode.
_TORCHS = frozenset(vars(nn.Module()))
_CONTAINERS = frozenset([dict, OrderedDict, list, set, deque])


class Kept:
    """Hooks on a module that bring it back after each of its calls, also after one that fails.

    Outside of a scope attributes that are not torch's own stay: the loop that made the call may use them.

    Privacy: what a pass writes into a buffer or a parameter, or puts in its place, and what it does to modules, their
    modes and their hooks, is used by no later pass and is in no model that is given away.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._scopes: list[Snapshot] = []
        self._calls: list[Snapshot] = []  # outside of any scope, some inside others
        self._handles = [
            module.register_forward_pre_hook(self._begin, prepend=True),
            module.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Bring back at the end, and not after each call, what calls, losses and backward passes write inside."""
        self._scopes.append(Snapshot(self._modules))
        try:
            yield
        finally:
            self._scopes.pop().bring_back()

    def bring_back(self, *, is_over: bool = True) -> None:
        """Bring everything back to what it was when the innermost scope began, before or after the backward pass."""
        if self._scopes:
            self._scopes[-1].bring_back(is_over=is_over)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not self._scopes:
            self._calls.append(Snapshot(self._modules, _TORCHS))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if self._calls and not self._scopes:
            self._calls.pop().bring_back(is_over=False)


class Snapshot:
    """What modules have, all of it or the attributes with these names, and a copy of each buffer and parameter."""

    def __init__(self, modules: Iterable[nn.Module], names: Collection[str] | None = None) -> None:
        self._states = [State(module, names) for module in modules]
        tables = [table for state in self._states for table in state.tables]
        every = {id(value): value for table in tables for value in table.values() if _is_own(value)}
        with DisableTorchFunction(), torch.no_grad(), unwatched():  # this is not the model's doing
            self._copies = {number: Copy(value) for number, value in every.items()}

    def bring_back(self, *, is_over: bool = True) -> None:
        """Put back what is not the same any more; may be called again."""
        for state in self._states:
            state.bring_back()
        with DisableTorchFunction(), torch.no_grad(), unwatched():
            written = {number: copy for number, copy in self._copies.items() if copy.is_written}
            changed = {number: copy.bring_back(is_over=is_over) for number, copy in written.items()}
        for table in [table for state in self._states for table in state.tables] if changed else ():
            table |= {name: changed[id(value)] for name, value in table.items() if id(value) in changed}


class State:
    """The class of a module, its attributes, and what is in those of them that are containers."""

    __slots__ = ("_attributes", "_empty", "_filled", "_is_whole", "_kind", "_module")

    def __init__(self, module: nn.Module, names: Collection[str] | None) -> None:
        self._module, self._kind, self._is_whole = module, type(module), names is None
        own = vars(module)
        self._attributes = own.copy() if names is None else {name: own[name] for name in names if name in own}
        self._empty: list[Any] = []
        self._filled: list[tuple[Any, Any]] = []
        for value in self._attributes.values():
            if type(value) in _CONTAINERS:
                if value:
                    self._filled.append((value, value.copy()))
                else:
                    self._empty.append(value)

    @property
    def tables(self) -> tuple[dict[str, Any], ...]:
        """The tables of buffers and parameters."""
        return self._attributes["_buffers"], self._attributes["_parameters"]

    def bring_back(self) -> None:
        """Put back what is not the same any more."""
        if type(self._module) is not self._kind:
            self._module.__class__ = self._kind
        own = vars(self._module)
        if self._is_whole and not are_same(own, self._attributes):
            own.clear()
        if not self._is_whole or not own:
            own.update(self._attributes)
        for container in self._empty if any(self._empty) else ():
            container.clear()
        for container, found in self._filled:
            if not _are_same(container, found):
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(found)


def _are_same(one: Any, two: Any) -> bool:
    """Return whether two containers have the same things, in the same order."""
    if isinstance(one, dict):
        return are_same(one, two)
    return one == two if isinstance(one, set) else len(one) == len(two) and all(map(is_, one, two))


def _is_own(value: Any) -> bool:
    """Whether this is a tensor of the module's own, and not one that torch.func has put in its place for a call."""
    return value is not None and not is_functorch_wrapped_tensor(value)


def unwatched() -> AbstractContextManager[Any]:
    """Return what hides this from a watch of the pass, if there is one."""
    return nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes()
