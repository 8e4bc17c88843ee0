"""Poisson samples of the records, and a loader that serves them in micro-batches.

Accountants assume that each record is in a step's sample with one probability, independently of all others.
Shuffled batches of a fixed size are not that, and are accounted at a price that does not hold. Here every draw is
Poisson to the last bit, may be empty and still counts, and carries a token that can be charged once: two releases
from one draw are one event, not two.

>>> from dpfed.randomness import SeededSource
>>> sampler = PoissonSampler(size_of_data=1000, sample_rate=0.01, steps=3, source=SeededSource(5))
>>> [draw.number for draw in sampler]
[0, 1, 2]
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource, or_system

_BITS = 16  # of the first comparison; the few records that tie are compared further
_CHUNK = 1 << 20  # records a pass
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


class Token:
    """The right to charge one draw once, in the process that made it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._process = os.getpid()
        self._is_used = False
        self._lock = threading.Lock()

    def use(self) -> None:
        """Nothing, the first time; refuses ever after, and in a forked process."""
        if os.getpid() != self._process:
            message = f"draw {self.number} was made by another process, which may charge it too: draw in this one"
            raise InvalidArgument("token", message)
        with self._lock:
            if self._is_used:
                message = (
                    f"draw {self.number} was charged already, and a second release from it is not a second sampled "
                    "event: take the next draw, or charge both releases as one composed event"
                )
                raise InvalidArgument("token", message)
            self._is_used = True

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Token is not copied or pickled: it could be used twice")

    def __repr__(self) -> str:
        return f"Token(number={self.number})"


@dataclass(frozen=True, eq=False)
class Draw:
    """One sample; who is in it, and how many, is secret: amplification rests on that."""

    indices: Tensor = field(repr=False)
    number: int
    token: Token


class Sampler(ABC):
    """`steps` draws of 0 … size_of_data − 1, each with its token; no more, however often it is iterated."""

    def __init__(self, size_of_data: int, steps: int, source: RandomSource | None = None) -> None:
        self.size_of_data = 0 if size_of_data == 0 else checks.count(size_of_data=size_of_data)
        self.steps = checks.count(steps=steps)
        self._source = or_system(source).stream("training samples")
        self._taken = 0
        self._lock = threading.Lock()

    @abstractmethod
    def _indices(self, number: int) -> Tensor:
        """Who is in the draw of that number."""

    @property
    def is_private(self) -> bool:
        """Whether the samples are unpredictable; a seeded source's are not."""
        return self._source.is_private

    @property
    def remaining(self) -> int:
        """How many draws are left."""
        return self.steps - self._taken

    def __len__(self) -> int:
        return self.remaining

    def __iter__(self) -> Iterator[Draw]:
        if not self.remaining:
            message = f"all {self.steps} draws were taken: steps counts the whole run, over all epochs"
            raise InvalidArgument("steps", message)
        return self._draws()

    def _draws(self) -> Iterator[Draw]:
        while (number := self._next_number()) is not None:
            yield Draw(self._indices(number), number, Token(number))

    def _next_number(self) -> int | None:
        with self._lock:
            if not self.remaining:
                return None
            self._taken += 1
            return self._taken - 1


class PoissonSampler(Sampler):
    """`steps` draws of 0 … size_of_data − 1, each index on its own with probability `sample_rate`.

    Privacy: a release from one draw is ``PoissonSampled(event, sample_rate)`` under add/remove (Abadi et al. 2016,
    and exactly Zhu, Dong and Wang 2022). The probability is the float `sample_rate` exactly, and a constant of the
    plan; size_of_data only says how many records there are to decide about. `steps` draws are all there will be,
    however often the sampler is iterated.
    """

    def __init__(self, size_of_data: int, sample_rate: float, steps: int, source: RandomSource | None = None) -> None:
        super().__init__(size_of_data, steps, source)
        self.sample_rate = checks.rate(sample_rate=sample_rate)

    def _indices(self, number: int) -> Tensor:
        rate, size = Fraction(self.sample_rate), self.size_of_data
        found = [
            start + np.flatnonzero(coins(rate, min(_CHUNK, size - start), self._source))
            for start in range(0, size, _CHUNK)
        ]
        return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *found]))

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"PoissonSampler(sample_rate={self.sample_rate!r}, steps={self.steps}){stamp}"


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


class PoissonLoader:
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


def coins(rate: Fraction, count: int, source: RandomSource) -> NDArray[np.bool_]:
    """So many independent coins, each True with probability `rate` exactly, however many digits it has."""
    threshold, rest = divmod(rate * 2**_BITS, 1)
    words = np.frombuffer(source.bytes(_BITS // 8 * count), dtype=np.uint16)
    heads: NDArray[np.bool_] = words < threshold
    if rest:
        ties = np.flatnonzero(words == threshold)
        if ties.size:
            heads[ties] = coins(rest, ties.size, source)
    return heads


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
