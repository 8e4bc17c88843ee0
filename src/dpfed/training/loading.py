"""A loader that serves the draws of a sampler as batches of collated records, in micro-batches.

>>> from torch.utils.data import TensorDataset
>>> from dpfed.randomness import SeededSource
>>> from dpfed.training.sampling import PoissonSampler
>>> data = TensorDataset(torch.arange(100.0))
>>> loader = Loader(data, PoissonSampler(100, 0.1, steps=2, source=SeededSource(5)), max_physical_batch=8)
>>> [(batch.number, [len(records) for (records,) in batch]) for batch in loader]
[(0, [8, 8]), (1, [8, 2])]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.randomness import or_system
from dpfed.training.generators import Generators
from dpfed.training.reading import Collator, MicroBatch, Readable, require_spare
from dpfed.training.sampling import Draw, Sampler

_KEPT_SETTINGS = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
)


class Batch:
    """The micro-batches of one draw, whose records do not mix (`reading`); an empty draw has none and still counts.

    Each iteration reads the same records from the first on. Inside it the generators of torch, numpy and Python are
    private (`Generators`), also where the data set seeds them while a micro-batch is read.
    """

    def __init__(self, draw: Draw, read: Callable[[], Iterator[MicroBatch]], generators: Generators) -> None:
        self.number = draw.number
        self.token = draw.token
        self.indices = draw.indices
        self._read = read
        self._generators = generators
        self.parts: int | None = None  # how many micro-batches there are, once all were read
        self._observer: Callable[[MicroBatch, int], None] | None = None

    def show_to(self, observer: Callable[[MicroBatch, int], None]) -> None:
        """Call the observer with every micro-batch, and its number, before the loop gets it."""
        self._observer = observer

    @property
    def is_empty(self) -> bool:
        """Whether no record was drawn; this is secret, like every size of a sample."""
        return not self.indices.shape[0]

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield piece.values

    def pieces(self) -> Iterator[MicroBatch]:
        """Yield the micro-batches; each knows how many of its rows are records that were drawn."""
        number = 0
        with self._generators.scope():
            for piece in self._read():
                self._generators.refresh()
                if self._observer is not None:
                    self._observer(piece, number)
                number += 1
                yield piece
            self.parts = number

    def __repr__(self) -> str:
        return f"Batch(number={self.number})"


class Loader:
    """The draws of a sampler as batches of collated records, at most `max_physical_batch` of them at a time.

    A DataLoader keeps its collate_fn, workers, pinning and the like; its own batches are replaced, so one with a
    sampler, batches or drop_last of its own is refused. Its workers get private random numbers, whatever its
    generator and worker_init_fn say. Leaving the loop and coming back goes on with the next draw. Records are moved to
    the `device`, if one is given. With `parts` every micro-batch has exactly `max_physical_batch` rows, and there are
    at least `parts` of them: rows beyond those of the draw repeat a record (`reading.MicroBatch`).
    """

    def __init__(
        self,
        data: Dataset[Any] | DataLoader[Any],
        sampler: Sampler,
        *,
        max_physical_batch: int,
        device: torch.device | None = None,
        generators: Generators | None = None,
        parts: int = 0,
    ) -> None:
        self.sampler = sampler
        self.max_physical_batch = checks.count(max_physical_batch=max_physical_batch)
        settings = _read_settings(data) if isinstance(data, DataLoader) else {}
        records = _require_records(data.dataset if isinstance(data, DataLoader) else data, sampler)
        self._generators = Generators(or_system(None)) if generators is None else generators
        self._parts = parts if sampler.size_of_data else 0
        rows = self.max_physical_batch if parts else 0
        self._reader = _Reader(records, settings.pop("collate_fn", default_collate), rows)
        self._device = device
        self._ahead: _Prefetch | None = None
        if isinstance(data, DataLoader) and (data.num_workers or data.pin_memory):
            settings |= self._generators.for_workers(data.worker_init_fn)
            make = partial(DataLoader, self._reader.records, collate_fn=self._reader.collator, **settings)
            self._ahead = _Prefetch(make, sampler, self._cut)
        self._batches = self._serve()

    def __len__(self) -> int:
        return self.sampler.steps

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def _serve(self) -> Iterator[Batch]:
        """Yield one batch for each draw of the sampler; its records are read when the batch is used."""
        for draw in self.sampler if self._ahead is None else self._ahead.draws():
            yield Batch(draw, partial(self._read, draw), self._generators)

    def _read(self, draw: Draw) -> Iterator[MicroBatch]:
        for key, indices in self._cut(draw):
            if not self._reader.is_plain or self._ahead is not None:
                self._generators.refresh()  # for what the data set draws; the loop may have seeded something
            ready = None if self._ahead is None else self._ahead.take(key)
            for piece in self._reader(indices) if ready is None else ready:
                yield piece if self._device is None else piece._replace(values=move(piece.values, self._device))

    def _cut(self, draw: Draw) -> Iterator[tuple[_Key, Tensor]]:
        """Yield the draw in parts of at most `max_physical_batch` records, filled up with empty parts to `parts`."""
        indices, most = draw.indices, self.max_physical_batch
        drawn = indices.shape[0]
        found = torch.split(indices, most) if drawn > most else (indices,) if drawn else ()
        nobody = indices[:0]
        for number, part in enumerate((*found, *[nobody] * (self._parts - len(found)))):
            yield (draw.number, number), part


_Key = tuple[int, int]  # the number of a draw, and that of a micro-batch in it
_Cut = Callable[[Draw], Iterator[tuple[_Key, Tensor]]]
_NEVER: _Key = (2**63, 0)


class _Reader:
    """A reader of records in this process, like a DataLoader without workers."""

    def __init__(self, records: Any, collate: Callable[[Any], Any], rows: int) -> None:
        self.is_plain = type(records) is TensorDataset and collate is default_collate
        self.records = Readable(records)
        self.collator = Collator(collate, rows=rows, spare=require_spare(records) if rows and len(records) else None)
        self._tensors = records.tensors if self.is_plain else ()
        self._rows = rows

    def __call__(self, indices: Tensor) -> list[MicroBatch]:
        """Return the records with these numbers as micro-batches."""
        if not self.is_plain:
            return self.collator(self.records.__getitems__(indices.tolist()))
        # One index_select, which gives the same and takes a tenth of the time.
        drawn = indices.shape[0]
        if drawn < self._rows:
            indices = torch.cat([indices, indices.new_zeros(self._rows - drawn)])
        return [MicroBatch([tensor.index_select(0, indices.to(tensor.device)) for tensor in self._tensors], drawn)]


class _Prefetch:
    """Micro-batches that workers fetch before the loop asks for them, in the order of the draws.

    What the loop has read is not fetched by workers again, and after a failure nothing is: a micro-batch that comes
    late would be taken for another one.
    """

    def __init__(self, make: Callable[..., DataLoader[Any]], sampler: Sampler, cut: _Cut) -> None:
        self._make = make
        self._sampler = sampler
        self._cut = cut
        self._waiting: deque[Draw] = deque()  # for the loop
        self._uncut: deque[Draw] = deque()  # for the workers
        self._asked: deque[_Key] = deque()  # of the workers
        self._last: _Key = (-1, -1)
        self._source = self._batch_sampler()
        self._found: Iterator[Any] | None = None

    def draws(self) -> Iterator[Draw]:
        """Yield the draws; the workers may have begun some of them already."""
        self._more = iter(self._sampler)
        while self._waiting or self._draw():
            yield self._waiting.popleft()
        for _ in () if self._found is None else self._found:  # to its end, where it stops the workers
            pass

    def take(self, key: _Key) -> list[MicroBatch] | None:
        """Return the micro-batches of this key and drop earlier ones; None if the workers no longer have them."""
        pieces: list[MicroBatch] | None = None
        try:
            while self._last < key:
                if self._found is None:
                    self._found = iter(self._make(batch_sampler=self._source))
                pieces = next(self._found)
                self._last = self._asked.popleft()
        except BaseException:
            self._last, self._found = _NEVER, None
            raise
        return pieces

    def _draw(self) -> bool:
        draw = next(self._more, None)
        if draw is not None:
            self._waiting.append(draw)
            self._uncut.append(draw)
        return draw is not None

    def _batch_sampler(self) -> Iterator[list[int]]:
        while self._uncut or self._draw():
            for key, indices in self._cut(self._uncut.popleft()):
                self._asked.append(key)
                yield indices.tolist()


def move(piece: Any, device: torch.device) -> Any:
    """Return the values with all tensors, and whatever else has ``.to``, on the device."""
    if hasattr(piece, "to"):
        return piece.to(device)
    if isinstance(piece, dict):
        return {name: move(value, device) for name, value in piece.items()}
    if isinstance(piece, list | tuple):
        parts = [move(value, device) for value in piece]
        return type(piece)(*parts) if hasattr(piece, "_fields") else type(piece)(parts)
    return piece


def _require_records(data: Any, sampler: Sampler) -> Dataset[Any]:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        message = (
            f"data must have records that can be drawn by number, got {type(data).__name__}, and batches of a stream "
            "are no Poisson samples: give a Dataset with __getitem__ and __len__"
        )
        raise InvalidArgument("data", message)
    if len(data) != sampler.size_of_data:
        message = (
            f"data has {len(data)} records and the sampler draws from {sampler.size_of_data}, so some could never be "
            f"drawn or do not exist: use size_of_data={len(data)}"
        )
        raise InvalidArgument("data", message)
    records: Dataset[Any] = data
    return records


def _read_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the loader's settings that do not decide which records are in a batch; refuse those that do."""
    if isinstance(loader.dataset, IterableDataset):
        return {}  # refused with the reason that fits
    if loader.batch_size is None:
        _refuse("makes its own batches (batch_sampler, or batch_size=None)", "give it a batch_size")
    if loader.drop_last:
        _refuse("has drop_last=True, and every draw counts", "leave it out")
    if not _is_plain(loader.sampler):
        _refuse(f"has a sampler of its own ({type(loader.sampler).__name__})", "leave it out")
    return {name: getattr(loader, name) for name in _KEPT_SETTINGS}


def _is_plain(sampler: Any) -> bool:
    """Return whether this is what shuffle=False or shuffle=True makes: every record once."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _refuse(what: str, remedy: str) -> NoReturn:
    message = f"the DataLoader {what}, but batches must be the draws that are charged: {remedy}"
    raise InvalidArgument("data", message)
