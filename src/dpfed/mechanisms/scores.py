"""What every choice by score has in common: ε, how far one unit moves a score, and scores that are checked.

>>> subtract_best([1, 2.5])
array([-1.5,  0. ])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import arrays, checks
from dpfed import events as ev
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_up

Scores = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, repr=False)
class ChoiceByScore:
    """A mechanism that picks one index by score, at ε.

    Privacy: one unit moves no score by more than Δ = `sensitivity`, under its adjacency; with monotone=True it
    moves all scores the same way, and half the noise is enough. The event is PureDP(ε).
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
        """The score difference that one unit of exponent stands for: 2Δ/ε, or Δ/ε when monotone, rounded up."""
        return round_up(self._spread)

    @property
    def event(self) -> ev.Event:
        """The event of one selection."""
        return ev.PureDP(self.epsilon, adjacency=self._adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the choice is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    @property
    def _adjacency(self) -> str:
        return in_norm("linf", self.sensitivity).adjacency

    @property
    def _spread(self) -> Fraction:
        return (1 if self.monotone else 2) * Fraction(self.sensitivity) / Fraction(self.epsilon)

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return (
            f"{type(self).__name__}(epsilon={self.epsilon!r}, sensitivity={float(self.sensitivity)!r}, "
            f"monotone={self.monotone!r}, adjacency={self._adjacency!r}){stamp}"
        )


def subtract_best(scores: Scores) -> NDArray[np.float64]:
    """Return each score less the largest one: what a choice depends on.

    Noise on the scores themselves would be rounded as coarsely as the largest of them is. A difference errs by 2⁻⁵³ of
    itself, which is next to nothing of the noise wherever the noise can make up for it.
    """
    values = arrays.vector(scores, "scores")
    with np.errstate(over="ignore"):
        return np.asarray(values - values.max())
