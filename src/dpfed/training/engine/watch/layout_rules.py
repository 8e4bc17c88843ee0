"""Rules for operations that compute place by place, along axes, or move whole axes: where the examples are afterwards.

A rule returns None where examples could meet or move.

>>> import torch
>>> marks, x = Marks(size=4), torch.ones(4, 3)
>>> marks.put(x, 3)
>>> after_permute(Operation(torch.ops.aten.t.default, (x,), {}, x.t(), marks))
Place(axis=1, outer=1, inner=1)
>>> after_flip = after_mixing_along("dims")
>>> after_flip(Operation(torch.ops.aten.flip.default, (x, [0]), {}, x.flip(0), marks))      # of the examples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from dpfed.training.engine.watch.marks import NONE, Marks, Place
from dpfed.training.engine.watch.operation import FRONT, Found, Operation


def after_pointwise(operation: Operation) -> Found | None:
    """Locate the examples after an operation that computes each number from those at its own place, broadcast."""
    return after_alignment(operation.marks, operation.tensors, operation.shape)


def after_alignment(marks: Marks, tensors: Sequence[Tensor], shape: Sequence[int]) -> Found | None:
    """Locate the examples after tensors were broadcast to the shape and combined number by number."""
    marked = [tensor for tensor in tensors if marks.of(tensor) > NONE]
    kinds = {marks.of(tensor) for tensor in marked}
    is_alone = all(tensor.numel() == 1 for tensor in tensors if marks.of(tensor) <= NONE)
    if is_alone and len(kinds) == 1 and all(tensor.shape == shape for tensor in marked):
        return kinds.pop()  # also where examples are at no single axis
    places = {after_broadcast(marks, tensor, shape) for tensor in marked}
    place = places.pop()
    if places or place is None:
        return None
    others = (tensor for tensor in tensors if marks.of(tensor) <= NONE)
    return place if all(marks.is_alike(other, place.shift(other.dim() - len(shape))) for other in others) else None


def after_broadcast(marks: Marks, tensor: Tensor, shape: Sequence[int]) -> Place | None:
    """Locate the tensor's examples after it was broadcast to the shape."""
    place = marks.place(tensor)
    if place is None:
        return None
    moved = place.shift(len(shape) - tensor.dim())
    return moved if shape[moved.axis] == tensor.shape[place.axis] else None


def after_reshape(operation: Operation) -> Found | None:
    """Locate the examples after a reshape or copy, which keeps the order of numbers unless their count changes."""
    return operation.marks.of(operation.own) if math.prod(operation.shape) == operation.own.numel() else None


def after_copy(operation: Operation) -> Found | None:
    """Locate the examples after numbers were written over those of another tensor, which keeps its own examples."""
    marks, source = operation.marks, operation["src"]
    if marks.of(source) > NONE:
        return after_alignment(marks, [source], operation.shape)
    return after_alignment(marks, [source, operation.own], operation.shape)


def after_permute(operation: Operation) -> Found | None:
    """Locate the examples after axes changed places."""
    place, count = operation.marks.place(operation.own), operation.own.dim()
    if place is None:
        return None
    axes = list(range(count))
    if operation.kind == "permute":
        axes = [axis % count for axis in operation["dims"]]
    elif count > 1:
        one, two = (0, 1) if operation.kind == "t" else (operation.axis("dim0"), operation.axis("dim1"))
        axes[one], axes[two] = axes[two], axes[one]
    return place.at(axes.index(place.axis))


def after_expand(operation: Operation) -> Found | None:
    """Locate the examples after axes of length one were expanded."""
    return after_broadcast(operation.marks, operation.own, operation.shape)


def after_repeat(operation: Operation) -> Found | None:
    """Locate the examples after the tensor was tiled; not if that repeats the examples."""
    place = operation.marks.place(operation.own)
    if place is None:
        return None
    moved = place.shift(len(operation.shape) - operation.own.dim())
    return moved if operation["repeats"][moved.axis] == 1 else None


def after_reduce(operation: Operation) -> Found | None:
    """Locate the examples after some axes were reduced (sum, mean, max); not if examples were."""
    if operation.get("other") is not None:  # the larger of two tensors
        return after_pointwise(operation)
    place, gone = operation.marks.place(operation.own), operation.axes("dim")
    if place is None or gone is None or place.axis in gone:
        return None
    return place.shift(0 if operation.get("keepdim") else -sum(axis < place.axis for axis in gone))


def after_mixing_along(name: str) -> Callable[[Operation], Found | None]:
    """Return the rule for operations that mix or move numbers along the axes in the argument with that name."""

    def rule(operation: Operation) -> Found | None:
        place, met = operation.marks.place(operation.own), operation.axes(name)
        return None if place is None or met is None or place.axis in met else place

    return rule


