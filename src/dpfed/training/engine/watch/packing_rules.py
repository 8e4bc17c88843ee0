"""Rules for packed sequences: where the examples are while they are sorted by length and lie in one axis.

Sorted examples have no mark of their own (`marks`): for all other rules they are mixed. A *role* says besides which
sort has ordered them, so that what that sort has done can be undone, and nothing else: rows that were put into its
order, the packed numbers made of them, and the places at which they belong. The order itself is never read.

>>> import torch
>>> from dpfed.training.engine.watch.marks import Marks
>>> marks, lengths = Marks(size=3), torch.tensor([2, 1, 4])
>>> marks.put(lengths, 1)
>>> (_, keys), (_, order) = follow(Operation(torch.ops.aten.sort.default, (lengths, -1, True), {}, (), marks))
>>> keys.kind, order.kind, keys.sort is order.sort
('keys', 'order', True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dpfed.training.engine.watch.marks import COUNT, MIXED, NONE, Marks, Place, Role, mark_of, place_of
from dpfed.training.engine.watch.operation import FRONT, Found, Operation

Result = tuple[Found, Role | None]
MIDDLE = Place(1)


def follow(operation: Operation) -> list[Result] | None:
    """Return mark or place, and role, of each output of an operation on sorted or packed examples; None for others."""
    rule = RULES.get(operation.kind)
    return None if rule is None else rule(operation)


def has_drawn_shape(marks: Marks, tensors: Iterable[Tensor]) -> bool:
    """Return whether one of these tensors has a shape that depends on the lengths of the examples."""
    return any((role := marks.role(tensor)) is not None and role.kind in ("packed", "sizes") for tensor in tensors)


def _role(operation: Operation, name: str, *kinds: str) -> Role | None:
    """Return the role of an argument, if it is one of these kinds."""
    value = operation.get(name)
    role = operation.marks.role(value) if isinstance(value, Tensor) else None
    return role if role is not None and role.kind in kinds else None


def _are_of_one_sort(*roles: Role | None) -> bool:
    return all(role is not None and roles[0] is not None and role.sort is roles[0].sort for role in roles)


def _after_sort(operation: Operation) -> list[Result] | None:
    """Sort one whole number of each example, the largest first: a new order."""
    own = operation.own
    is_known = own.dim() == 1 and operation.marks.is_in_front(own) and not own.is_floating_point()
    if not is_known or operation.get("descending") is not True:
        return None
    sort = object()
    return [(MIXED, Role("keys", sort, 1)), (MIXED, Role("order", sort))]


def _after_index_select(operation: Operation) -> list[Result] | None:
    """Put rows into the order of a sort, or sorted rows back."""
    return _reorder(operation, operation.axis(), operation["index"])


def _after_index(operation: Operation) -> list[Result] | None:
    """Put sorted rows back by ``rows[inverse]``, or rows into the order of a sort by ``rows[order]``."""
    (first, *others) = operation["indices"]
    return _reorder(operation, 0, first) if isinstance(first, Tensor) and not others else None


def _reorder(operation: Operation, axis: int, index: Tensor) -> list[Result] | None:
    """Put rows into the order of a sort, or back if that sort has ordered them; only whole rows, along one axis."""
    marks, own, by = operation.marks, operation.own, operation.marks.role(index)
    rows = marks.role(own)
    if by is None:
        return None
    if by.kind == "order" and marks.place(own) == Place(axis):
        return [(MIXED, Role("rows", by.sort, marks.of(own)))]
    is_back = rows is not None and rows.kind in ("rows", "keys") and by.kind == "inverse" and rows.sort is by.sort
    if rows is None or not is_back or place_of(own.shape, rows.mark, marks.size) != Place(axis):
        return None
    return [(Place(axis), None)]


def _after_copy_to(operation: Operation) -> list[Result] | None:
    """Copy to another device what is something to a sort."""
    role = operation.marks.role(operation.own)
    return None if role is None or operation.output.dtype != operation.own.dtype else [(MIXED, role)]


def _after_scatter(operation: Operation) -> list[Result] | None:
    """Invert an order, as torch does: ``empty.scatter_(0, order, arange(B))``."""
    order, counted, size = _role(operation, "index", "order"), operation.get("src"), operation.marks.size
    if order is None or operation.own.shape != (size,) or operation.marks.of(operation.own) != NONE:
        return None
    is_count = isinstance(counted, Tensor) and operation.marks.of(counted) == COUNT and counted.shape == (size,)
    is_so = is_count and operation.get("reduce") is None
    if not is_so or not torch.equal(counted, torch.arange(size, dtype=counted.dtype, device=counted.device)):
        return None
    return [(MIXED, Role("inverse", order.sort))]


def _after_pack(operation: Operation) -> list[Result] | None:
    """Pack rows in the order of a sort, by the keys of that sort: only they are known to fall."""
    rows, keys = _role(operation, "input", "rows"), _role(operation, "lengths", "keys")
    if rows is None or not _are_of_one_sort(rows, keys):
        return None
    place = place_of(operation["input"].shape, rows.mark, operation.marks.size)
    if place != Place(0 if operation["batch_first"] else 1):
        return None
    return [(MIXED, Role("packed", rows.sort)), (MIXED, Role("sizes", rows.sort))]


def _after_places(operation: Operation) -> list[Result] | None:
    """Find where packed rows belong, and the length of each example."""
    sizes, inverse = _role(operation, "sizes", "sizes"), _role(operation, "inverse", "inverse")
    if sizes is None or not _are_of_one_sort(sizes, _role(operation, "order", "order"), inverse):
        return None
    return [(MIXED, Role("places", sizes.sort)), (FRONT, None)]


def _after_unpack(operation: Operation) -> list[Result] | None:
    """Bring packed rows back to where their examples were."""
    is_so = _are_of_one_sort(_role(operation, "data", "packed"), _role(operation, "places", "places"))
    return [(MIDDLE, None)] if is_so and operation["N"] == operation.marks.size else None


def _after_repack(operation: Operation) -> list[Result] | None:
    """Pack rows again, that are where the examples are."""
    places = _role(operation, "places", "places")
    if places is None or operation.place("values") != MIDDLE:
        return None
    return [(MIXED, Role("packed", places.sort))]


def _after_turn(operation: Operation) -> list[Result] | None:
    """Turn the positions of each example."""
    is_so = operation.place("values") == MIDDLE and operation.marks.is_in_front(operation["lengths"])
    return [(MIDDLE, None)] if is_so else None


def _after_pad(operation: Operation) -> list[Result] | None:
    """Pad packed rows to a length that is known, in sorted order."""
    data, sizes = _role(operation, "data", "packed"), _role(operation, "sizes", "sizes")
    if data is None or not _are_of_one_sort(data, sizes):
        return None
    mark = mark_of(operation.shape, FRONT if operation["batch_first"] else MIDDLE)
    return [(MIXED, Role("rows", data.sort, mark)), (MIXED, Role("rows", data.sort, 1))]


RULES: dict[str, Callable[[Any], list[Result] | None]] = {
    "sort": _after_sort,
    "index_select": _after_index_select,
    "index": _after_index,
    "_to_copy": _after_copy_to,
    "scatter": _after_scatter,
    "_pack_padded_sequence": _after_pack,
    "dpfed::places": _after_places,
    "dpfed::unpack": _after_unpack,
    "dpfed::pack": _after_repack,
    "dpfed::turn": _after_turn,
    "dpfed::pad": _after_pad,
}
