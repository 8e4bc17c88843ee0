"""Choosing the best of many by score: the exponential mechanism.

>>> mechanism = ExponentialMechanism(epsilon=1.0, sensitivity=1.0)
>>> mechanism.probabilities([0.0, 2.0]).round(4)
array([0.2689, 0.7311])
>>> mechanism.select([0.0, 1000.0])
1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfed import events as ev
from dpfed.mechanisms.scores import ChoiceByScore, Scores, subtract_best
from dpfed.randomness import or_system


@dataclass(frozen=True, repr=False)
class ExponentialMechanism(ChoiceByScore):
    """The choice of an index with probability ∝ exp(ε score/(2Δ)), or exp(ε score/Δ) when scores are monotone.

    Privacy: ε-DP (McSherry and Talwar 2007) when one unit moves no score by more than Δ = `sensitivity`. With
    monotone=True one unit must move all scores the same way; votes under replace-one do not. In both cases
    the privacy loss has range ε, so the event is Exponential(ε) under the sensitivity's adjacency (Durfee and
    Rogers 2019). Selection is by the largest score plus Gumbel noise, in float64: options less likely than
    about e^−44 never win.
    """

    @property
    def event(self) -> ev.Event:
        """The event of one selection."""
        return ev.Exponential(self.epsilon, adjacency=self._adjacency)

    def select(self, scores: Scores) -> int:
        """Choose an index at random, the better the score the likelier."""
        logits = self._logits(scores)
        return int(np.argmax(logits + or_system(self.source).gumbel(logits.size)))

    def probabilities(self, scores: Scores) -> NDArray[np.float64]:
        """Return the probability with which each index is chosen."""
        weights = np.exp(self._logits(scores))
        return np.asarray(weights / weights.sum())

    def _logits(self, scores: Scores) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):
            return np.asarray(subtract_best(scores) / self.scale)
