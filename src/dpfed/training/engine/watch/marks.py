"""Where in a tensor the examples of a batch are: the *mark* that every tensor of a watched forward pass carries.

A mark is the step, in elements and in logical (row-major) order, from one example to the next: element n of a tensor
with mark m belongs to example (n // m) mod B. Reshaping keeps that order, so it keeps the mark; a transposition moves
the axis, and the mark with it. Other tensors have one of four marks that are not positive.

>>> place = place_of((5, 7, 3), mark=21, size=5)
>>> place, mark_of((7, 5, 3), Place(axis=1))
(Place(axis=0, outer=1, inner=1), 3)
>>> place_of((35, 3), mark=21, size=5)      # a view with examples and positions in one axis
Place(axis=0, outer=1, inner=7)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

NONE = 0  # nothing of any example: parameters, constants, positions
MIXED = -1  # something of several examples, or of one at an unknown place
NOISE = -2  # independent random numbers, the same whatever the place
COUNT = -3  # 0, 1, 2, … as arange makes them
_UNSEEN = -4
AGREEMENT = 1e-5  # how far rows that must be the same may be apart by the rounding of a matrix product


@dataclass(frozen=True, slots=True)
class Place:
    """The axis that holds the examples: its index is (outer, example, inner) in one number."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the axis holds the examples and nothing else."""
        return self.outer == self.inner == 1

    def at(self, axis: int) -> Place:
        """Return the same place in another axis."""
        return replace(self, axis=axis)

    def shift(self, axes: int) -> Place:
        """Return the place shifted to the right by so many axes."""
        return self.at(self.axis + axes)


class Role(NamedTuple):
    """What a MIXED tensor is to a sort of the examples (`packing_rules`), with the mark that sorted rows have."""

    kind: str
    sort: object
    mark: int = NONE


