"""A client's records as tensors that are fetched by number, from arrays or from a torch Dataset.

Arrays are indexed at once, without a loader between: with many small clients the loader costs more than the training.

>>> data = examples((np.ones((4, 2)), np.array([0, 1, 1, 0])), torch.float32)
>>> data.fetch(torch.tensor([1, 2]))[1]
tensor([1, 1])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from dpfed.errors import InvalidArgument
from dpfed.training.faults import warnings_hidden
from dpfed.training.generators import pinned
from dpfed.training.reading import Collator, MicroBatch, Readable

Pair = tuple[Any, Any]
Form = tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]]


class Examples(Protocol):
    """Records with an input and a target."""

    def __len__(self) -> int:
        """Return the number of records: the owner's secret."""

    def fetch(self, numbers: Tensor) -> Pair:
        """Return inputs and targets of these records, with one leading axis."""

    @property
    def form(self) -> Form | None:
        """Shape and type of a record's input and target; None if they are no tensors, or there is no record."""


@dataclass(frozen=True, eq=False, repr=False)
class Tensors:
    """Two tensors with one leading axis."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.inputs)

    def fetch(self, numbers: Tensor) -> Pair:
        """Return these rows of both tensors."""
        return self.inputs[numbers], self.targets[numbers]

    @property
    def form(self) -> Form:
        """Shape and type of a row of both."""
        return _form_of(self.inputs), _form_of(self.targets)


@dataclass(frozen=True, eq=False, repr=False)
class Items:
    """A Dataset that gives one record at a time."""

    data: Any
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.data)

    def fetch(self, numbers: Tensor) -> Pair:
        """Return these records, collated."""
        found = default_collate([self.data[number] for number in numbers.tolist()])
        if not _is_pair(found):
            raise InvalidArgument(
                "data", "every record must be a pair of input and target: return both from __getitem__"
            )
        return self._cast(found)

    def fetch_apart(self, numbers: Tensor) -> list[MicroBatch]:
        """Return the records so that none acts on another: those alike together, without what cannot be read."""
        pieces = Collator(default_collate)(Readable(self.data).__getitems__(numbers.tolist()))
        with warnings_hidden():
            typed = [(piece, self._try_cast(piece.values)) for piece in pieces if _is_pair(piece.values)]
        return [piece._replace(values=values) for piece, values in typed if values is not None]

    def _try_cast(self, pair: Pair) -> Pair | None:
        try:
            return self._cast(pair)
        except Exception:  # of tensors that cannot be turned into others
            return None

    def _cast(self, pair: Pair) -> Pair:
        inputs, targets = (_cast(part, self.dtype) if isinstance(part, Tensor) else part for part in pair)
        return inputs, targets

    @cached_property
    def form(self) -> Form | None:
        """Shape and type of the first record, if it is of tensors: nothing else of it is read."""
        if not len(self):
            return None
        with pinned():  # an augmentation draws nothing that the script would have drawn
            inputs, targets = self.fetch(torch.zeros(1, dtype=torch.long))
        is_plain = isinstance(inputs, Tensor) and isinstance(targets, Tensor)
        return (_form_of(inputs), _form_of(targets)) if is_plain else None


def _is_pair(found: Any) -> bool:
    return isinstance(found, list | tuple) and len(found) == 2


def make_records(form: Form, count: int) -> tuple[Tensor, Tensor]:
    """Make records of that form that reveal nothing of any data: random inputs from a fixed seed, targets of zero."""
    (shape, dtype), (target_shape, target_dtype) = form
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        inputs = torch.randn((count, *shape), dtype=dtype, generator=generator)
    else:  # tokens 0 and 1 are in every vocabulary
        inputs = torch.randint(0, 2, (count, *shape), dtype=dtype, generator=generator)
    return inputs, torch.zeros((count, *target_shape), dtype=target_dtype)


def examples(data: Any, dtype: torch.dtype) -> Examples:
    """Return the data ready to be fetched; floats get the model's dtype, integers stay integers.

    Arrays are checked here: a number that is not finite, found only when its record is drawn, would tell of it.
    """
    if type(data) is TensorDataset:
        data = data.tensors
    if isinstance(data, Dataset) or (hasattr(data, "__getitem__") and not isinstance(data, list | tuple)):
        if not hasattr(data, "__len__"):
            raise InvalidArgument(
                "data", "data must have a length and records by number, not be a stream: give a Dataset"
            )
        return Items(data, dtype)
    if not isinstance(data, list | tuple) or len(data) != 2:
        raise InvalidArgument("data", "data must be a pair of arrays, inputs and targets, or a torch Dataset")
    inputs, targets = (_cast(_to_tensor(part), dtype) for part in data)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        message = "inputs and targets must have one leading axis with as many records each"
        raise InvalidArgument("data", f"{message}: give both for the same records")
    if not all(bool(torch.isfinite(part).all()) for part in (inputs, targets)):
        message = "fill or remove them by a rule that looks at one record at a time, or at none"
        raise InvalidArgument("data", f"data has values that are not finite: {message}")
    return Tensors(inputs, targets)


def _to_tensor(part: Any) -> Tensor:
    if isinstance(part, Tensor):
        return part.detach().cpu()
    array = np.asarray(part)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument("data", f"data must be numbers, got {array.dtype}: encode texts as numbers first")
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable))


def _cast(part: Tensor, dtype: torch.dtype) -> Tensor:
    return part.to(dtype if part.is_floating_point() else torch.long)


def _form_of(part: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(part.shape[1:]), part.dtype
