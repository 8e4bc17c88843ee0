"""Records that are read and collated so that none of them acts on another, nor stops the step it was drawn in.

A collate_fn sees many records at once: it pads them to the longest, widens all to the type of one, or fails for one
that cannot be stacked. Here each record has the form that it has alone, those of one form are put together, and one
that cannot be read or collated is left out, so that it counts as zero.

>>> import torch
>>> from torch.nn.utils.rnn import pad_sequence
>>> records = [torch.ones(2), torch.ones(3), torch.zeros(2), None]
>>> together = Together(lambda some: pad_sequence(some, batch_first=True))
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
from dpfed.training.faults import STOPS, unheard
from dpfed.training.forward import mapped, tensors_of
from dpfed.training.generators import pinned

_UNREAD = object()
_PLAIN = (str, bytes, int, float, type(None))
_WHOLE = range(-(2**63), 2**63)  # the whole numbers that torch knows


class Piece(NamedTuple):
    """Collated records of one form, of which the first `drawn` were drawn; the others only fill it up.

    The form `is_usual` if the first record of the data has it.
    """

    values: Any
    drawn: int
    is_usual: bool = True


class Readable(Dataset[Any]):
    """A data set in which a record that cannot be read takes nothing but itself out of a batch."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Any:
        return self._read(number)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """Return the records with these numbers, one by one: the data set's own way to give several may pad them."""
        with unheard():
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


class Together:
    """Collates records by `collate`, each as it is alone, and those of one form as one piece.

    With `rows` a piece has so many of them, whoever was drawn: it is filled up with its first record once more, or, if
    there is none, with the `spare` one.
    """

    def __init__(self, collate: Callable[[Any], Any], *, rows: int = 0, spare: Any = None) -> None:
        self._collate = collate
        self._rows = rows
        self._spare = spare
        self._usual = self._forms_of_spare() if rows else ()

    def _forms_of_spare(self) -> tuple[Hashable, ...]:
        with pinned(), unheard(), suppress(Exception):
            return _form(self._spare, is_collated=False), _form(self._alone(self._spare), is_collated=True)
        return ()

    def __call__(self, records: Sequence[Any]) -> list[Piece]:
        """Return the pieces of these records."""
        with unheard():
            pieces = self._pieces([record for record in records if record is not _UNREAD])
            if get_worker_info() is not None:
                pieces = [piece for piece in pieces if _can_be_sent(piece.values)]
            if pieces or not self._rows:
                return pieces
            return [piece._replace(drawn=0) for piece in self._pieces([self._spare])]

    def _pieces(self, records: list[Any]) -> list[Piece]:
        if self._collate is not default_collate:
            return self._each(records)
        pieces = []
        for group in _by_form(records, is_collated=False):
            try:  # which is what cutting and joining would give, and takes less time
                values = _detached(default_collate(self._filled(group)))
                pieces.append(Piece(values, len(group), self._is_usual(group, is_collated=False)))
            except STOPS:
                raise
            except BaseException:
                pieces += self._each(group)
        return pieces

    def _each(self, records: list[Any]) -> list[Piece]:
        """Return pieces of records that were collated one by one."""
        alone = [value for record in records if (value := self._alone(record)) is not _UNREAD]
        pieces = []
        for group in _by_form(alone, is_collated=True):
            is_usual = self._is_usual(group, is_collated=True)
            try:
                pieces.append(Piece(_joined(self._filled(group)), len(group), is_usual))
            except _Unjoinable:
                pieces += [Piece(value, 1, is_usual) for value in group]
        return pieces

    def _is_usual(self, group: list[Any], *, is_collated: bool) -> bool:
        return not self._usual or _form(group[0], is_collated=is_collated) in self._usual

    def _alone(self, record: Any) -> Any:
        try:
            return mapped(self._collate([record]), _copied)
        except STOPS:
            raise
        except BaseException:
            return _UNREAD

    def _filled(self, group: list[Any]) -> list[Any]:
        return group + group[:1] * (self._rows - len(group))


def _detached(values: Any) -> Any:
    """Return the values without a graph, which one record may have and all would get."""
    return mapped(values, Tensor.detach) if any(tensor.requires_grad for tensor in tensors_of(values)) else values


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy without a graph: the collate_fn may write the next record to the same place."""
    return tensor.detach().clone()


def _can_be_sent(values: Any) -> bool:
    """Return whether a worker can send them; what it cannot, it drops, and then the loop waits for ever."""
    try:
        pickle.dumps(mapped(values, _stand_in))
    except STOPS:
        raise
    except BaseException:
        return False
    return True


def _stand_in(tensor: Tensor) -> Any:
    """Return something that is quick to write, for tensors that every worker can send."""
    return None if type(tensor) is Tensor and tensor.layout is torch.strided else tensor


class _Unjoinable(Exception):
    """Collated values that have not one row for their record."""


def _by_form(values: Sequence[Any], *, is_collated: bool) -> list[list[Any]]:
    """Return the values of each form, in the order in which the forms come."""
    groups: dict[Hashable, list[Any]] = {}
    for value in values:
        with suppress(Exception):  # of a record that is like nothing else
            groups.setdefault(_form(value, is_collated=is_collated), []).append(value)
    return list(groups.values())


def _form(value: Any, *, is_collated: bool) -> Hashable:
    """Return what values must have in common to be put together.

    Text, and every number that was collated and is no tensor, cannot be cut into rows: it must be the same for all.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        return kind, value.shape, value.dtype, value.layout, value.device
    if isinstance(value, np.ndarray):
        return kind, value.shape, value.dtype
    if isinstance(value, Mapping):
        return kind, tuple([(name, _form(part, is_collated=is_collated)) for name, part in value.items()])
    if isinstance(value, list | tuple):
        return kind, tuple([_form(part, is_collated=is_collated) for part in value])
    if isinstance(value, str | bytes) or (is_collated and isinstance(value, _PLAIN)):
        return kind, value
    return kind, value in _WHOLE if isinstance(value, int) else None


def _joined(values: list[Any]) -> Any:
    """Return collated values of one form, of one record each, as if they had been collated together."""
    first = values[0]
    kind: Any = type(first)
    if isinstance(first, Tensor) and first.shape[:1] == (1,):
        return torch.cat(values)
    if isinstance(first, Mapping):
        return {name: _joined([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple) and len(first):
        if len(first) == 1 and isinstance(first[0], str | bytes):
            return kind([value[0] for value in values])
        parts = [_joined(list(part)) for part in zip(*values, strict=True)]
        return kind(*parts) if hasattr(first, "_fields") else kind(parts)
    if isinstance(first, _PLAIN):
        return first  # the same for all, or they would not be of one form
    raise _Unjoinable


def require_spare(records: Any) -> Any:
    """Return the first record, by which pieces are filled up; refuse data in which it cannot be read."""
    try:
        with pinned():
            return records[0]
    except Exception as error:
        message = f"the first record cannot be read ({type(error).__name__})"
        raise InvalidArgument("data", f"{message}: try `data[0]`") from None
