"""Rules for products of tensors (matrices, batches of matrices, attention): where the examples are afterwards.

A rule returns None where examples could meet or move.

>>> import torch
>>> from dpfed.training.engine.watch.marks import Marks
>>> marks, x = Marks(size=4), torch.ones(4, 3)
>>> marks.put(x, 3)
>>> multiply = after_matmul("self", "mat2")
>>> multiply(Operation(torch.ops.aten.mm.default, (x, torch.ones(3, 2)), {}, torch.ones(4, 2), marks))
Place(axis=0, outer=1, inner=1)
>>> multiply(Operation(torch.ops.aten.mm.default, (torch.ones(2, 4), x), {}, torch.ones(2, 3), marks))  # sums examples
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dpfed.training.engine.watch.layout_rules import after_batch_first, after_broadcast, after_mixing_last
from dpfed.training.engine.watch.marks import NONE, Place
from dpfed.training.engine.watch.operation import FRONT, Found, Operation


def after_matmul(left: str, right: str, added: str | None = None) -> Callable[[Operation], Found | None]:
    """Return the rule for a product of matrices, to which another tensor may be added."""

    def rule(operation: Operation) -> Found | None:
        found = _after_product(operation, left, right)
        extra = operation.get(added) if added else None
        if not isinstance(extra, Tensor):
            return found
        if found is None:
            return _after_adding_product(operation, left, right, extra)
        return found if _can_add(operation, found, extra) else None

    return rule


def _after_product(operation: Operation, left: str, right: str) -> Place | None:
    """Locate the examples after a product: rows of the left factor, or columns of the right one, if these had them."""
    one, two = operation.place(left), operation.place(right)
    if one is not None and operation.is_clean(right):
        return one if one.axis < operation[left].dim() - 1 else None
    is_column = two is not None and operation[right].dim() > 1 and two.axis == operation[right].dim() - 1
    return two.at(len(operation.shape) - 1) if two is not None and is_column and operation.is_clean(left) else None


def _after_adding_product(operation: Operation, left: str, right: str, extra: Tensor) -> Place | None:
    """Locate the examples of a tensor to which a product without examples was added, the same for each of them."""
    place = after_broadcast(operation.marks, extra, operation.shape)
    if place is None or len(operation.shape) != 2 or not operation.is_clean(left, right):
        return None
    return place if operation.marks.is_alike(operation[right if place.axis else left], place) else None


def _can_add(operation: Operation, place: Place, extra: Tensor) -> bool:
    """Return whether a tensor can be added to a product without moving or mixing the examples at the place."""
    marks, shape = operation.marks, operation.shape
    if marks.of(extra) > NONE:
        return after_broadcast(marks, extra, shape) == place
    return marks.is_alike(extra, place.shift(extra.dim() - len(shape)))


def after_batched_matmul(left: str, right: str, added: str | None = None) -> Callable[[Operation], Found | None]:
    """Return the rule for a batch of products of matrices, one for each index of the first axis."""
    apart = after_matmul(left, right, added)

    def rule(operation: Operation) -> Found | None:
        marks, factors = operation.marks, (operation[left], operation[right])
        places = {place for factor in factors if (place := marks.place(factor)) is not None}
        first = next(iter(places), None)
        if first is None or first.axis:
            return apart(operation)
        are_in_step = len(places) == 1 and all(
            marks.of(factor) > NONE or marks.is_alike(factor, first) for factor in factors
        )
        extra = operation.get(added) if added else None
        return first if are_in_step and (extra is None or _can_add(operation, first, extra)) else None

    return rule


def after_linear(operation: Operation) -> Found | None:
    """Locate the examples after a Linear over the last axis."""
    return after_mixing_last(1, "weight", "bias")(operation)


def after_bilinear(operation: Operation) -> Found | None:
    """Locate the examples after a bilinear layer, which multiplies both of an example's vectors by one table."""
    places = {operation.place(name) for name in ("i1", "i3") if operation.marks.of(operation[name]) > NONE}
    place = places.pop() if places else None
    is_kept = operation["expand2"] == [0] and 0 not in (
        *operation["expand1"],
        *operation["expand3"],
        *operation["sumdim"],
    )
    if places or place is None or place.axis or not is_kept or not operation.is_clean("i2"):
        return None
    others = [operation[name] for name in ("i1", "i3") if operation.marks.of(operation[name]) <= NONE]
    return place if all(operation.marks.is_alike(other, place) for other in others) else None


def after_cdist(operation: Operation) -> Found | None:
    """Locate the examples after distances between all points of each; without their own axis, examples would meet."""
    return after_batch_first("x1", "x2")(operation) if operation["x1"].dim() == operation["x2"].dim() == 3 else None


def after_attention(operation: Operation) -> Found | None:
    """Locate the examples after attention over (example, head, position, feature), with a mask that is broadcast."""
    mask = operation.get("attn_mask")
    is_kept = mask is None or _can_add(operation, FRONT, mask)
    return after_batch_first("query", "key", "value")(operation) if is_kept else None
