"""What follows from a released vector: counts, quantiles, means and variances, each with an interval at 95 %.

All of it is post-processing of numbers that are released. An interval includes the noise and the chance of a sample;
where it is as wide as all that was possible, the figure is useless, and says so.

>>> query = Histogram(((10.0, 20.0, 30.0),))
>>> answer = HistogramAnswer(query, np.array([0.0, 500.0, 500.0, 0.0]), noise=0.0)
>>> answer.quantile(0, 0.5)
ColumnEstimate(value=20.0, low=19.3..., high=20.6..., is_useless=False)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from dpfed import checks
from dpfed.analytics.queries import Histogram, Moments
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument

REACH = 1.96


@dataclass(frozen=True)
class ColumnEstimate:
    """A number and its interval; useless where noise and chance leave everything possible."""

    value: float
    low: float
    high: float
    is_useless: bool = False

    def __str__(self) -> str:
        if self.is_useless:
            return "useless: the noise is larger than what was counted"
        return f"{self.value:.4g} (95 %: {self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True, eq=False)
class HistogramAnswer:
    """Released counts of a histogram; `noise` is the standard deviation of the noise of each."""

    query: Histogram
    counts: Floats = field(repr=False)
    noise: float

    def column(self, place: int) -> Floats:
        """Return the noised counts of one column; noise may make some negative."""
        place = _require_place(place, self.query)
        starts = np.cumsum((0, *self.query.sizes))
        return np.asarray(self.counts[starts[place] : starts[place + 1]])

    def count(self, place: int, cell: int) -> ColumnEstimate:
        """Return one count with its interval, of noise alone."""
        value = float(self.column(place)[cell])
        return ColumnEstimate(value, value - REACH * self.noise, value + REACH * self.noise)

    def quantile(self, place: int, share: float) -> ColumnEstimate:
        """Return the value below which that share of a column is, between the edges of its grid.

        An interval ends where the counts contradict that the share is reached before, or not yet.
        """
        share = checks.positive_probability(share=share)
        counts, edges = self.column(place), np.array(self.query.edges[place])
        below, total = np.cumsum(counts)[:-1], float(counts.sum())
        gaps = below - share * total
        cells = np.arange(1, len(counts))
        noise = self.noise**2 * (cells * (1 - share) ** 2 + (len(counts) - cells) * share**2)
        reach = REACH * np.sqrt(noise + max(total, 0.0) * share * (1 - share))
        low, value, high = (_find_crossing(edges, gaps + shift) for shift in (reach, 0.0, -reach))
        is_useless = bool(total <= 0 or (low <= edges[0] and high >= edges[-1]))
        return ColumnEstimate(min(max(value, low), high), low, high, is_useless)


@dataclass(frozen=True, eq=False)
class MomentsAnswer:
    """Released count, sums and sums of squares; `noise` is the standard deviation of the noise of each."""

    query: Moments
    sums: Floats = field(repr=False)
    noise: float

    @property
    def total(self) -> float:
        """How many units there are, noised."""
        return float(self.sums[0])

    def mean(self, place: int) -> ColumnEstimate:
        """Return the mean of a column, its values clipped to the bounds."""
        low, high = self.query.bounds[_require_place(place, self.query)]
        middle, half = (low + high) / 2, (high - low) / 2
        unit, square = self._find_units(place)
        spread = self._find_spread(1 + unit**2, max(square - unit**2, 0.0))
        return self._make(middle + half * unit, half * spread, low, high)

    def variance(self, place: int) -> ColumnEstimate:
        """Return the variance of a column, its values clipped to the bounds."""
        low, high = self.query.bounds[_require_place(place, self.query)]
        half = (high - low) / 2
        unit, square = self._find_units(place)
        value = min(max(square - unit**2, 0.0), 1.0)
        # By the derivatives of S₂/n − (S₁/n)², whose values are at most 2 in size; chance as of a bounded value.
        spread = self._find_spread(1 + 4 * unit**2 + (2 * unit**2 - square) ** 2, value)
        return self._make(half**2 * value, half**2 * spread, 0.0, half**2)

    def _find_units(self, place: int) -> tuple[float, float]:
        total, columns = max(self.total, 1.0), self.query.columns
        unit, square = float(self.sums[1 + place]) / total, float(self.sums[1 + columns + place]) / total
        return min(max(unit, -1.0), 1.0), min(max(square, 0.0), 1.0)

    def _find_spread(self, noise: float, chance: float) -> float:
        total = max(self.total, 1.0)
        return REACH * math.sqrt(noise * self.noise**2 / total**2 + chance / total)

    def _make(self, value: float, reach: float, low: float, high: float) -> ColumnEstimate:
        ends = max(value - reach, low), min(value + reach, high)
        is_useless = self.total <= 2 * self.noise or ends == (low, high)
        return ColumnEstimate(min(max(value, low), high), *(ends if not is_useless else (low, high)), is_useless)


def make_answer(query: Histogram | Moments, released: Floats, noise: float) -> HistogramAnswer | MomentsAnswer:
    """Return the answer to a query from the vector that was released for it."""
    if np.asarray(released).shape != (query.size,):
        message = f"a release of this query has {query.size} numbers, got shape {np.asarray(released).shape}"
        raise InvalidArgument("released", f"{message}: give what was released for it")
    kind = HistogramAnswer if isinstance(query, Histogram) else MomentsAnswer
    return kind(query, np.asarray(released, dtype=float), noise)  # type: ignore[arg-type]


def _require_place(place: int, query: Histogram | Moments) -> int:
    """Return the number of a column; refuse a name, and a number that no column has."""
    if not isinstance(place, int | np.integer) or not 0 <= place < query.columns:
        message = f"place must be the number of a column, from 0 to {query.columns - 1}, got {place!r}"
        raise InvalidArgument("place", f"{message}: columns are in the order in which they were asked")
    return int(place)


def _find_crossing(edges: Floats, gaps: Floats) -> float:
    """Return where rising gaps first reach 0, between two edges by a straight line."""
    reached = np.flatnonzero(gaps >= 0)
    if not len(reached):
        return float(edges[-1])
    place = int(reached[0])
    if place == 0:
        return float(edges[0])
    before, after = gaps[place - 1], gaps[place]
    return float(edges[place - 1] + (edges[place] - edges[place - 1]) * (-before) / (after - before))
