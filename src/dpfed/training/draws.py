"""Which records are in each step of many models, as padded tables of row numbers.

Coins are Poisson and each model's own, exactly as `PoissonSampler` throws them. With an unpredictable source the coins
of all models come from one keystream: bits of it are as independent as those of several. A seeded source has a stream
for each model, so that training many at once gives what training one after the other gives.

>>> from dpfed.randomness import SystemSource
>>> table = poisson([20, 30], [0.5, 0.1], steps=3, sources=[SystemSource(), SystemSource()])
>>> len(table), table[0].rows.shape[0]
(3, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpfed.randomness import RandomSource
from dpfed.training.sampling import coins

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """One step: row numbers of each model's own records, (K, B), and which of them are more than padding."""

    rows: Rows
    is_there: Mask


def poisson(sizes: Sequence[int], rates: Sequence[float], steps: int, sources: Sequence[RandomSource]) -> list[Table]:
    """`steps` tables of Poisson samples: each record of model k with probability rates[k], on its own.

    Privacy: as in `PoissonSampler`; who is in a sample, and how many, is secret.
    """
    widest = max(sizes, default=0)
    drawn = np.zeros((steps, len(sizes), widest), dtype=bool)
    if all(source.is_private for source in sources):
        for rate in dict.fromkeys(rates):
            members = np.array([own == rate for own in rates])
            thrown = coins(Fraction(rate), steps * int(members.sum()) * widest, sources[0])
            drawn[:, members] = thrown.reshape(steps, -1, widest)
        drawn &= np.arange(widest) < np.asarray(sizes)[:, None]
    else:
        for number, (size, rate, source) in enumerate(zip(sizes, rates, sources, strict=True)):
            stream = source.stream("training samples")
            for step in range(steps):
                drawn[step, number, :size] = coins(Fraction(rate), size, stream)
    return [_packed(step) for step in drawn]


def shuffled(
    sizes: Sequence[int], batch_sizes: Sequence[int], steps: int, sources: Sequence[RandomSource]
) -> list[Table]:
    """`steps` tables of ordinary batches from passes over each model's records, every pass in a new order."""
    if all(source.is_private for source in sources) and len(set(sizes)) == len(set(batch_sizes)) == 1 and sizes[0]:
        return _alike(len(sizes), sizes[0], batch_sizes[0], steps, sources[0])
    members = zip(sizes, batch_sizes, sources, strict=True)
    passes = [_passes(size, batch, steps, source.stream("training order")) for size, batch, source in members]
    nothing = np.empty(0, dtype=np.int64)
    return [_padded([batches[step] if batches else nothing for batches in passes]) for step in range(steps)]


def _alike(models: int, size: int, batch_size: int, steps: int, source: RandomSource) -> list[Table]:
    """Batches of models that have as many records each."""
    tables: list[Table] = []
    while len(tables) < steps:
        order = np.argsort(source.words(models * size).reshape(models, size), axis=1)
        parts = [order[:, start : start + batch_size] for start in range(0, size, batch_size)]
        tables += [Table(part, np.ones(part.shape, dtype=bool)) for part in parts]
    return tables[:steps]


def _passes(size: int, batch_size: int, steps: int, source: RandomSource) -> list[Rows]:
    batches: list[Rows] = []
    while size and len(batches) < steps:
        order = np.argsort(source.words(size), kind="stable")
        batches += [order[start : start + batch_size] for start in range(0, size, batch_size)]
    return batches[:steps]


def _packed(drawn: Mask) -> Table:
    """The row numbers of what was drawn, to the left."""
    counts = drawn.sum(axis=1)
    width = int(counts.max(initial=0))
    rows = np.argsort(~drawn, axis=1, kind="stable")[:, :width]
    return Table(rows.astype(np.int64), np.arange(width) < counts[:, None])


def _padded(batches: Sequence[Rows]) -> Table:
    width = max(map(len, batches), default=0)
    rows = np.zeros((len(batches), width), dtype=np.int64)
    for row, batch in zip(rows, batches, strict=True):
        row[: len(batch)] = batch
    lengths = np.array([len(batch) for batch in batches])
    return Table(rows, np.arange(width) < lengths[:, None])
