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
(3, 0)
>>> loop.begin(Piece((inputs, targets), drawn=3))
>>> loop.require_apart((model(inputs) - targets).square().mean(1))      # (4, 1) − (4): each with each
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: sub in this loop is not known to keep examples apart, and then clipping protects none: \
compute each loss from its own row, or give make_private the loss and call step(batch)
>>> loop.close()
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.utils.weak import WeakTensorKeyDictionary

from dpfed.errors import InvalidArgument
from dpfed.training.forward import tensors_of
from dpfed.training.independence import Watch
from dpfed.training.marks import MIXED, NONE, Place, mark_of
from dpfed.training.operations import FRONT
from dpfed.training.reading import Piece

_REMEDY = "compute each loss from its own row, or give make_private the loss and call step(batch)"


def second_time() -> InvalidArgument:
    """Return the refusal of losses that are not those of an open micro-batch."""
    message = "these losses are not those of the micro-batch that was handed out last, or come a second time"
    return InvalidArgument("losses", f"{message}: call backward once for each, before the next one")


class OwnLoop:
    """Hooks on a model that leave its own call out of what is watched; made for one loop at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._watch: Watch | None = None
        self._piece: tuple[int, int] | None = None  # how many were drawn of the one handed out last, and its number
        self._is_on = False
        self._depth = 0
        self._is_mixed = False
        self._earlier = WeakTensorKeyDictionary()  # what is left of micro-batches that were handed out before
        self._handles = [
            model.register_forward_pre_hook(self._enter_model, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._leave_model, always_call=True),
        ]

    def begin(self, piece: Piece, number: int = 0) -> None:
        """Watch from here on, where the micro-batch has at least two examples; one alone can meet none."""
        self.end()
        self._piece = piece.drawn, number
        given = list(tensors_of(piece.values))
        if not given:
            message = "a micro-batch must be of tensors, or tuples, lists and dicts of them, or nobody can watch it"
            raise InvalidArgument("data", f"{message}: let the collate_fn make them so")
        size = given[0].shape[0] if given and given[0].dim() else 0
        if size > 1:
            self._watch = Watch(size, [tensor for tensor in given if tensor.shape[:1] == (size,)])
            for tensor in list(self._earlier):
                if all(tensor is not own for own in given):
                    self._watch.marks.put(tensor, MIXED)
            self._depth, self._is_mixed = 0, False
            self._switch(is_on=True)

    def end(self) -> Watch | None:
        """Stop watching; return what was seen, None if nothing was watched."""
        self._piece = None
        self._switch(is_on=False)
        watch, self._watch = self._watch, None
        for tensor in () if watch is None else watch.marks.examples():
            self._earlier[tensor] = None
        return watch

    def require_apart(self, losses: Tensor) -> tuple[int, int]:
        """Refuse losses of this micro-batch in which examples could have met, or that Python could have chosen by.

        Return how many of them, from the first on, are of records that were drawn, and the micro-batch's number.
        """
        piece, watch = self._piece, self.end()
        if piece is None:
            raise second_time()
        if watch is None:
            return piece
        if watch.escaped is not None:
            message = f"{watch.escaped} before backward lets Python decide by the records of a batch"
            raise InvalidArgument("losses", f"{message}: call it afterwards, on what was released, or not at all")
        if self._is_mixed or not watch.marks.is_in_front(losses):
            message = f"{watch.why or 'something'} in this loop is not known to keep examples apart"
            raise InvalidArgument("losses", f"{message}, and then clipping protects none: {_REMEDY}")
        return piece

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
        if self._watch is not None and self._depth == 1:
            self._switch(is_on=False)
            with DisableTorchFunction():  # what is asked of torch in here is not the model's doing
                self._is_mixed |= not all(map(self._is_fit, tensors_of((arguments, keywords))))

    def _is_fit(self, tensor: Tensor) -> bool:
        """Return whether the model may take this for rows of examples, or for something that all have in common."""
        watch = self._watch
        if watch is None or watch.is_example(tensor):
            return watch is None or watch.marks.is_in_front(tensor)
        return tensor.shape[:1] != (watch.marks.size,) or watch.marks.is_alike(tensor, FRONT)

    def _leave_model(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self._depth -= 1
        if self._watch is None or self._depth:
            return
        for tensor in tensors_of(output):
            # That this is where its examples are, the engine sees: it looks at the model's call.
            axis = next((axis for axis, length in enumerate(tensor.shape) if length == self._watch.marks.size), None)
            if self._watch.marks.of(tensor) == NONE and axis is not None:
                self._watch.marks.put(tensor, mark_of(tensor.shape, Place(axis)))
        self._switch(is_on=True)
