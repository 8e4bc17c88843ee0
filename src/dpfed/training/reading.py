"""Reading and collating of records, so that none affects another, nor stops the step it was drawn in.

A collate_fn sees many records at once: it pads them to the longest, widens all to the type of one, or fails for one
that cannot be stacked. Here each record has the form that it has alone, those of one form are put together, and one
that cannot be read or collated is left out, so that it counts as zero.

>>> import torch
>>> from torch.nn.utils.rnn import pad_sequence
>>> records = [torch.ones(2), torch.ones(3), torch.zeros(2), None]
>>> together = Collator(lambda some: pad_sequence(some, batch_first=True))
>>> [tuple(piece.values.shape) for piece in together(records)]
[(2, 2), (1, 3)]
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate, get_worker_info

from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import map_tensors, tensors_of
from dpfed.training.faults import STOPS, warnings_hidden
from dpfed.training.generators import pinned

_UNREAD = object()
_PLAIN = (str, bytes, int, float, type(None))
_WHOLE = range(-(2**63), 2**63)  # the whole numbers that torch knows


class MicroBatch(NamedTuple):
    """Collated records of one form, of which the first `drawn` were drawn; the others are padding.

    The form `is_usual` if the first record of the data has it.
    """

    values: Any
    drawn: int
    is_usual: bool = True


class Readable(Dataset[Any]):
    """A data set in which a record that cannot be read is left out of its batch, alone and silently."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Any:
        return self._read(number)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """Return the records with these numbers, read one by one: the data set's own __getitems__ may pad them."""
        with warnings_hidden():
            return [self._read(number) for number in numbers]

    def _read(self, number: int) -> Any:
        try:
            return self._records[number]
        except STOPS:
            raise
        except BaseException:
            with pinned():  # the random numbers with which the first record could be read
                self._records[0 if number else len(self) - 1]  # which fails as well if it is not the record's fault
            return _UNREAD


class Collator:
    """A collate_fn that makes micro-batches: each record is collated alone, and those of one form are joined.

    With `rows` every micro-batch has exactly that many: it is padded with copies of its first record, or, if there is
    none, of the `spare` one.
    """

    def __init__(self, collate: Callable[[Any], Any], *, rows: int = 0, spare: Any = None) -> None:
        self._collate = collate
        self._rows = rows
        self._spare = spare
        self._usual = self._find_usual_forms() if rows else ()

    def _find_usual_forms(self) -> tuple[Hashable, ...]:
        with pinned(), warnings_hidden(), suppress(Exception):
            return _form_of(self._spare, is_collated=False), _form_of(
                self._collate_alone(self._spare), is_collated=True
            )
        return ()

    def __call__(self, records: Sequence[Any]) -> list[MicroBatch]:
        """Return the micro-batches of these records."""
        with warnings_hidden():
            pieces = self._collate_all([record for record in records if record is not _UNREAD])
            if get_worker_info() is not None:
                pieces = [piece for piece in pieces if _can_be_sent(piece.values)]
            if pieces or not self._rows:
                return pieces
            return [piece._replace(drawn=0) for piece in self._collate_all([self._spare])]

    def _collate_all(self, records: list[Any]) -> list[MicroBatch]:
        if self._collate is not default_collate:
            return self._collate_each(records)
        pieces = []
        for group in _group_by_form(records, is_collated=False):
            try:  # which is what cutting and joining would give, and takes less time
                values = _detach(default_collate(self._fill(group)))
                pieces.append(MicroBatch(values, len(group), self._is_usual(group, is_collated=False)))
            except STOPS:
                raise
            except BaseException:
                pieces += self._collate_each(group)
        return pieces

    def _collate_each(self, records: list[Any]) -> list[MicroBatch]:
        """Return micro-batches of records that are collated one by one."""
        alone = [value for record in records if (value := self._collate_alone(record)) is not _UNREAD]
        pieces = []
        for group in _group_by_form(alone, is_collated=True):
            is_usual = self._is_usual(group, is_collated=True)
            try:
                pieces.append(MicroBatch(_join(self._fill(group)), len(group), is_usual))
            except _Unjoinable:
                pieces += [MicroBatch(value, 1, is_usual) for value in group]
        return pieces

    def _is_usual(self, group: list[Any], *, is_collated: bool) -> bool:
        return not self._usual or _form_of(group[0], is_collated=is_collated) in self._usual

    def _collate_alone(self, record: Any) -> Any:
        try:
            return map_tensors(self._collate([record]), _copy)
        except STOPS:
            raise
        except BaseException:
            return _UNREAD

    def _fill(self, group: list[Any]) -> list[Any]:
        return group + group[:1] * (self._rows - len(group))


