"""Modules that several owners of data use in turn: each finds them as they were made, whatever the last one did.

A model that notes something of its records in a forward pass (an attribute, a buffer, a hook, a frozen parameter) would
carry it from one client's training into the next one's update, past the clip that bounds the first.

Most clients change nothing but the parameters that they train, so whether anything was changed is seen first:
containers hold the very objects that they held, and tensors lie where they lay, with lazy copies that a write would
have parted (`engine.copied`).

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

from collections.abc import Collection, Iterable, Sequence
from copy import deepcopy
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction

from dpfed.training.engine.copied import Copies, Copy
from dpfed.training.engine.kept import TORCHS, Structure, watch_paused
from dpfed.training.reached import Container, Reached, find_reached, list_containers

_gradient, _hooks = attrgetter("grad"), attrgetter("_backward_hooks")


class Pristine:
    """What modules are when this is made, with all that their attributes hold.

    The values of `written` parameters, which each user writes before anything else, are not restored. `others` are
    objects whose attributes are restored as well, such as a loss that is no module.

    Privacy: nothing that is reached from the modules by attributes and containers stays from one use to the next. What
    a forward pass keeps elsewhere (a class, a global) does, and so does what cannot be copied, such as a lock.
    """

    def __init__(
        self, modules: Iterable[nn.Module], written: Collection[Tensor] = (), others: Iterable[Any] = ()
    ) -> None:
        given = list(modules)
        beside = [own for each in others if isinstance(own := getattr(each, "__dict__", None), dict)]
        reached = _reach(given, beside)
        self._structure = Structure(list(dict.fromkeys([*given, *reached.modules])))
        self._containers = [*map(Container, beside), *reached.containers]
        own = {id(each) for each in written}
        tensors = {id(each): each for each in (*self._structure.tensors, *reached.tensors)}
        self._copies = Copies([each for key, each in tensors.items() if key not in own])
        self._windows = Windows([each for key, each in tensors.items() if key in own])
        shared = chain(self._structure.modules, tensors.values(), (each.value for each in reached.containers))
        self._shared = {id(each): each for each in shared}
        self._deep: list[tuple[dict[str, Any], str, Any]] = []
        self._add_opaque(reached.opaque)

    def bring_back(self) -> None:
        """Make the modules what they were."""
        self._structure.bring_back()
        with DisableTorchFunction(), torch.no_grad(), watch_paused():
            self._windows.bring_back()
            if not self._copies.are_same:
                self._copies.bring_back(is_over=True)
        for container in self._containers:
            container.bring_back()
        memo = dict(self._shared) if self._deep else {}  # one for all: what two attributes hold stays one object
        for owner, name, value in self._deep:
            owner[name] = deepcopy(value, memo)

    def _add_opaque(self, attributes: Iterable[tuple[dict[str, Any], str]]) -> None:
        """Copy what such attributes hold but for what is restored itself; of what has no copy, keep the containers."""
        memo = dict(self._shared)
        for owner, name in attributes:
            tried = dict(memo)
            try:
                self._deep.append((owner, name, deepcopy(owner[name], tried)))
            except Exception:  # somebody else's object, such as a lock
                self._containers += list_containers(owner[name])
            else:
                memo = tried


class Windows:
    """Parameters whose values each user writes: where they lie, and all that belongs to them, is restored."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        self._copies = list(map(Copy, tensors))
        self._places = [tensor.data for tensor in tensors]
        self._facts, self._gradients = self._read(), list(map(_gradient, tensors))
        self._storages = {each._cdata: each for each in (place.untyped_storage() for place in self._places)}
        self._lengths = self._read_lengths()

    def bring_back(self) -> None:
        """Restore all but the values, unless nothing was changed."""
        if not self._are_same:
            for copy in self._copies:
                copy.bring_back()

    @property
    def _are_same(self) -> bool:
        tensors = self._tensors
        if self._read() != self._facts or self._read_lengths() != self._lengths:
            return False
        if any(map(_hooks, tensors)) or any(map(vars, tensors)):
            return False
        is_same = all(map(is_, map(_gradient, tensors), self._gradients))
        return is_same and all(map(Tensor.is_set_to, tensors, self._places))

    def _read(self) -> list[tuple[Any, ...]]:
        return [(each.dtype, each.layout, each.device, each.requires_grad, each.is_leaf) for each in self._tensors]

    def _read_lengths(self) -> list[int]:
        return [each.nbytes() for each in self._storages.values()]


def _reach(modules: Iterable[nn.Module], beside: Iterable[dict[str, Any]]) -> Reached:
    """Return what attributes of the modules, of their tensors and of others lead to."""
    owners: list[tuple[dict[str, Any], Collection[str]]] = [(vars(module), TORCHS) for module in modules]
    tensors = chain.from_iterable((*module._parameters.values(), *module._buffers.values()) for module in modules)
    others = chain(beside, (vars(tensor) for tensor in tensors if tensor is not None))
    return find_reached([*owners, *((each, ()) for each in others)])
