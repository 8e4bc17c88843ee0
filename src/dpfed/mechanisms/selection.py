"""Choosing the best of many by score: noisy maximum, and permute-and-flip, which is never worse.

>>> report_noisy_max([1.0, 900.0, 3.0], epsilon=1.0, sensitivity=1.0)
1
>>> PermuteAndFlip(epsilon=1.0, sensitivity=1.0).event
PureDP(epsilon=1.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpfed import arrays
from dpfed.mechanisms.exact import Coins
from dpfed.mechanisms.scores import ChoiceByScore, Scores, subtract_best
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True, repr=False)
class ReportNoisyMax(ChoiceByScore):
    """The choice of the largest score after Laplace noise of scale 2Δ/ε, or Δ/ε when scores are monotone.

    Privacy: ε-DP (Dwork and Roth 2014, §3.3) when one unit moves no score by more than Δ = `sensitivity`.
    With monotone=True one unit must move all scores the same way; votes under replace-one do not. Only the
    index is released: its score, or the noisy maximum, costs extra. The event is PureDP(ε).
    """

    def select(self, scores: Scores) -> int:
        """Choose an index at random, the better the score the likelier."""
        values = subtract_best(scores)
        return int(np.argmax(values + self.scale * or_system(self.source).laplace(values.size)))


@dataclass(frozen=True, repr=False)
class PermuteAndFlip(ChoiceByScore):
    """The choice of an index by visiting scores in random order, each taken with probability exp(−ε(best − score)/2Δ).

    Privacy: ε-DP (McKenna and Sheldon 2020, Theorem 1) under the conditions of :class:`ReportNoisyMax`, with
    an expected score never below the exponential mechanism's. Order and coins are sampled exactly, in integer
    arithmetic, so the theorem covers the program. The event is PureDP(ε).
    """

    def select(self, scores: Scores) -> int:
        """Choose an index at random, the better the score the likelier."""
        values = [Fraction(value) for value in arrays.vector(scores, "scores").tolist()]
        exponents = [(max(values) - value) / self._spread for value in values]
        coins = Coins(or_system(self.source))
        waiting = list(range(len(values)))
        # A best score has exponent 0 and is always taken, so the list never runs empty.
        while True:
            index = waiting.pop(coins.below(len(waiting)))
            if coins.flip_exp(exponents[index].numerator, exponents[index].denominator):
                return index


def report_noisy_max(
    scores: Scores,
    epsilon: float,
    sensitivity: Sensitivity | float,
    *,
    monotone: bool = False,
    source: RandomSource | None = None,
) -> int:
    """Return the index that :class:`ReportNoisyMax` chooses; it costs that mechanism's event."""
    return ReportNoisyMax(epsilon, sensitivity, monotone, source).select(scores)


def permute_and_flip(
    scores: Scores,
    epsilon: float,
    sensitivity: Sensitivity | float,
    *,
    monotone: bool = False,
    source: RandomSource | None = None,
) -> int:
    """Return the index that :class:`PermuteAndFlip` chooses; it costs that mechanism's event."""
    return PermuteAndFlip(epsilon, sensitivity, monotone, source).select(scores)
