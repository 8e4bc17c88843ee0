"""Asking "is it above the threshold?" many times and paying for the few times it is.

>>> questions = SparseVector(epsilon=1.0, sensitivity=1.0, threshold=1000.0, max_positives=2)
>>> [questions.is_above(value) for value in (0.0, 3000.0, 10.0, 4000.0)]
[False, True, False, True]
>>> questions.is_above(0.0)
Traceback (most recent call last):
    ...
dpfed.errors.BudgetExceeded: all 2 positive answers are given: open a new SparseVector, at its own ε
"""

from __future__ import annotations

import os
import threading

from dpfed import arrays, checks
from dpfed import events as ev
from dpfed.errors import BudgetExceeded
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system

_ROUNDING = 1 + 2.0**-50  # more than computing a scale in floats can lose


class SparseVector:
    """Yes/no answers to "is this query above the threshold?", until `max_positives` of them were yes.

    The threshold gets Laplace noise of scale Δ/ε₁ once, every query fresh noise of scale 2cΔ/ε₂ (cΔ/ε₂ when
    monotone), with ε₁ + ε₂ = ε and ε₁ : ε₂ = 1 : (2c)^(2/3) (c^(2/3)), c = max_positives.

    Privacy: ε-DP for the whole stream of answers, however many are no (Lyu, Su and Li 2017, Theorems 2 and
    3), when one unit moves no query by more than Δ = `sensitivity`; with monotone=True all queries must move
    the same way. Queries may be chosen after reading answers. Answers are bits: releasing a noisy value costs
    extra. The event, charged once and in advance, is PureDP(ε).
    """

    def __init__(
        self,
        epsilon: float,
        sensitivity: Sensitivity | float,
        threshold: float,
        max_positives: int = 1,
        *,
        monotone: bool = False,
        source: RandomSource | None = None,
    ) -> None:
        self.epsilon = checks.positive(epsilon=epsilon)
        self.sensitivity = in_norm("linf", sensitivity)
        self.threshold = arrays.number(threshold, "threshold")
        self.max_positives = checks.count(max_positives=max_positives)
        self.monotone = monotone
        self.positives = 0
        self._source = or_system(source)
        self._threshold_noise: float | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def threshold_scale(self) -> float:
        """The scale of the noise on the threshold, Δ/ε₁."""
        return float(self.sensitivity) / (self.epsilon * self._threshold_share) * _ROUNDING

    @property
    def query_scale(self) -> float:
        """The scale of the noise on every query, 2cΔ/ε₂ or cΔ/ε₂."""
        return self._factor * float(self.sensitivity) / (self.epsilon * (1 - self._threshold_share)) * _ROUNDING

    @property
    def event(self) -> ev.Event:
        """The event of the whole stream of answers."""
        return ev.PureDP(self.epsilon, adjacency=self.sensitivity.adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return self._source.is_private

    @property
    def is_exhausted(self) -> bool:
        """Whether all positive answers are given."""
        return self.positives >= self.max_positives

    def is_above(self, value: float) -> bool:
        """Return whether the noisy value reaches the noisy threshold; refuse once all positives are given."""
        # Their difference, because noise on a large value would be rounded as coarsely as the value is.
        above = arrays.number(value, "value") - self.threshold
        self._require_own_process()
        with self._lock:
            if self.is_exhausted:
                raise BudgetExceeded(
                    f"all {self.max_positives} positive answers are given: open a new SparseVector, at its own ε"
                )
            noisy = above + self.query_scale * float(self._source.laplace())
            answer = noisy >= self._draw_threshold_noise()
            self.positives += answer
        return answer

    @property
    def _factor(self) -> int:
        return (1 if self.monotone else 2) * self.max_positives

    @property
    def _threshold_share(self) -> float:
        return float(1 / (1 + self._factor ** (2 / 3)))

    def _draw_threshold_noise(self) -> float:
        if self._threshold_noise is None:
            self._threshold_noise = self.threshold_scale * float(self._source.laplace())
        return self._threshold_noise

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise BudgetExceeded(
                "a query was asked in a forked process, where its positives would be given a second time: "
                "open the SparseVector in the process that asks"
            )

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a SparseVector is not copied or pickled: each copy would give its positives for one price")

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return (
            f"SparseVector(epsilon={self.epsilon!r}, sensitivity={float(self.sensitivity)!r}, "
            f"threshold={self.threshold!r}, {self.positives} of {self.max_positives} positives given, "
            f"adjacency={self.sensitivity.adjacency!r}){stamp}"
        )