def place_of(shape: Sequence[int], mark: int, size: int) -> Place | None:
    """Return the axis of that shape in which a mark puts `size` examples; None where no single axis holds them."""
    behind = 1
    for axis in range(len(shape) - 1, -1, -1):
        length = shape[axis] * behind
        if mark % behind == 0 and length % (mark * size) == 0:
            return Place(axis, length // (mark * size), mark // behind)
        behind = length
    return None


def mark_of(shape: Sequence[int], place: Place) -> int:
    """Return the mark of a tensor of that shape with the examples at the place."""
    return place.inner * math.prod(shape[place.axis + 1 :])


class Marks:
    """The marks of all tensors of one pass over `size` examples, and of memory that was written in place."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._marks = WeakTensorKeyDictionary()
        self._roles = WeakTensorKeyDictionary()  # with the version of the tensor that has it
        # By storage: the step in memory between examples, or MIXED. Kept alive, so that no address is used again.
        self._written: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._memory: dict[int, torch.UntypedStorage] = {}  # where examples are, by address; kept alive as well

    def of(self, tensor: Tensor) -> int:
        """Return the tensor's mark, also where its memory was written through another tensor.

        A tensor that the watch has not seen being made, on memory that has examples, may show them in any order.
        """
        mark: int = self._marks.get(tensor, _UNSEEN)  # type: ignore[no-untyped-call]
        if mark == _UNSEEN:
            mark = MIXED if address(tensor) in self._memory else NONE
        if not self._written:
            return mark
        entry = self._written.get(tensor.untyped_storage()._cdata)
        if entry is None or mark == MIXED:
            return mark
        if entry[1] == NONE:  # constants were written: what was random, or counted, may not be any more
            return mark if mark > NONE else NONE
        found = self._find_mark(tensor, entry[1]) if entry[1] > NONE else MIXED
        return found if mark in (NONE, NOISE, COUNT, found) else MIXED

    @property
    def memory(self) -> list[torch.UntypedStorage]:
        """The memory that has something of examples, or had it."""
        return [*self._memory.values(), *(storage for storage, step in self._written.values() if step != NONE)]

    def mark_mixed(self, memory: Iterable[torch.UntypedStorage]) -> None:
        """Treat tensors on this memory that the watch has not seen being made as a mixture of examples."""
        self._memory |= {storage.data_ptr(): storage for storage in memory}

    def place(self, tensor: Tensor) -> Place | None:
        """Return where the examples are, if the tensor has any at one axis."""
        mark = self.of(tensor)
        return place_of(tensor.shape, mark, self.size) if mark > NONE else None

    def is_in_front(self, tensor: Tensor) -> bool:
        """Return whether the first axis holds the examples and nothing else."""
        place = self.place(tensor)
        return place is not None and place.axis == 0 and place.is_plain

    def put(self, tensor: Tensor, mark: int) -> None:
        """Mark a new tensor."""
        self._marks[tensor] = mark
        if (mark > NONE or mark == MIXED) and (place := address(tensor)) is not None:
            self._memory[place] = tensor.untyped_storage()

    def give_role(self, tensor: Tensor, role: Role, *, is_written: bool = False) -> None:
        """Note what a tensor is to a sort, until somebody writes into it; torch counts a write when it is done."""
        self._roles[tensor] = (role, tensor._version + is_written)

    def role(self, tensor: Tensor) -> Role | None:
        """Return what a tensor is to a sort of the examples, if it is anything."""
        if not self._roles.data:
            return None
        role, version = self._roles.get(tensor, (None, 0))  # type: ignore[no-untyped-call]
        return role if version == tensor._version else None

    def mark_repeated(self, tensor: Tensor, place: Place) -> None:
        """Mark a tensor that was repeated once per example as having a row for each; it may be a parameter's memory."""
        self._marks[tensor] = mark_of(tensor.shape, place)

    def overwrite(self, tensor: Tensor, mark: int) -> None:
        """Mark a tensor that is about to be written in place, and with it all that shares its memory."""
        before = self.of(tensor)
        self._marks[tensor] = mark
        if mark == NOISE or (mark == before and mark != MIXED):
            return
        storage = tensor.untyped_storage()
        _, earlier = self._written.get(storage._cdata, (None, NONE))
        if mark in (NONE, COUNT):
            self._written.setdefault(storage._cdata, (storage, NONE))
            return
        step = self._find_step(tensor, mark)
        is_first = earlier == NONE and (
            self._find_step(tensor, before) == step if before > NONE else self._is_laid_out(tensor, step)
        )
        self._written[storage._cdata] = (storage, step if is_first or step == earlier else MIXED)

    def _find_step(self, tensor: Tensor, mark: int) -> int:
        """Return the step in memory from one example to the next, MIXED if there is none."""
        place = place_of(tensor.shape, mark, self.size) if mark > NONE else None
        return MIXED if place is None else tensor.stride(place.axis) * place.inner

    def _is_laid_out(self, tensor: Tensor, step: int) -> bool:
        """Return whether all of a tensor's memory, before examples are written, is the same for each of them."""
        whole = tensor.detach().new_empty(0).set_(tensor.untyped_storage())
        if step <= NONE or whole.numel() % (step * self.size):
            return False
        return self.is_alike(whole, Place(0, whole.numel() // (step * self.size), step))

    def is_alike(self, tensor: Tensor, place: Place) -> bool:
        """Return whether a tensor without examples has the same values for each example at the place."""
        if place.axis < 0 or tensor.shape[place.axis] == 1 or self.of(tensor) == NOISE:
            return True
        if tensor.stride(place.axis) == 0:
            return True
        if tensor.shape[place.axis] != place.outer * self.size * place.inner:
            return False
        split = (place.outer, self.size, place.inner)
        parts = tensor.detach().reshape(*tensor.shape[: place.axis], *split, *tensor.shape[place.axis + 1 :])
        first = parts.narrow(place.axis + 1, 0, 1).expand_as(parts)
        if not tensor.is_floating_point():
            return torch.equal(parts, first)
        return torch.allclose(parts, first, rtol=AGREEMENT, atol=0.0)

    def _find_mark(self, tensor: Tensor, step: int) -> int:
        """Return the mark of a tensor whose examples are a step apart in memory, MIXED if no axis has that step."""
        for axis, stride in enumerate(tensor.stride()):
            if tensor.shape[axis] > 1 and stride > 0 and step % stride == 0:
                inner = step // stride
                if tensor.shape[axis] % (inner * self.size) == 0:
                    outer = tensor.shape[axis] // (inner * self.size)
                    return mark_of(tensor.shape, Place(axis, outer, inner))
        return MIXED


def mark_in(tensor: Tensor, found: int | Place, size: int) -> int:
    """Return the mark of a tensor with `size` examples at the place, MIXED if they cannot be there; a mark as it is."""
    if isinstance(found, int):
        return found
    is_there = found.axis < tensor.dim() and tensor.shape[found.axis] == size * found.outer * found.inner
    return mark_of(tensor.shape, found) if is_there else MIXED


def address(tensor: Tensor) -> int | None:
    """Return where the tensor's memory begins, None if it has none."""
    return (tensor.untyped_storage().data_ptr() or None) if tensor.layout is torch.strided else None
