"""Constants to scale features with, from released answers: bounds from quantiles, mean and scale from moments.

They are released, so anybody may know them, and a model on features scaled by them costs nothing more. A column of
which the noise leaves too little gets none: None, and not a guess.

>>> query = Histogram(((0.0, 10.0, 20.0, 30.0),))
>>> find_bounds(HistogramAnswer(query, np.array([0.0, 400.0, 400.0, 200.0, 0.0]), noise=0.0))
((0.0, 30.0),)
>>> find_bounds(HistogramAnswer(query, np.array([0.0, 9.0, -2.0, 4.0, 1.0]), noise=9.0))
(None,)
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer
from dpfed.analytics.queries import Histogram

Pair = tuple[float, float]
TAIL = 0.01  # of the values that may lie beyond each bound
FALSE_ALARM = 1e-3  # that noise makes any bound of a release too wide


def find_bounds(answer: HistogramAnswer, tail: float = TAIL) -> tuple[Pair | None, ...]:
    """Return for each column the innermost edges beyond which no more is counted than tails or noise explain.

    Noise alone moves some bound of a release beyond the last edge with nothing beyond it with a probability of at most
    FALSE_ALARM: it would have to exceed the threshold at that very edge, and each of the 2d sides has one such.
    None where noise leaves it open: where the middle half of the values may be anywhere on the grid, or nowhere.

    Privacy: post-processing of a released histogram.
    """
    return tuple(_find_pair(answer, place, tail) for place in range(answer.query.columns))


def find_scale(answer: MomentsAnswer) -> tuple[Pair | None, ...]:
    """Return mean and standard deviation of each column; None where the noise is larger than what was found.

    Privacy: post-processing of released moments.
    """
    return tuple(_find_standard(answer, place) for place in range(answer.query.columns))


def find_least_count(query: Histogram, noise: float) -> int:
    """Return how many values every column must have at least for bounds, if the noise of a count deviates by `noise`.

    Privacy: of public constants alone, so that a release that would be useless need not be paid for.
    """
    return math.ceil(_find_least(noise, max(query.sizes), query.columns))


def _find_least(noise: float, cells: int, columns: int) -> float:
    """Return of how many values noise may hide half: both thresholds are √a + √b of one cell's, where a + b ≤ cells."""
    return 2 * _find_reach(columns) * noise * math.sqrt(2 * cells)


def _find_reach(columns: int) -> float:
    """Return how many deviations noise exceeds at one of two edges of each column with probability FALSE_ALARM."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * columns))


def _find_pair(answer: HistogramAnswer, place: int, tail: float) -> Pair | None:
    counts, edges = answer.column(place), answer.query.edges[place]
    total, columns = float(counts.sum()), answer.query.columns
    if total <= _find_least(answer.noise, len(counts), columns):
        return None
    deviations = answer.noise * np.sqrt(np.arange(1, len(counts)))  # of the sum of so many cells
    most = np.maximum(tail * total, _find_reach(columns) * deviations)
    low = _find_last(np.cumsum(counts)[:-1] <= most)
    high = len(edges) - 1 - _find_last(np.cumsum(counts[::-1])[:-1] <= most)
    return (edges[low], edges[high]) if low < high else None


def _find_last(is_so: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Return the last place that is so; the first one if none is."""
    found = np.flatnonzero(is_so)
    return int(found[-1]) if len(found) else 0


def _find_standard(answer: MomentsAnswer, place: int) -> Pair | None:
    mean, variance = answer.mean(place), answer.variance(place)
    if mean.is_useless or variance.is_useless or variance.low <= 0:
        return None
    return mean.value, math.sqrt(variance.value)
