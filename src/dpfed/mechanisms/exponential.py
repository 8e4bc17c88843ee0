"""Choosing the best of many by score: the exponential mechanism.

>>> mechanism = ExponentialMechanism(epsilon=1.0, sensitivity=1.0)
>>> mechanism.probabilities([0.0, 2.0]).round(4)
array([0.2689, 0.7311])
>>> mechanism.select([0.0, 1000.0])
1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system

Scores = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, repr=False)
class ExponentialMechanism:
    """An index drawn with probability ∝ exp(ε score/(2Δ)), or exp(ε score/Δ) when scores are monotone.

    Privacy: ε-DP (McSherry and Talwar 2007) when one unit moves no score by more than Δ = `sensitivity`. With
    monotone=True one unit must move all scores the same way; votes under replace-one do not. In both cases
    the privacy loss has range ε, so the event is Exponential(ε) under the sensitivity's adjacency (Durfee and
    Rogers 2019). Selection is by the largest score plus Gumbel noise, in float64: options less likely than
    about e^−44 never win.
    """

    epsilon: float
    sensitivity: Sensitivity | float
    monotone: bool = False
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "sensitivity", in_norm("linf", self.sensitivity))
        object.__setattr__(self, "source", or_system(self.source))

    @property
    def scale(self) -> float:
        """The scale of the Gumbel noise on the scores."""
        return (1 if self.monotone else 2) * float(self.sensitivity) / self.epsilon

    @property
    def event(self) -> ev.Event:
        """What one selection is charged as."""
        return ev.Exponential(self.epsilon, adjacency=in_norm("linf", self.sensitivity).adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the choice is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    def select(self, scores: Scores) -> int:
        """The index of the chosen score."""
        logits = self._logits(scores)
        return int(np.argmax(logits + or_system(self.source).gumbel(logits.size)))

    def probabilities(self, scores: Scores) -> NDArray[np.float64]:
        """The probability with which each index is chosen."""
        weights = np.exp(self._logits(scores))
        return np.asarray(weights / weights.sum())

    def _logits(self, scores: Scores) -> NDArray[np.float64]:
        values = checked_scores(scores)
        with np.errstate(over="ignore"):
            return np.asarray((values - values.max()) / self.scale)

    def __repr__(self) -> str:
        sensitivity = in_norm("linf", self.sensitivity)
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return (
            f"ExponentialMechanism(epsilon={self.epsilon!r}, sensitivity={float(sensitivity)!r}, "
            f"monotone={self.monotone!r}, adjacency={sensitivity.adjacency!r}){stamp}"
        )


def checked_scores(scores: Scores) -> NDArray[np.float64]:
    """The scores as a float64 vector, if there is at least one and all are finite."""
    values = np.asarray(scores)
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "fiu":
        raise InvalidArgument("scores", f"scores must be a list of one or more real numbers, got {scores!r:.80}")
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)):
        raise InvalidArgument("scores", "scores must be finite, got NaN or infinity")
    return values
