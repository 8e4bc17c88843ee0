"""Samples of the records of many models, for each step a padded table of record numbers.

Coins are Poisson and each model's own, exactly as `PoissonSampler` throws them. With an unpredictable source the coins
of all models come from one keystream: bits of it are as independent as those of several. A seeded source has a stream
for each model, so that training many at once gives what training one after the other gives.

Records are numbered through all models, one model's after the other's; the number after the last is padding.

>>> from dpfed.randomness import SystemSource
>>> tables = draw_poisson([20, 30], [0.5, 0.1], steps=3, sources=[SystemSource(), SystemSource()])
>>> [len(table.rows) for table in tables]
[2, 2, 2]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource
from dpfed.training.sampling import coins

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
_WORD_BITS = 40  # of an order's random words; the bits above say whose the record is


@dataclass(frozen=True, eq=False)
class BatchTable:
    """The batches of one step: record numbers of each model, (K, B), and a mask of those that are no padding."""

    rows: Rows
    is_there: Mask
    padding: int  # the number that stands for no record

    def split(self, width: int) -> Iterator[BatchTable]:
        """Yield tables of that many columns, the last one padded; none where nothing was drawn."""
        for start in range(0, self.rows.shape[1], width):
            found = self.rows[:, start : start + width]
            rows, is_there = np.full((len(found), width), self.padding), np.zeros((len(found), width), dtype=bool)
            rows[:, : found.shape[1]] = found
            is_there[:, : found.shape[1]] = self.is_there[:, start : start + width]
            yield BatchTable(rows, is_there, self.padding)


def find_width(plans: Collection[LocalPlan], models: int) -> int:
    """Return a width that batches of so many models by these plans have, Poisson samples of all hardly ever more.

    Privacy: it follows from the plans alone. A width that follows from who is there, or from how many records others
    have drawn, would change how a model's sums are rounded, and training may make anything of that.
    """
    return max(_find_room(plan, models) for plan in plans)


def _find_room(plan: LocalPlan, models: int) -> int:
    if plan.noise_multiplier is None:
        return plan.batch_size
    deviations = 1 + math.sqrt(2 * math.log(models))  # the largest of so many is about one less
    spread = math.sqrt(plan.batch_size * max(1 - plan.sample_rate, 0.0))
    return max(1, min(plan.size, math.ceil(plan.batch_size + deviations * spread)))


def draw_poisson(
    sizes: Sequence[int], rates: Sequence[float], steps: int, sources: Sequence[RandomSource]
) -> Iterator[BatchTable]:
    """Yield `steps` tables of Poisson samples: each record of model k with probability rates[k], on its own.

    Privacy: as in `PoissonSampler`; who is in a sample, and how many, is secret. So is how wide a table is:
    `BatchTable.split` gives it in pieces of a public width.
    """
    owners = np.repeat(np.arange(len(sizes)), sizes)
    throws = _group_coins(owners, rates, sources)
    for _ in range(steps):
        drawn = np.zeros(len(owners), dtype=bool)
        for records, rate, source in throws:
            drawn[records] = coins(rate, len(records), source)
        yield _pack(np.flatnonzero(drawn), owners, len(sizes))


def _group_coins(
    owners: Rows, rates: Sequence[float], sources: Sequence[RandomSource]
) -> list[tuple[Rows, Fraction, RandomSource]]:
    """Return groups of records whose coins are thrown together, with their rate and source."""
    if is_one_stream(sources):
        source, each = sources[0].stream("training samples"), np.asarray(rates)[owners]
        return [(np.flatnonzero(each == rate), Fraction(rate), source) for rate in dict.fromkeys(rates)]
    parts = np.split(np.arange(len(owners)), np.searchsorted(owners, np.arange(1, len(rates))))
    return [
        (records, Fraction(rate), source.stream("training samples"))
        for records, rate, source in zip(parts, rates, sources, strict=True)
    ]


def is_one_stream(sources: Sequence[RandomSource]) -> bool:
    """Return whether one source may serve all models: if no source can be predicted, it makes no difference."""
    return all(source.is_private for source in sources)


def _pack(records: Rows, owners: Rows, models: int) -> BatchTable:
    """Return the table of sorted records: each in its owner's row, padded on the right."""
    counts = np.bincount(owners[records], minlength=models)
    is_there = np.arange(counts.max(initial=0)) < counts[:, None]
    rows = np.full(is_there.shape, len(owners))
    rows[is_there] = records
    return BatchTable(rows, is_there, len(owners))


def draw_shuffled(
    sizes: Sequence[int],
    batch_sizes: Sequence[int],
    steps: int,
    sources: Sequence[RandomSource],
    width: int | None = None,
) -> Iterator[BatchTable]:
    """Yield `steps` tables of ordinary batches from passes over each model's records, every pass in a new order.

    Privacy: tables have `width` columns, or as many as the largest batch of these plans, however few records there
    are; `find_width` says why.
    """
    lengths, batches = np.asarray(sizes), np.asarray(batch_sizes)[:, None]
    starts, columns = (np.cumsum(lengths) - lengths)[:, None], np.arange(width or batches.max())
    orders = _Orders(lengths, sources)
    order, at = np.arange(lengths.sum() + 1), lengths.copy()  # the last one is padding
    for _ in range(steps):
        ended = (at >= lengths) & (lengths > 0)
        order[:-1][np.repeat(ended, lengths)] = orders.draw(ended)
        at[ended] = 0
        is_there = (columns < batches) & (at[:, None] + columns < lengths[:, None])
        rows = order[np.where(is_there, starts + at[:, None] + columns, len(order) - 1)]
        # Padded with a record of the row: a gradient that exists nowhere but at zeros would make the whole mean NaN.
        yield BatchTable(np.where(is_there, rows, rows[:, :1]), is_there, len(order) - 1)
        at += batches[:, 0]


class _Orders:
    """A source of random orders of records, from one stream or from each model's own."""

    def __init__(self, lengths: Rows, sources: Sequence[RandomSource]) -> None:
        self._lengths = lengths
        self._owners = np.repeat(np.arange(len(lengths)), lengths)
        several = sources[:1] if is_one_stream(sources) else sources
        self._streams = [source.stream("training order") for source in several]

    def draw(self, which: Mask) -> Rows:
        """Return the records of these models, one model's after the other's, each model's in a new order."""
        records = np.flatnonzero(which[self._owners])
        if len(self._streams) == 1:
            words = self._streams[0].words(len(records)) >> np.uint64(64 - _WORD_BITS)
            keys = (self._owners[records].astype(np.uint64) << np.uint64(_WORD_BITS)) + words
            return records[np.argsort(keys)]
        starts = np.cumsum(self._lengths) - self._lengths
        parts = [
            starts[number] + np.argsort(self._streams[number].words(int(self._lengths[number])), kind="stable")
            for number in np.flatnonzero(which)
        ]
        return np.concatenate([records[:0], *parts])
