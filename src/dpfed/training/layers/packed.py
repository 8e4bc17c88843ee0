"""Packed sequences as padded ones, whose first axes are positions and examples, and padded ones as packed again.

torch packs all positions of all examples into one axis, sorted by length, whose size depends on the records drawn. A
twin of a recurrent layer (`recurrent`) unpacks them: as many positions as the tensor had that was packed, which is no
secret, and the examples where they were before they were sorted. Each move is one operation of a library of our own, so
that a watch of the pass (`watch.packing_rules`) knows what it does, and one node in autograd's graph, whatever the
lengths are.

>>> import torch
>>> from torch.nn.utils.rnn import pack_padded_sequence
>>> given = pack_padded_sequence(torch.tensor([[1, 0, 0], [2, 3, 0]]), torch.tensor([1, 2]), True, False)
>>> places, lengths = torch.ops.dpfed.places(*given[1:])
>>> torch.ops.dpfed.unpack(given.data, places, 3, 2).tolist(), lengths.tolist()      # positions first
([[1, 2], [0, 3], [0, 0]], [1, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch.autograd.function import Function, once_differentiable
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakTensorKeyDictionary

# How many positions the tensor had that was packed, by the packed numbers.
_KNOWN = WeakTensorKeyDictionary()
_LIBRARY = torch.library.Library("dpfed", "DEF")  # type: ignore[no-untyped-call]


class DrawnSize(int):
    """The length of the longest sequence of a batch: it depends on the records drawn, and a watch says so."""


# --- the moves ---


def _find_places(sizes: Tensor, order: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each packed row belongs, in an axis of (positions, examples), and the length of each example.

    `sizes` says how many examples each position has; `order` gives them from the longest on, and `inverse` undoes it.
    """
    count = len(order)
    is_there = torch.arange(count, device=order.device) < sizes.to(order.device).unsqueeze(1)
    starts = torch.arange(len(sizes), device=order.device).unsqueeze(1) * count
    return (starts + order)[is_there], is_there.sum(0)[inverse]


def _unpack(data: Tensor, places: Tensor, length: int, size: int) -> Tensor:
    """Return packed numbers as (position, example, ·), with zeros after the end of each example."""
    room = data.new_zeros(length * size, *data.shape[1:])
    return room.index_copy_(0, places, data).view(length, size, *data.shape[1:])


def _pack(values: Tensor, places: Tensor) -> Tensor:
    """Return the numbers of (position, example, ·) that are not padding, in packed order."""
    return values.flatten(0, 1).index_select(0, places)


def _turn(values: Tensor, lengths: Tensor) -> Tensor:
    """Return (position, example, ·) with the positions of each example in reverse; padding stays where it is."""
    length, size = values.shape[:2]
    steps = torch.arange(length, device=lengths.device).unsqueeze(1)
    turned = torch.where(steps < lengths, lengths - 1 - steps, steps)
    rows = turned * size + torch.arange(size, device=lengths.device)
    return values.flatten(0, 1).index_select(0, rows.flatten()).view_as(values)


def _pad(data: Tensor, sizes: Tensor, is_batch_first: bool, value: float, length: int) -> tuple[Tensor, Tensor]:
    """Return what torch's ``_pad_packed_sequence`` does: padded sequences in sorted order, and their lengths."""
    places, lengths = _find_sorted_places(sizes)
    room = data.new_full((length * len(lengths), *data.shape[1:]), value)
    room = room.index_copy_(0, places.to(data.device), data).view(length, len(lengths), *data.shape[1:])
    return room.transpose(0, 1) if is_batch_first else room, lengths


def _find_sorted_places(sizes: Tensor) -> tuple[Tensor, Tensor]:
    order = torch.arange(int(sizes[0]))
    return _find_places(sizes, order, order)


_MOVES: Mapping[str, Callable[..., Any]] = {
    "places(Tensor sizes, Tensor order, Tensor inverse) -> (Tensor, Tensor)": _find_places,
    "unpack(Tensor data, Tensor places, int length, int N) -> Tensor": _unpack,
    "pack(Tensor values, Tensor places) -> Tensor": _pack,
    "turn(Tensor values, Tensor lengths) -> Tensor": _turn,
    "pad(Tensor data, Tensor sizes, bool batch_first, float value, int length) -> (Tensor, Tensor)": _pad,
}
for _schema, _move in _MOVES.items():
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_schema.partition("(")[0], _move, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]


class Unpack(Function):
    """An autograd function: packed numbers as (position, example, ·)."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, places: Tensor, length: int, size: int) -> Tensor:
        """Return them, with zeros after the end of each example."""
        ctx.save_for_backward(places)
        found: Tensor = torch.ops.dpfed.unpack(data, places, length, size)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the packed numbers."""
        return _pack(gradients[0], *ctx.saved_tensors), None, None, None


