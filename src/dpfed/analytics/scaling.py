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

import numpy as np

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer
from dpfed.analytics.queries import Histogram

Pair = tuple[float, float]
TAIL = 0.01  # of the values that may lie beyond each bound


def find_bounds(answer: HistogramAnswer, tail: float = TAIL) -> tuple[Pair | None, ...]:
    """Return for each column edges of its grid between which all but about two tails of the values are.

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
    return math.ceil(_find_least(noise, max(query.sizes)))


def _find_least(noise: float, cells: int) -> float:
    return 10 * noise * math.sqrt(cells)  # a tenth of the values could be noise


def _find_pair(answer: HistogramAnswer, place: int, tail: float) -> Pair | None:
    counts, edges = answer.column(place), answer.query.edges[place]
    total = float(counts.sum())
    noise = answer.noise * math.sqrt(len(counts))
    if total <= _find_least(answer.noise, len(counts)):
        return None
    below = np.cumsum(counts)[:-1]
    low = _find_last(below <= max(tail * total, 2 * noise), 0)
    high = _find_first(below >= min((1 - tail) * total, total - 2 * noise), len(edges) - 1)
    return (edges[low], edges[high]) if low < high else None


def _find_last(is_so: np.ndarray[tuple[int], np.dtype[np.bool_]], default: int) -> int:
    """Return the last place before the first one that is not so."""
    failed = np.flatnonzero(~is_so)
    return max(int(failed[0]) - 1, 0) if len(failed) else default


def _find_first(is_so: np.ndarray[tuple[int], np.dtype[np.bool_]], default: int) -> int:
    found = np.flatnonzero(is_so)
    return int(found[0]) if len(found) else default


def _find_standard(answer: MomentsAnswer, place: int) -> Pair | None:
    mean, variance = answer.mean(place), answer.variance(place)
    if mean.is_useless or variance.is_useless or variance.low <= 0:
        return None
    return mean.value, math.sqrt(variance.value)
