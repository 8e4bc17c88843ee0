"""Figures from noised counts, each with an interval: shares such as accuracy, and the area under an ROC curve.

A share is a ratio of sums, and noise may leave little of its denominator. So an interval is not found around the ratio
but by asking of every value a whether the counts contradict it (Fieller 1954): right·(1 − a) − wrong·a is 0 on average
if a is the truth, whatever the counts are, and its variance is that of chance and noise together. Where the noise is
larger than what was counted, the interval is honest and long.

>>> share(right=90.0, wrong=10.0, noise=0.0)
Figure(value=0.9, low=0.81..., high=0.94...)
>>> share(right=9.0, wrong=1.0, noise=200.0)
Figure(value=0.9, low=0.0, high=1.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
# Standard deviations at 95 %: those of one Laplace number, which has heavier tails than any sum with more in it.
REACH = math.log(20) / math.sqrt(2)
_TRIED = np.linspace(0.0, 1.0, 2001)


@dataclass(frozen=True)
class Figure:
    """A released figure and an interval that holds it with 95 % confidence, noise included; None if nothing is known.

    The interval is about the figure of whoever might have been counted, so it has the chance of a sample in it as well.
    """

    value: float | None
    low: float
    high: float

    @property
    def is_useless(self) -> bool:
        """Whether noise and chance leave everything possible."""
        return self.value is None or (self.low <= 0.0 and self.high >= 1.0)

    def __str__(self) -> str:
        if self.is_useless:
            return "useless: the noise is larger than what was counted"
        return f"{self.value:.3f} (95 %: {self.low:.3f} to {self.high:.3f})"


def share(right: float, wrong: float, noise: float) -> Figure:
    """Return right/(right + wrong) from two counts that have noise of that variance each.

    Privacy: post-processing of counts that are released.
    """
    gaps = right * (1 - _TRIED) - wrong * _TRIED
    chance = max(right + wrong, 0.0) * _TRIED * (1 - _TRIED)  # at most, also where a unit has shares of both
    spreads = chance + noise * ((1 - _TRIED) ** 2 + _TRIED**2)
    return _make_figure(right, right + wrong, gaps, spreads)


def area(negatives: NDArray[Any], positives: NDArray[Any], noise: float) -> Figure:
    """Return the area under the ROC curve from counts by score, low to high, with noise of that variance each.

    It is the chance that a positive has a higher score than a negative; a tie within one bin counts half.

    Privacy: post-processing of counts that are released.
    """
    low, high = np.asarray(negatives, dtype=float), np.asarray(positives, dtype=float)
    wins = np.triu(np.ones((len(low), len(high))), 1) + np.eye(len(low), len(high)) / 2
    won, pairs = float(low @ wins @ high), float(low.sum() * high.sum())
    gaps = won - _TRIED * pairs
    # The variance of low·(wins − a)·high: each side's by the other's sums, and that of noise times noise.
    by_high = (wins.T @ low)[:, None] - _TRIED * low.sum()
    by_low = (wins @ high)[:, None] - _TRIED * high.sum()
    spreads = _add_chance(high, noise) @ by_high**2 + _add_chance(low, noise) @ by_low**2
    both = noise**2 * (np.square(wins).sum() - 2 * _TRIED * wins.sum() + _TRIED**2 * wins.size)
    is_known = low.sum() > 0 and high.sum() > 0
    return _make_figure(won, pairs if is_known else 0.0, gaps, spreads + both)


def _add_chance(counts: Any, noise: float) -> Any:
    """Return the variance of counts: the noise's, and at most the count itself for units that add at most 1 each."""
    return noise + np.maximum(counts, 0.0)


def _make_figure(part: float, whole: float, gaps: NDArray[Any], spreads: NDArray[Any]) -> Figure:
    possible = _TRIED[np.abs(gaps) <= REACH * np.sqrt(spreads)]
    if whole <= 0 or not len(possible):
        return Figure(None, 0.0, 1.0)
    value = min(max(part / whole, 0.0), 1.0)
    step = _TRIED[1]
    low, high = max(possible[0] - step, 0.0), min(possible[-1] + step, 1.0)
    return Figure(value, float(min(low, value)), float(max(high, value)))
