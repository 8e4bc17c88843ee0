"""Rules for operations that look up, gather or scatter by index: where the examples are afterwards.

A rule returns None where examples could meet or move.

>>> import torch
>>> marks, x = Marks(size=4), torch.ones(4, 3)
>>> marks.put(x, 3)
>>> order = torch.tensor([1, 0, 3, 2])
>>> select = torch.ops.aten.index_select.default
>>> after_index_select(Operation(select, (x, 0, order), {}, x[order], marks))      # moves examples
>>> after_index_select(Operation(select, (x, 1, order[:2]), {}, x[:, :2], marks))
Place(axis=0, outer=1, inner=1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dpfed.training.engine.watch.layout_rules import after_alignment, after_broadcast
from dpfed.training.engine.watch.marks import COUNT, NONE, Marks, Place
from dpfed.training.engine.watch.operation import FRONT, Found, Operation


def after_embedding(operation: Operation) -> Found | None:
    """Locate the examples after a look-up in a table without examples, by numbers that have them."""
    mark = operation.marks.of(operation["indices"])
    return mark * int(operation["weight"].shape[1]) if mark > NONE and operation.is_clean("weight") else None


def after_embedding_bag(operation: Operation) -> Found | None:
    """Locate the examples after rows of a table were added up, as many rows for each example."""
    marks, numbers, weights = operation.marks, operation["indices"], operation.get("per_sample_weights")
    each = len(numbers) // marks.size
    if each * marks.size != len(numbers) or not each or marks.of(numbers) != each or operation["include_last_offset"]:
        return None
    is_kept = operation.is_clean("weight", "offsets") and (weights is None or _is_weighed(marks, weights, each))
    return FRONT if is_kept and torch.equal(operation["offsets"], torch.arange(0, len(numbers), each)) else None


def _is_weighed(marks: Marks, weights: Tensor, each: int) -> bool:
    """Return whether the words of each bag have weights of their own example, or the same for all examples."""
    return marks.of(weights) == each or (marks.of(weights) == NONE and marks.is_alike(weights, Place(0, 1, each)))


def after_gather(operation: Operation) -> Found | None:
    """Locate the examples after a gather or scatter, which moves numbers along one axis only."""
    marks = operation.marks
    parts = [part for name in ("self", "index", "src") if isinstance(part := operation.get(name), Tensor)]
    places = {marks.place(part) for part in parts if marks.of(part) > NONE}
    place = places.pop()
    if places or place is None or place.axis == operation.axis() or not place.is_plain:
        return None
    return place if all(_spans(marks, part, place) for part in parts) else None


def _spans(marks: Marks, part: Tensor, place: Place) -> bool:
    """Return whether a part has all examples at the place, or is the same for all of them."""
    return part.shape[place.axis] == marks.size and (marks.of(part) > NONE or marks.is_alike(part, place))


def after_index_select(operation: Operation) -> Found | None:
    """Locate the examples after whole slices along one axis were chosen by number."""
    place = operation.place("self")
    is_kept = place is not None and operation.axis() != place.axis and operation.is_clean("index")
    return place if is_kept else None


def after_index(operation: Operation) -> Found | None:
    """Locate the examples after advanced indexing.

    That is x[:, numbers], table[numbers of each example] or x[arange(B), numbers of each example].
    """
    indices, place = operation["indices"], operation.place("self")
    given = [index for index in indices if isinstance(index, Tensor)]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return None
    if place is None:
        return _after_table_index(operation, given)
    if place != FRONT:
        return None
    if indices[0] is None:
        first = next(axis for axis, index in enumerate(indices) if index is not None)
        is_one_block = all(isinstance(index, Tensor) for index in indices[first : first + len(given)])
        return FRONT if is_one_block and operation.is_clean("indices") else None
    is_one_block = all(isinstance(index, Tensor) for index in indices[: len(given)])
    return FRONT if is_one_block and _counts(operation.marks, given[0], given[1:]) else None


def _after_table_index(operation: Operation, given: list[Tensor]) -> Found | None:
    """Return the mark of table[numbers] for a table without examples and one tensor of numbers."""
    if len(given) != 1 or not isinstance(operation["indices"][0], Tensor) or not operation.is_clean("self"):
        return None
    mark = operation.marks.of(given[0])
    return mark * math.prod(operation.own.shape[1:]) if mark > NONE else None


def _counts(marks: Marks, own: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether `own` is arange(B) and the numbers beside it belong to the same example."""
    if marks.of(own) != COUNT or own.shape[:1] != (marks.size,) or own.numel() != marks.size:
        return False
    shape = torch.broadcast_shapes(own.shape, *[other.shape for other in others])  # type: ignore[no-untyped-call]
    is_counting = torch.equal(own.flatten(), torch.arange(marks.size, dtype=own.dtype))
    return is_counting and len(shape) == own.dim() and all(_stays(marks, other, shape) for other in others)


def _stays(marks: Marks, other: Tensor, shape: Sequence[int]) -> bool:
    """Return whether an index, broadcast to the shape, has each example's numbers in its own row."""
    if marks.of(other) > NONE:
        return after_broadcast(marks, other, shape) == FRONT
    return marks.is_alike(other, FRONT.shift(other.dim() - len(shape)))


def chooses_shape(operation: Operation) -> bool:
    """Return whether values decide the shape of an operation's result: a mask, or how often to repeat."""
    masks = operation.get("indices") if operation.kind == "index" else None
    is_mask = isinstance(masks, list | tuple) and any(
        isinstance(mask, Tensor) and mask.dtype in (torch.bool, torch.uint8) for mask in masks
    )
    return is_mask or operation.kind in ("repeat_interleave", "to_sparse", "_to_sparse")


def after_masked_fill(operation: Operation) -> Found | None:
    """Locate the examples after one value was written wherever a mask of the tensor's shape is true."""
    masks, value = operation["indices"], operation["values"]
    is_fill = len(masks) == 1 and isinstance(masks[0], Tensor) and masks[0].dtype == torch.bool and not value.dim()
    if not is_fill or not operation.is_clean("values") or masks[0].shape != operation.own.shape:
        return None
    return after_alignment(operation.marks, [operation.own, masks[0]], operation.shape)