def after_mixing_last(axes: int, *clean: str) -> Callable[[Operation], Found | None]:
    """Return the rule for operations that mix the last axes; `clean` names arguments without anything of examples."""

    def rule(operation: Operation) -> Found | None:
        place = operation.marks.place(operation.own)
        is_outside = place is not None and place.axis < operation.own.dim() - axes
        return place if is_outside and operation.is_clean(*clean) else None

    return rule


def after_layer_norm(operation: Operation) -> Found | None:
    """Locate the examples after the last axes were normalised together (LayerNorm, RMSNorm)."""
    return after_mixing_last(len(operation["normalized_shape"]), "weight", "bias")(operation)


def after_batch_first(*names: str, clean: Sequence[str] = ()) -> Callable[[Operation], Found | None]:
    """Return the rule for operations that have the examples as first axis of these arguments and of the output.

    An argument without examples must be the same for all; `clean` names arguments without anything of examples.
    """

    def rule(operation: Operation) -> Found | None:
        values = [value for value in map(operation.get, names) if isinstance(value, Tensor)]
        is_kept = all(_is_in_step(operation.marks, value) for value in values) and operation.is_clean(*clean)
        return FRONT if is_kept and not _is_summed_up(operation) else None

    return rule


def _is_in_step(marks: Marks, value: Tensor) -> bool:
    """Return whether the first axis of a value has the examples, or is the same for all of them."""
    if marks.of(value) > NONE:
        return marks.is_in_front(value)
    return value.dim() > 0 and marks.is_alike(value, FRONT)


def _is_summed_up(operation: Operation) -> bool:
    """Return whether the operation is a loss that adds up over examples."""
    return operation.get("reduction") not in (None, 0)


def after_loss(operation: Operation) -> Found | None:
    """Locate the examples after a loss of each number; not if it adds them up."""
    return None if _is_summed_up(operation) else after_pointwise(operation)


def after_group_norm(operation: Operation) -> Found | None:
    """Locate the examples after groups of channels were normalised, each example on its own."""
    is_so = operation["N"] == operation.marks.size
    return after_batch_first("input", clean=("weight", "bias"))(operation) if is_so else None


def after_slice(operation: Operation) -> Found | None:
    """Locate the examples after a part of one axis was taken; not if that leaves out examples."""
    place, axis = operation.marks.place(operation.own), operation.axis()
    is_whole = operation.shape[axis] == operation.own.shape[axis]
    return place if place is not None and (axis != place.axis or is_whole) else None


def after_select(operation: Operation) -> Found | None:
    """Locate the examples after one index of an axis was taken, or each of them on its own."""
    place, axis = operation.marks.place(operation.own), operation.axis()
    return None if place is None or axis == place.axis else place.shift(-(axis < place.axis))


def after_concat(operation: Operation) -> Found | None:
    """Locate the examples after tensors were joined along one axis (cat), or along a new one (stack)."""
    marks, is_new = operation.marks, operation.kind == "stack"
    parts = [part for part in operation["tensors"] if part.dim() != 1 or part.numel()]
    axis = operation["dim"] % len(operation.shape)
    places = {marks.place(part) for part in parts if marks.of(part) > NONE}
    place = places.pop()
    if places or place is None or (axis == place.axis and not is_new):
        return None
    are_alike = all(marks.is_alike(part, place) for part in parts if marks.of(part) <= NONE)
    return place.shift(int(is_new and axis <= place.axis)) if are_alike else None


def after_pad(operation: Operation) -> Found | None:
    """Locate the examples after padding; not if their own axis was padded."""
    place = operation.marks.place(operation.own)
    if place is None:
        return None
    start = 2 * (operation.own.dim() - 1 - place.axis)
    return None if any(operation["pad"][start : start + 2]) else place


def after_batch_norm(operation: Operation) -> Found | None:
    """Locate the examples after each channel was normalised over all other axes.

    Examples stay apart where they are the channels (InstanceNorm), or in eval mode.
    """
    place = operation.place("input")
    names = ("weight", "bias", "running_mean", "running_var")
    if place is None or not operation.is_clean(*names):
        return None
    if operation.get("training") is False or operation.kind.endswith("no_training"):
        return place if place == FRONT else None
    values = [value for name in names if isinstance(value := operation.get(name), Tensor)]
    return place if place.axis == 1 and all(operation.marks.is_alike(value, place.at(0)) for value in values) else None


def after_rnn(operation: Operation) -> Found | None:
    """Locate the examples after a recurrent layer over (time, example, feature)."""
    is_kept = operation.place("input") == Place(1) and operation.is_clean(*(f"weight{n}" for n in range(4)))
    return (
        Place(1) if is_kept and all(_is_in_step(operation.marks, operation[name]) for name in ("hx_", "cx_")) else None
    )


def after_complex_view(operation: Operation) -> Found | None:
    """Locate the examples after complex numbers became pairs, or pairs complex numbers."""
    return operation.marks.place(operation.own)
