"""Modules that are, after every pass of a model, what they were before it, with their buffers and parameters.

What a pass writes into these, or does to the modules, would carry something of the records to later passes, and to
whoever gets the model, without noise. Models that do so with any record are refused (`compat.probe`). A model that
does it for some records only (it counts missing values, say) cannot be known before they are drawn, and a refusal then
would reveal them. So the model is silently restored.

>>> import torch
>>> from torch import Tensor, nn
>>> class Counting(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.register_buffer("missing", torch.zeros(()))
...     def forward(self, x):
...         self.missing += x.isnan().sum()
...         return x
>>> model = Counting()
>>> kept = Restorer(model)
>>> _ = model(torch.tensor([torch.nan]))
>>> model.missing
tensor(0.)
>>> kept.close()
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from dpfed.training.engine.copied import Copies, are_same

# What every module has: its tables of parameters, buffers, modules and hooks, and its mode.
TORCHS = frozenset(vars(nn.Module()))
_CONTAINERS = frozenset([dict, OrderedDict, list, set, deque])


class Restorer:
    """Hooks on a module that restore it after each of its calls, also after one that fails.

    Outside of a scope attributes that are not torch's own stay: the loop that made the call may use them.

    Privacy: what a pass writes into a buffer or a parameter, or puts in its place, and what it does to modules, their
    modes and their hooks, is used by no later pass and is in no model that is given away.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self._snapshots = Snapshots(self._modules)
        self._scopes: list[Snapshot] = []
        self._calls: list[Snapshot] = []  # outside of any scope, some inside others
        self._handles = [
            module.register_forward_pre_hook(self._begin, prepend=True),
            module.register_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Remove the hooks from the module."""
        for handle in self._handles:
            handle.remove()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Restore at the end, and not after each call, what calls, losses and backward passes write inside."""
        self._scopes.append(self._snapshots.take())
        try:
            yield
        finally:
            self._scopes.pop().bring_back()

    def bring_back(self, *, is_over: bool = True) -> None:
        """Restore everything to what it was when the innermost scope began, before or after the backward pass."""
        if self._scopes:
            self._scopes[-1].bring_back(is_over=is_over)

    def _begin(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not self._scopes:
            self._calls.append(Snapshot(Structure(self._modules, TORCHS)))

    def _end(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if self._calls and not self._scopes:
            self._calls.pop().bring_back(is_over=False)


class Snapshots:
    """A source of snapshots of modules, which reads their structure again only if it was changed since the last one."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._structure: Structure | None = None
        self._last: Snapshot | None = None

    def take(self) -> Snapshot:
        """Return a snapshot of the modules as they are."""
        if self._structure is None or not self._structure.is_same:
            self._structure = Structure(self._modules)
        return Snapshot(self._structure)

    def take_or_keep(self) -> Snapshot:
        """Return a snapshot, the last one if nothing was changed since: for parameters that nobody trains."""
        if self._last is None or not self._last.is_same:
            self._last = self.take()
        return self._last


class Snapshot:
    """The structure of modules, and a copy of each of their buffers and parameters."""

    def __init__(self, structure: Structure) -> None:
        self._structure = structure
        with DisableTorchFunction(), torch.no_grad(), watch_paused():  # this is not the model's doing
            self._copies = Copies(structure.tensors)

    @property
    def is_same(self) -> bool:
        """Whether nothing was changed, as far as can be seen quickly."""
        with DisableTorchFunction():
            return self._structure.is_same and self._copies.are_same

    def bring_back(self, *, is_over: bool = True) -> None:
        """Restore what was changed; may be called again."""
        self._structure.bring_back()
        with DisableTorchFunction():
            if self._copies.are_same:
                return
            with torch.no_grad(), watch_paused():
                changed = self._copies.bring_back(is_over=is_over)
        for table in self._structure.tables if changed else ():
            table |= {name: changed[id(value)] for name, value in table.items() if id(value) in changed}


class Structure:
    """The attributes of modules, all of them or those with these names."""

    def __init__(self, modules: Sequence[nn.Module], names: Collection[str] | None = None) -> None:
        self._states = [ModuleState(module, names) for module in modules]
        self.tables = [table for state in self._states for table in state.tables]
        every = {id(value): value for table in self.tables for value in table.values() if _is_own(value)}
        self.tensors: list[Tensor] = list(every.values())
        self.modules, self._kinds, self._is_whole = modules, list(map(type, modules)), names is None
        # All at once, since in most passes nothing is changed.
        self._owns = list(map(vars, modules))
        filled: list[Any] = [*self._owns, *(part for state in self._states for part in state.filled)]
        filled += [vars(type(module)) for module in modules if _has_class_of_its_own(module)]
        self._empty = [part for state in self._states for part in state.empty]
        self._dicts = [part for part in filled if isinstance(part, Mapping)]
        # Views, which follow their dicts.
        self._parts = [part.values() if isinstance(part, Mapping) else part for part in filled]
        self._lengths, self._names, self._things = (
            list(map(len, self._parts)),
            self._list_names(),
            list(self._list_values()),
        )

    def bring_back(self) -> None:
        """Restore what was changed."""
        if not self.is_same:
            for state in self._states:
                state.bring_back()

    @property
    def is_same(self) -> bool:
        """Whether nothing was changed."""
        if not self._is_whole or any(self._empty) or not all(map(is_, map(type, self.modules), self._kinds)):
            return False
        if not all(map(is_, map(vars, self.modules), self._owns)):
            return False
        if list(map(len, self._parts)) != self._lengths or self._list_names() != self._names:
            return False
        return all(map(is_, self._list_values(), self._things))

    def _list_names(self) -> list[Any]:
        return list(chain.from_iterable(self._dicts))

    def _list_values(self) -> Iterator[Any]:
        return chain.from_iterable(self._parts)


class ModuleState:
    """The class of a module, its attributes, and what is in those of them that are containers."""

    __slots__ = ("_attributes", "_found", "_is_whole", "_kind", "_members", "_module", "_own", "empty", "filled")

    def __init__(self, module: nn.Module, names: Collection[str] | None) -> None:
        self._module, self._kind, self._is_whole = module, type(module), names is None
        self._members = dict(vars(self._kind)) if _has_class_of_its_own(module) else None
        self._own = own = vars(module)
        self._attributes = own.copy() if names is None else {name: own[name] for name in names if name in own}
        containers = [value for value in self._attributes.values() if type(value) in _CONTAINERS]
        self.empty = [value for value in containers if not value]
        self.filled = [value for value in containers if value]
        self._found = [value.copy() for value in self.filled]

    @property
    def tables(self) -> tuple[dict[str, Any], ...]:
        """The tables of buffers and parameters."""
        return self._attributes["_buffers"], self._attributes["_parameters"]

    def bring_back(self) -> None:
        """Restore what was changed."""
        if type(self._module) is not self._kind:
            self._module.__class__ = self._kind
        if self._members is not None:
            _bring_back_members(self._kind, self._members)
        own = vars(self._module)
        if self._is_whole and own is not self._own:
            self._module.__dict__ = own = self._own
        if self._is_whole and not are_same(own, self._attributes):
            own.clear()
        if not self._is_whole or not own:
            own.update(self._attributes)
        for container in self.empty if any(self.empty) else ():
            container.clear()
        for container, found in zip(self.filled, self._found, strict=True):
            if not _are_same(container, found):
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(found)


def _has_class_of_its_own(module: nn.Module) -> bool:
    """Return whether torch has made a class for this module alone, whose properties are its parametrizations."""
    return "parametrizations" in module._modules


def _bring_back_members(kind: type[nn.Module], members: Mapping[str, Any]) -> None:
    """Restore the members of a class."""
    own = vars(kind)
    for name in [name for name in own if name not in members]:
        delattr(kind, name)
    for name, value in members.items():
        if own.get(name, own) is not value:
            setattr(kind, name, value)


def _are_same(one: Any, two: Any) -> bool:
    """Return whether two containers hold the same objects, in the same order."""
    if isinstance(one, dict):
        return are_same(one, two)
    if isinstance(one, set):  # by which they are: 1 and True are equal
        return {*map(id, one)} == {*map(id, two)}
    return len(one) == len(two) and all(map(is_, one, two))


def _is_own(value: Any) -> bool:
    """Return whether this is the module's own tensor, not one that torch.func has put in its place for a call."""
    return value is not None and not is_functorch_wrapped_tensor(value)


def watch_paused() -> AbstractContextManager[Any]:
    """Switch off inside the dispatch mode that watches the pass, if there is one."""
    return nullcontext() if _get_current_dispatch_mode() is None else _disable_current_modes()