def _detach(values: Any) -> Any:
    """Return the values without an autograd graph: one record's would become that of all."""
    return map_tensors(values, Tensor.detach) if any(tensor.requires_grad for tensor in tensors_of(values)) else values


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy without an autograd graph: the collate_fn may write the next record into the same memory."""
    return tensor.detach().clone()


def _can_be_sent(values: Any) -> bool:
    """Return whether a worker can send the values; what it cannot send it drops, and the loop waits for ever."""
    try:
        pickle.dumps(map_tensors(values, _replace_plain))
    except STOPS:
        raise
    except BaseException:
        return False
    return True


def _replace_plain(tensor: Tensor) -> Any:
    """Return None for a plain tensor, which every worker can send, and any other tensor itself."""
    return None if type(tensor) is Tensor and tensor.layout is torch.strided else tensor


class _Unjoinable(Exception):
    """An error for collated values without exactly one row for their record."""


def _group_by_form(values: Sequence[Any], *, is_collated: bool) -> list[list[Any]]:
    """Return the values in groups of one form, in the order in which the forms come."""
    groups: dict[Hashable, list[Any]] = {}
    for value in values:
        with suppress(Exception):  # a record without a form counts as zero
            groups.setdefault(_form_of(value, is_collated=is_collated), []).append(value)
    return list(groups.values())


def _form_of(value: Any, *, is_collated: bool) -> Hashable:
    """Return the form of a value: what values must have in common to be in one micro-batch.

    Text, and every number that was collated and is no tensor, cannot be cut into rows: it must be the same for all.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return kind, value.shape, value.dtype, value.layout, value.device
    if isinstance(value, np.ndarray):
        return kind, value.shape, value.dtype
    if isinstance(value, Mapping):
        return kind, tuple([(name, _form_of(part, is_collated=is_collated)) for name, part in value.items()])
    if isinstance(value, list | tuple):
        return kind, tuple([_form_of(part, is_collated=is_collated) for part in value])
    if isinstance(value, str | bytes) or (is_collated and isinstance(value, _PLAIN)):
        return kind, value
    return kind, value in _WHOLE if isinstance(value, int) else None


def _join(values: list[Any]) -> Any:
    """Return collated values of one form, of one record each, as if they had been collated together."""
    first = values[0]
    kind: Any = type(first)
    if isinstance(first, Tensor) and first.shape[:1] == (1,):
        return torch.cat(values)
    if isinstance(first, Mapping):
        return {name: _join([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple) and len(first):
        if len(first) == 1 and isinstance(first[0], str | bytes):
            return kind([value[0] for value in values])
        parts = [_join(list(part)) for part in zip(*values, strict=True)]
        return kind(*parts) if hasattr(first, "_fields") else kind(parts)
    if isinstance(first, _PLAIN):
        return first  # the same for all, or they would not be of one form
    raise _Unjoinable


def require_spare(records: Any) -> Any:
    """Return the first record, with which micro-batches are padded; refuse data in which it cannot be read."""
    try:
        with pinned():
            return records[0]
    except Exception as error:
        message = f"the first record, which pads micro-batches, cannot be read ({type(error).__name__})"
        raise InvalidArgument("data", f"{message}: try `data[0]`") from None