class Pack(Function):
    """An autograd function: (position, example, ·) without padding, in packed order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor) -> Tensor:
        """Return the packed numbers."""
        ctx.save_for_backward(places)
        ctx.axes = values.shape[:2]
        found: Tensor = torch.ops.dpfed.pack(values, places)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the padded numbers, zero at padding."""
        return _unpack(gradients[0], *ctx.saved_tensors, *ctx.axes), None


class Turn(Function):
    """An autograd function: the positions of each example in reverse."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, lengths: Tensor) -> Tensor:
        """Return the values, with padding where it was."""
        ctx.save_for_backward(lengths)
        found: Tensor = torch.ops.dpfed.turn(values, lengths)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient, turned back."""
        return _turn(gradients[0].contiguous(), *ctx.saved_tensors), None


class Pad(Function):
    """An autograd function: torch's ``_pad_packed_sequence`` as one node, where torch has one for each length."""

    @staticmethod
    def forward(
        ctx: Any, data: Tensor, sizes: Tensor, is_batch_first: bool, value: float, length: int
    ) -> tuple[Tensor, Tensor]:
        """Return padded sequences in sorted order, and their lengths."""
        ctx.save_for_backward(sizes)
        ctx.is_batch_first = is_batch_first
        padded, lengths = torch.ops.dpfed.pad(data, sizes, is_batch_first, value, length)
        ctx.mark_non_differentiable(lengths)
        return padded, lengths

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the packed numbers."""
        places, _ = _find_sorted_places(*ctx.saved_tensors)
        gradient = gradients[0].transpose(0, 1) if ctx.is_batch_first else gradients[0]
        return _pack(gradient, places.to(gradient.device)), None, None, None, None


# --- a packed sequence that a layer is given ---


class Unpacked:
    """A packed sequence as (position, example, ·), with what is needed to run a layer on it and to pack the result."""

    def __init__(self, given: PackedSequence, length: int) -> None:
        self._places, self.lengths = torch.ops.dpfed.places(*given[1:])
        count = len(self.lengths)
        self.values: Tensor = Unpack.apply(given.data, self._places, length, count)  # type: ignore[no-untyped-call]
        steps = torch.arange(length, device=self.lengths.device).unsqueeze(1)
        self.padding = (steps >= self.lengths).unsqueeze(2)
        self.last = (self.lengths - 1).view(1, count, 1)

    def turn(self, values: Tensor) -> Tensor:
        """Return the values with the positions of each example in reverse."""
        found: Tensor = Turn.apply(values, self.lengths)  # type: ignore[no-untyped-call]
        return found

    def take_last(self, values: Tensor) -> Tensor:
        """Return the value of each example at its own last position."""
        return take_last(values, self.last)

    def pack(self, values: Tensor) -> Tensor:
        """Return the values packed as the given ones are."""
        data: Tensor = Pack.apply(values, self._places)  # type: ignore[no-untyped-call]
        _KNOWN[data] = len(values)
        return data


def take_last(values: Tensor, last: Tensor) -> Tensor:
    """Return the values (position, example, ·) at one position of each example."""
    return values.gather(0, last.expand(1, values.shape[1], values.shape[2])).squeeze(0)


def unpack(given: PackedSequence) -> Unpacked | None:
    """Unpack a sequence that torch packed and sorted itself; None for another one.

    The order of one that was sorted before is nowhere in it, so its examples would not be where they are in the batch.
    """
    length = None if _is_recomputed() else _KNOWN.get(given.data)  # type: ignore[no-untyped-call]
    if length is None or given.sorted_indices is None or given.data.dim() != 2:
        return None
    return Unpacked(given, length)


# --- torch's own functions, while a pass is recorded ---


def _is_recomputed() -> bool:
    """Return whether the pass runs again in the backward pass (torch.utils.checkpoint), where none of this is done."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _pack_known(values: Tensor, lengths: Tensor, is_batch_first: bool) -> tuple[Tensor, Tensor]:
    """Pack as torch does, and remember how many positions there were."""
    data, sizes = torch._VF._pack_padded_sequence(values, lengths, is_batch_first)
    with DisableTorchFunction():
        if not torch._C._functorch.peek_interpreter_stack():
            _KNOWN[data] = values.shape[1 if is_batch_first else 0]
    return data, sizes


def _pad_known(data: Tensor, sizes: Tensor, is_batch_first: bool, value: float, length: int) -> tuple[Tensor, Tensor]:
    """Pad as torch does; by one operation where the packed numbers and the length of the result are known."""
    with DisableTorchFunction():
        is_known = data in _KNOWN and not isinstance(length, DrawnSize) and not _is_recomputed()
        if is_known and length >= len(sizes):
            found: tuple[Tensor, Tensor] = Pad.apply(data, sizes, is_batch_first, float(value), length)  # type: ignore[no-untyped-call]
            return found
    return torch._VF._pad_packed_sequence(data, sizes, is_batch_first, value, length)


FAST: Mapping[Any, Callable[..., Any]] = {
    torch._VF._pack_padded_sequence: _pack_known,
    torch._VF._pad_packed_sequence: _pad_known,
}
