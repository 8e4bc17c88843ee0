"""What the attributes of modules lead to, sorted by how it can be brought back to what it was.

Containers of Python's own kinds are emptied and filled again where they are; tensors and modules have copies of their
own; whatever else there is (an array, somebody's object) can only be replaced by a copy.

>>> class Holder:
...     def __init__(self):
...         self.history, self.names = [{"a": 1.0}], ("b", "c")
>>> holder = Holder()
>>> found = find_reached([(vars(holder), ())])
>>> holder.history[0]["a"] = 2.0
>>> for container in found.containers:
...     container.bring_back()
>>> holder.history, found.opaque
([{'a': 1.0}], [])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.training.engine.kept import TORCHS

Owner = tuple[dict[str, Any], Collection[str]]  # attributes, and the names of those that are left out
# What nobody writes into: of these very types, since a subclass may have attributes.
_ATOMS = frozenset(
    [str, bytes, int, float, complex, bool, type(None), type(...), range, torch.Size, torch.dtype, torch.device]
) | {torch.layout, torch.memory_format, FunctionType, BuiltinFunctionType}
_CONTAINERS = frozenset([dict, list, set, deque])


class Container:
    """A dict, list, set or deque, and the very objects that it holds."""

    __slots__ = ("_found", "value")

    def __init__(self, value: Any) -> None:
        self.value, self._found = value, value.copy()

    def bring_back(self) -> None:
        """Restore what was changed."""
        if not self._is_same:
            self.value.clear()
            (self.value.extend if isinstance(self.value, list | deque) else self.value.update)(self._found)

    @property
    def _is_same(self) -> bool:
        value, found = self.value, self._found
        if len(value) != len(found):
            return False
        if isinstance(value, set):
            return {*map(id, value)} == {*map(id, found)}
        # Keys too by which they are: 1 and True are equal.
        is_same = all(map(is_, value, found))
        return is_same and (not isinstance(value, dict) or all(map(is_, value.values(), found.values())))


@dataclass
class Reached:
    """Containers, tensors, modules that are no part of another, and attributes (by owner) that hold other things."""

    containers: list[Container] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    opaque: list[tuple[dict[str, Any], str]] = field(default_factory=list)


def find_reached(owners: Iterable[Owner]) -> Reached:
    """Return what these attributes lead to, through containers, tensors and modules."""
    walk = _Walk(list(owners))
    for owner, left_out in walk.owners:  # which grows
        for name in [name for name in owner if name not in left_out]:
            walk.enter(owner, name)
    return walk.reached


def list_containers(value: Any) -> list[Container]:
    """Return the containers in a value, whatever else is in it."""
    return [Container(part) for part in _spread(value) if type(part) in _CONTAINERS]


class _Walk:
    def __init__(self, owners: list[Owner]) -> None:
        self.owners, self.reached = owners, Reached()
        self._seen = {id(owner) for owner, _ in owners}
        self._kept: list[Any] = []  # so that no two have the same id

    def enter(self, owner: dict[str, Any], name: str) -> None:
        """Note what one attribute leads to."""
        parts = list(_spread(owner[name]))
        for part in parts:
            if isinstance(part, Tensor | nn.Module) and self._is_new(part):
                self._add(part)
        if not all(map(_is_known, parts)):
            self.reached.opaque.append((owner, name))
            return
        found = [part for part in parts if type(part) in _CONTAINERS and self._is_new(part)]
        self.reached.containers += map(Container, found)

    def _add(self, part: Tensor | nn.Module) -> None:
        if isinstance(part, Tensor):
            self.reached.tensors.append(part)
            self._add_owner(vars(part), ())
            return
        for module in part.modules():
            if self._add_owner(vars(module), TORCHS):
                self.reached.modules.append(module)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and self._is_new(tensor):
                    self._add(tensor)

    def _add_owner(self, owner: dict[str, Any], left_out: Collection[str]) -> bool:
        is_new = self._is_new(owner)
        if is_new:
            self.owners.append((owner, left_out))
        return is_new

    def _is_new(self, thing: Any) -> bool:
        is_new = id(thing) not in self._seen
        self._seen.add(id(thing))
        self._kept.append(thing)
        return is_new


def _spread(value: Any) -> Iterator[Any]:
    """Yield the value and all that it holds, through containers, each once."""
    seen, left = set(), [value]
    while left:
        thing = left.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            left += _list_parts(thing)


def _list_parts(thing: Any) -> list[Any]:
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if type(thing) is dict:
        return [*thing, *thing.values()]
    return list(thing) if type(thing) in _CONTAINERS or _is_fixed(thing) else []


def _is_fixed(thing: Any) -> bool:
    """Return whether this is a tuple or frozenset, also with names, which has no attributes beside them."""
    return isinstance(thing, tuple | frozenset) and not hasattr(thing, "__dict__")


def _is_known(thing: Any) -> bool:
    """Return whether nobody writes into this, or it is restored where it is."""
    if type(thing) in _ATOMS or type(thing) in _CONTAINERS or _is_fixed(thing):
        return True
    return isinstance(thing, type | Enum | MethodType | Tensor | nn.Module | np.number | np.bool_)
