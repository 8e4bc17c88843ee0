"""Calls whose examples are not the first axis of a layer's input, brought into that form.

A layer that does the same at each position (Linear, Embedding, LayerNorm) may be given (positions, examples, features),
as torch's own layers are by default, or examples and positions in one axis after a ``view``. Where the examples are was
seen when the program was looked at (`marks.Place`).

>>> import torch
>>> move_examples_first(torch.arange(6).view(3, 2), Place(1), size=2).tolist()      # two examples of three positions
[[0, 2, 4], [1, 3, 5]]
>>> move_examples_first(torch.arange(6), Place(0, outer=1, inner=3), size=2).tolist()
[[[0, 1, 2]], [[3, 4, 5]]]
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from dpfed.training.engine.rules.contributions import Call
from dpfed.training.engine.rules.meeting import Meeting
from dpfed.training.engine.watch.marks import Place

FRONT = Place(0)


def has_batch(call: Call, place: Place, size: int) -> bool:
    """Return whether input and output of a call have so many examples at the place."""
    if isinstance(call, Meeting):
        return call.has_examples(place, size)
    if call.x is None or place.axis >= min(call.x.dim(), len(call.shape)):
        return False
    length = call.x.shape[place.axis]
    return length == call.shape[place.axis] and (length == size if place.is_plain else length % size == 0)


def bring_to_front(call: Call, place: Place, size: int) -> Call:
    """Return the call with the examples as the first axis of its input and its output's gradient."""
    if isinstance(call, Meeting):
        return call.apart_at(place, size)
    if place == FRONT:
        return call
    x, gradient = (move_examples_first(value, place, size) for value in call.pair)
    mean, spread = (None, None) if call.statistics is None else call.statistics
    if mean is None or spread is None:
        return replace(call, x=x, gradient=gradient)
    statistics = move_examples_first(mean, place, size), move_examples_first(spread, place, size)
    return replace(call, x=x, gradient=gradient, statistics=statistics)


def move_examples_first(values: Tensor, place: Place, size: int) -> Tensor:
    """Return values of which the first axis has the examples, from where they are; positions keep their order."""
    if place.is_plain:
        return values.movedim(place.axis, 0)
    rest = values.shape[place.axis] // size  # not `place.inner`: another batch may have more positions
    parts = (1, size, rest) if place.outer == 1 else (rest, size, 1)
    shape = (*values.shape[: place.axis], *parts, *values.shape[place.axis + 1 :])
    return values.reshape(shape).movedim(place.axis + 1, 0)
