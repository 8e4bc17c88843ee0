"""Watching a loop that computes losses itself: from a micro-batch to the model, and from the model to the losses.

The model's own call can be run again, and the engine looks at it as at any other program. What the loop does before and
after it cannot; so it is watched while it happens (`independence`), every time, and losses in which examples could have
met are refused.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(2, 1)
>>> loop = OwnLoop(model)
>>> inputs, targets = torch.randn(4, 2), torch.randn(4)
>>> loop.begin(Piece((inputs, targets), drawn=3))
>>> loop.require_apart((model(inputs).squeeze(1) - targets).square())
>>> loop.begin(Piece((inputs, targets), drawn=3))
>>> loop.require_apart((model(inputs) - targets).square().mean(1))      # (4, 1) − (4): each with each
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: sub in this loop is not known to keep examples apart, and then clipping protects none: \
compute each loss from its own row, or give make_private the loss and call step(batch)
>>> loop.close()
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from dpfed.errors import InvalidArgument
from dpfed.training.forward import tensors_of
from dpfed.training.independence import Watch
from dpfed.training.lone import Lone
from dpfed.training.marks import NONE, Place, address, mark_of
from dpfed.training.operations import FRONT
from dpfed.training.reading import Piece

_REMEDY = "compute each loss from its own row, or give make_private the loss and call step(batch)"


def second_time() -> InvalidArgument:
    """Return the refusal of losses that are not those of an open micro-batch."""
    message = "these losses are not those of the micro-batch that was handed out last, or come a second time"
    return InvalidArgument("losses", f"{message}: call backward once for each, before the next one")


class Handed(NamedTuple):
    """A micro-batch by its number, how many of its rows were drawn, and whether its records have the usual form."""

    number: int
    drawn: int
    is_usual: bool


class OwnLoop:
    """Hooks on a model that leave its own call out of what is watched; made for one loop at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._watch: Watch | Lone | None = None
        self._handed: Handed | None = None  # out last
        self._is_on = False
        self._depth = 0
        self._is_mixed = False
        self._calls: list[list[Node]] = []  # of the model in this micro-batch, by what they gave that has a gradient
        self._earlier: list[StorageWeakRef] = []  # memory of micro-batches that were handed out before
        self._handles = [
            model.register_forward_pre_hook(self._enter_model, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave_model, always_call=True),
        ]

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model has a copy of its hooks, which watches nothing: references to memory have one owner each.
        nothing: dict[str, Any] = {"_watch": None, "_handed": None, "_is_on": False, "_calls": [], "_earlier": []}
        return {**self.__dict__, **nothing}

    def begin(self, piece: Piece, number: int = 0) -> None:
        """Watch from here on; one row alone can meet nothing but what is left of earlier ones."""
        self.end()
        self._handed = Handed(number, piece.drawn, piece.is_usual)
        given = list(tensors_of(piece.values))
        if not given:
            message = "a micro-batch must be of tensors, or tuples, lists and dicts of them, or nobody can watch it"
            raise InvalidArgument("data", f"{message}: let the collate_fn make them so")
        size = given[0].shape[0] if given and given[0].dim() else 0
        self._depth, self._is_mixed, self._calls = 0, False, []
        if size > 1:
            watch = Watch(size, [tensor for tensor in given if tensor.shape[:1] == (size,)])
            watch.marks.recall(self._left(given))
            self._watch = watch
        else:
            self._watch = Lone(given, self._left(given))
        self._switch(is_on=True)

    def _left(self, given: list[Tensor]) -> list[torch.UntypedStorage]:
        """Return what is still in use of the memory of earlier micro-batches, without that of this one."""
        found = [torch.UntypedStorage._new_with_weak_ptr(reference.cdata) for reference in self._earlier]
        self._earlier = [each for each, storage in zip(self._earlier, found, strict=True) if storage is not None]
        own = set(map(address, given))
        return [storage for storage in found if storage is not None and storage.data_ptr() not in own]

    def end(self) -> Watch | Lone | None:
        """Stop watching; return what was seen, None if nothing was watched."""
        self._handed = None
        self._switch(is_on=False)
        watch, self._watch, self._calls = self._watch, None, []
        known = {reference.cdata for reference in self._earlier}
        for storage in () if watch is None else watch.memory:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            if reference.cdata not in known:
                self._earlier.append(reference)
        return watch

    @property
    def handed(self) -> Handed:
        """The micro-batch that is open."""
        if self._handed is None:
            raise second_time()
        return self._handed

    def require_apart(self, losses: Tensor) -> None:
        """Refuse losses of this micro-batch in which examples could have met, or that Python could have chosen by."""
        calls, watch = self._calls, self.end()
        if isinstance(watch, Lone) and watch.is_mixed(losses):
            raise _mixed("what is left of an earlier micro-batch")
        if not isinstance(watch, Watch):
            return
        if watch.escaped is not None:
            message = f"{watch.escaped} before backward lets Python decide by the records of a batch"
            raise InvalidArgument("losses", f"{message}: call it afterwards, on what was released, or not at all")
        if self._is_mixed or not watch.marks.is_in_front(losses):
            raise _mixed(watch.why or "something")
        _require_looked_at(losses, calls)

    def close(self) -> None:
        """Take the hooks off the model."""
        self.end()
        for handle in self._handles:
            handle.remove()

    def _switch(self, *, is_on: bool) -> None:
        if self._watch is not None and is_on != self._is_on:
            self._is_on = is_on
            self._watch.__enter__() if is_on else self._watch.__exit__(None, None, None)

    def _enter_model(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._depth += 1
        # Without gradients the engine has nothing to look at, and the call is a part of the loop like any other.
        if isinstance(self._watch, Watch) and self._depth == 1 and torch.is_grad_enabled():
            self._switch(is_on=False)
            with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
                fit = partial(_is_fit, self._watch)
                self._is_mixed |= not all(map(fit, tensors_of((arguments, keywords))))

    def _leave_model(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._depth -= 1
        watch = self._watch
        if not isinstance(watch, Watch) or self._depth or self._is_on:
            return
        for tensor in tensors_of(output):
            # That this is where its examples are, the engine sees: it looks at the model's call.
            axis = next((axis for axis, length in enumerate(tensor.shape) if length == watch.marks.size), None)
            if watch.marks.of(tensor) == NONE and axis is not None:
                watch.marks.put(tensor, mark_of(tensor.shape, Place(axis)))
        self._calls.append([tensor.grad_fn for tensor in tensors_of(output) if tensor.grad_fn is not None])
        self._switch(is_on=True)


def _is_fit(watch: Watch, tensor: Tensor) -> bool:
    """Return whether the model may take this for rows of examples, or for something that all have in common."""
    if watch.is_example(tensor):
        return watch.marks.is_in_front(tensor)
    return tensor.shape[:1] != (watch.marks.size,) or watch.marks.is_alike(tensor, FRONT)


def _require_looked_at(losses: Tensor, calls: list[list[Node]]) -> None:
    """Refuse losses beside calls of the model that the engine does not look at, since nothing is to learn there."""
    if len(calls) < 2:  # of a single one the engine itself says so
        return
    used = _below(losses)
    if not all(any(node in used for node in call) for call in calls):
        message = "the model was called for something without a part in the gradient, which nobody looks at"
        raise InvalidArgument("losses", f"{message}: call it under torch.no_grad(), or after backward")


def _mixed(what: str) -> InvalidArgument:
    message = f"{what} in this loop is not known to keep examples apart"
    return InvalidArgument("losses", f"{message}, and then clipping protects none: {_REMEDY}")


def _below(losses: Tensor) -> set[Node]:
    """Return the nodes of the losses' graph."""
    waiting = [] if losses.grad_fn is None else [losses.grad_fn]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen
