"""A watch over a loop that computes losses itself: from a micro-batch to the model, and from there to the losses.

The model's own call can be run again, and the engine looks at it as at any other program. What the loop does before and
after it cannot; so it is watched while it happens (`independence`), every time, and losses in which examples could have
met are refused.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(2, 1)
>>> loop = OwnLoop(model)
>>> inputs, targets = torch.randn(4, 2), torch.randn(4)
>>> loop.begin(MicroBatch((inputs, targets), drawn=3))
>>> loop.require_apart((model(inputs).squeeze(1) - targets).square())
>>> loop.begin(MicroBatch((inputs, targets), drawn=3))
>>> loop.require_apart((model(inputs) - targets).square().mean(1))      # (4, 1) − (4): each with each
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: sub in this loop is not known to keep examples apart, and mixed ones are not \
protected: compute each loss from its own row, or give make_private the loss and call step(batch)
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
from dpfed.training.engine.forward import tensors_of
from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.lone import SingleRowWatch
from dpfed.training.engine.watch.marks import NONE, Place, address, mark_of
from dpfed.training.engine.watch.operation import FRONT
from dpfed.training.reading import MicroBatch

_REMEDY = "compute each loss from its own row, or give make_private the loss and call step(batch)"


def make_stale_losses_error() -> InvalidArgument:
    """Return the error for losses that are not those of the open micro-batch."""
    message = (
        "these losses are not those of the last micro-batch, or are used a second time, and a record adds one loss"
    )
    return InvalidArgument("losses", f"{message}: call backward once for each micro-batch, before the next one")


class OpenMicroBatch(NamedTuple):
    """The micro-batch that the loop works on: its number, how many rows were drawn, and if their form is usual."""

    number: int
    drawn: int
    is_usual: bool


class OwnLoop:
    """A watch over one loop at a time, with hooks that leave out the model's own calls, which the engine checks."""

    def __init__(self, model: nn.Module) -> None:
        self._watch: ExampleWatch | SingleRowWatch | None = None
        self._open: OpenMicroBatch | None = None
        self._is_on = False
        self._depth = 0
        self._is_mixed = False
        self._calls: list[list[Node]] = []  # of the model in this micro-batch, by what they gave that has a gradient
        self._earlier: list[StorageWeakRef] = []  # memory of micro-batches of this loop
        self._handles = [
            model.register_forward_pre_hook(self._enter_model, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave_model, always_call=True),
        ]

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model has a copy of its hooks, which watches nothing: references to memory have one owner each.
        nothing: dict[str, Any] = {"_watch": None, "_open": None, "_is_on": False, "_calls": [], "_earlier": []}
        return {**self.__dict__, **nothing}

    def begin(self, piece: MicroBatch, number: int = 0) -> None:
        """Begin to watch a micro-batch; a single row can mix only with what is left of earlier ones."""
        self.end()
        self._open = OpenMicroBatch(number, piece.drawn, piece.is_usual)
        given = list(tensors_of(piece.values))
        if not given:
            message = "a micro-batch must be of tensors, or tuples, lists and dicts of them, or mixing cannot be seen"
            raise InvalidArgument("data", f"{message}: let the collate_fn make them so")
        size = given[0].shape[0] if given and given[0].dim() else 0
        self._depth, self._is_mixed, self._calls = 0, False, []
        if size > 1:
            watch = ExampleWatch(size, [tensor for tensor in given if tensor.shape[:1] == (size,)])
            watch.marks.mark_mixed(self._find_leftovers(given))
            self._watch = watch
        else:
            self._watch = SingleRowWatch(given, self._find_leftovers(given))
        self._switch(is_on=True)

    def _find_leftovers(self, given: list[Tensor]) -> list[torch.UntypedStorage]:
        """Return the memory of earlier micro-batches that is still in use, without that of this one."""
        found = [torch.UntypedStorage._new_with_weak_ptr(reference.cdata) for reference in self._earlier]
        self._earlier = [each for each, storage in zip(self._earlier, found, strict=True) if storage is not None]
        own = set(map(address, given))
        return [storage for storage in found if storage is not None and storage.data_ptr() not in own]

    def end(self) -> ExampleWatch | SingleRowWatch | None:
        """Stop watching; return what was seen, None if nothing was watched."""
        self._open = None
        self._switch(is_on=False)
        watch, self._watch, self._calls = self._watch, None, []
        known = {reference.cdata for reference in self._earlier}
        for storage in () if watch is None else watch.memory:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            if reference.cdata not in known:
                self._earlier.append(reference)
        return watch

    @property
    def current(self) -> OpenMicroBatch:
        """The micro-batch that is watched."""
        if self._open is None:
            raise make_stale_losses_error()
        return self._open

    def require_apart(self, losses: Tensor) -> None:
        """Refuse losses of this micro-batch in which examples may be mixed, or may have decided a branch of Python."""
        calls, watch = self._calls, self.end()
        if isinstance(watch, SingleRowWatch) and watch.is_mixed(losses):
            raise _make_mixing_error("what is left of an earlier micro-batch")
        if not isinstance(watch, ExampleWatch):
            return
        if watch.escaped is not None:
            message = f"{watch.escaped} before backward lets Python decide by the records of a batch"
            raise InvalidArgument("losses", f"{message}: call it afterwards, on what was released, or not at all")
        if self._is_mixed or not watch.marks.is_in_front(losses):
            raise _make_mixing_error(watch.why or "something")
        _require_used_calls(losses, calls)

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
        if isinstance(self._watch, ExampleWatch) and self._depth == 1 and torch.is_grad_enabled():
            self._switch(is_on=False)
            with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
                fit = partial(_is_fit, self._watch)
                self._is_mixed |= not all(map(fit, tensors_of((arguments, keywords))))

    def _leave_model(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._depth -= 1
        watch = self._watch
        if not isinstance(watch, ExampleWatch) or self._depth or self._is_on:
            return
        for tensor in tensors_of(output):
            # That this is where its examples are, the engine sees: it looks at the model's call.
            axis = next((axis for axis, length in enumerate(tensor.shape) if length == watch.marks.size), None)
            if watch.marks.of(tensor) == NONE and axis is not None:
                watch.marks.put(tensor, mark_of(tensor.shape, Place(axis)))
        self._calls.append([tensor.grad_fn for tensor in tensors_of(output) if tensor.grad_fn is not None])
        self._switch(is_on=True)


def _is_fit(watch: ExampleWatch, tensor: Tensor) -> bool:
    """Return whether the tensor has one row for each example, or is the same for all of them."""
    if watch.is_example(tensor):
        return watch.marks.is_in_front(tensor)
    return tensor.shape[:1] != (watch.marks.size,) or watch.marks.is_alike(tensor, FRONT)


def _require_used_calls(losses: Tensor, calls: list[list[Node]]) -> None:
    """Refuse losses if a call of the model has no part in them: the engine checks only calls with a gradient."""
    if len(calls) < 2:  # the engine itself refuses a single one
        return
    used = _list_nodes(losses)
    if not all(any(node in used for node in call) for call in calls):
        message = "the model was called for something without a part in the gradient, where mixing is not checked"
        raise InvalidArgument("losses", f"{message}: call it under torch.no_grad(), or after backward")


def _make_mixing_error(what: str) -> InvalidArgument:
    message = f"{what} in this loop is not known to keep examples apart"
    return InvalidArgument("losses", f"{message}, and mixed ones are not protected: {_REMEDY}")


def _list_nodes(losses: Tensor) -> set[Node]:
    """Return the nodes of the losses' graph."""
    waiting = [] if losses.grad_fn is None else [losses.grad_fn]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen
