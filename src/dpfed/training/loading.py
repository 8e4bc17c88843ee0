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
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.training.sampling import Draw, Sampler

_KEPT = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
)


class Batch:
    """The micro-batches of one draw, to be iterated once; an empty draw has none and still counts."""

    def __init__(self, draw: Draw, micro_batches: Iterator[Any]) -> None:
        self.number = draw.number
        self.token = draw.token
        self.indices = draw.indices
        self._micro_batches: Iterator[Any] | None = micro_batches

    @property
    def is_empty(self) -> bool:
        """Whether no record was drawn; this is secret, like every size of a sample."""
        return not len(self.indices)

    def __iter__(self) -> Iterator[Any]:
        micro_batches, self._micro_batches = self._micro_batches, None
        if micro_batches is None:
            message = f"batch {self.number} was read already, and its records are not read twice: go on to the next"
            raise InvalidArgument("batch", message)
        return micro_batches

    def __repr__(self) -> str:
        return f"Batch(number={self.number})"


class Loader:
    """The draws of a sampler as batches of collated records, at most `max_physical_batch` of them at a time.

    A DataLoader keeps its collate_fn, workers, pinning and the like; its own batches are replaced, so one that was
    told how to sample, batch or drop is refused. Leaving the loop and coming back goes on with the next draw.
    Records are moved to the `device`, if one is given.
    """

    def __init__(
        self,
        data: Dataset[Any] | DataLoader[Any],
        sampler: Sampler,
        *,
        max_physical_batch: int,
        device: torch.device | None = None,
    ) -> None:
        self.sampler = sampler
        self.max_physical_batch = checks.count(max_physical_batch=max_physical_batch)
        settings = _settings_of(data) if isinstance(data, DataLoader) else {}
        records = _records(data.dataset if isinstance(data, DataLoader) else data, sampler)
        self._draws: deque[Draw] = deque()
        # One loader for all draws: workers are started once, and fetch ahead.
        self._stream = _Stream(DataLoader(records, batch_sampler=self._pieces(), **settings), device)
        self._batches = self._serve()

    def __len__(self) -> int:
        return self.sampler.steps

    def __iter__(self) -> Iterator[Batch]:
        self._stream.require_sound()
        return self._batches

    def _pieces(self) -> Iterator[list[int]]:
        for draw in self.sampler:
            self._draws.append(draw)
            if len(draw.indices):
                yield from (piece.tolist() for piece in torch.split(draw.indices, self.max_physical_batch))

    def _serve(self) -> Iterator[Batch]:
        while True:
            if not self._draws:
                self._stream.look_ahead()  # makes the next draws: empty ones, and one with records or the end
            if not self._draws:
                return
            draw = self._draws.popleft()
            micro_batches = _MicroBatches(self._stream, -(-len(draw.indices) // self.max_physical_batch))
            yield Batch(draw, micro_batches)
            for _ in micro_batches:  # what was not read must not become part of the next batch
                pass


class _Stream:
    """Collated pieces in the order in which they were drawn, which is all that tells whose they are.

    After a failure it gives no more: a piece that was late would be taken for one of another draw.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device | None) -> None:
        self._loader = loader
        self._device = device
        self._pieces: Iterator[Any] | None = None
        self._ahead: deque[Any] = deque()
        self._has_failed = False

    def require_sound(self) -> None:
        """Nothing; refuses after a failure."""
        if self._has_failed:
            message = "reading data failed before, so later records could count for the wrong draw: make a new loader"
            raise InvalidArgument("data", message)

    def look_ahead(self) -> None:
        """Nothing; has the next piece ready, if there is one."""
        self._ahead.extend([] if (piece := self._read()) is _END else [piece])

    def next(self) -> Any:
        """The next piece."""
        return self._ahead.popleft() if self._ahead else self._read()

    def _read(self) -> Any:
        self.require_sound()
        self._has_failed = True
        if self._pieces is None:
            self._pieces = iter(self._loader)
        piece = next(self._pieces, _END)
        if self._device is not None:
            piece = _moved(piece, self._device)
        self._has_failed = False
        return piece


_END = object()


class _MicroBatches:
    """So many pieces of the stream; unlike a generator it cannot be closed with some of them left behind."""

    def __init__(self, stream: _Stream, count: int) -> None:
        self._stream = stream
        self._left = count

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._left:
            raise StopIteration
        piece = self._stream.next()
        self._left -= 1
        return piece


def _moved(piece: Any, device: torch.device) -> Any:
    """The piece with all its tensors, and what else can be moved, on the device."""
    if hasattr(piece, "to"):
        return piece.to(device)
    if isinstance(piece, dict):
        return {name: _moved(value, device) for name, value in piece.items()}
    if isinstance(piece, list | tuple):
        parts = [_moved(value, device) for value in piece]
        return type(piece)(*parts) if hasattr(piece, "_fields") else type(piece)(parts)
    return piece


def _records(data: Any, sampler: Sampler) -> Dataset[Any]:
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        message = (
            f"data must have records that can be drawn by number, got {type(data).__name__}: "
            "who is in a batch of a stream is nobody's draw; give a Dataset with __getitem__ and __len__"
        )
        raise InvalidArgument("data", message)
    if len(data) != sampler.size_of_data:
        message = f"data has {len(data)} records and the sampler decides about {sampler.size_of_data}: they must agree"
        raise InvalidArgument("data", message)
    records: Dataset[Any] = data
    return records


def _settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What of the loader does not touch which records are in a batch."""
    if isinstance(loader.dataset, IterableDataset):
        return {}  # refused with the reason that fits
    if loader.batch_size is None:
        _refuse("makes its own batches (batch_sampler, or batch_size=None)", "give it a batch_size")
    if loader.drop_last:
        _refuse("has drop_last=True, and every draw counts", "leave it out")
    if not _is_plain(loader.sampler):
        _refuse(f"has a sampler of its own ({type(loader.sampler).__name__})", "leave it out")
    return {name: getattr(loader, name) for name in _KEPT}


def _is_plain(sampler: Any) -> bool:
    """Whether it is what shuffle=False or shuffle=True makes: every record once."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _refuse(what: str, remedy: str) -> NoReturn:
    message = f"the DataLoader {what}; batches must be the draws that are charged: {remedy}"
    raise InvalidArgument("data", message)
