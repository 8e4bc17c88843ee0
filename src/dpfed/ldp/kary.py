"""Randomized response among k values: the true one with chance p, else one of the others, all alike.

The best oracle for small domains (Kairouz, Bonawitz and Ramage 2016); its error grows with k, so `choose` takes another
one above 3e^ε + 2 values.

>>> response = KaryResponse(epsilon=1.0, domain=10)
>>> response.event
RandomizedResponse(epsilon=0.9999999999999994, num_buckets=10)
>>> from dpfed.randomness import SeededSource
>>> found = response.estimate(response.randomize([3] * 20_000, SeededSource(1)))
>>> found.frequencies.round(2)[:4].tolist()
[-0.0, -0.0, 0.01, 1.02]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import events as ev
from dpfed.ldp import coins
from dpfed.ldp.coins import ONE
from dpfed.ldp.oracle import Codes, FrequencyOracle, Reports, read_codes, refuse_reports, require_reports
from dpfed.randomness import RandomSource, or_system

_BLOCK = 1 << 14  # users at a time, whose coins stay in the cache


@dataclass(frozen=True)
class KaryResponse(FrequencyOracle):
    """Report the true value with chance p = e^ε/(e^ε + k − 1), each other one with chance 1/(e^ε + k − 1).

    Privacy: ln(p(k − 1)/(1 − p))-DP with p rounded down to 2⁻⁵³, for any two values of one user (replace-one, local
    model); the event is RandomizedResponse(ε, k), where k counts `ABSENT` too.
    """

    _own: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_own", truth_threshold(self.epsilon, self.size))
        object.__setattr__(self, "epsilon", truth_epsilon(self._own, self.size))

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return ev.RandomizedResponse(self.epsilon, self.size)

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances of the user's own value and of any other one."""
        own = Fraction(self._own, ONE)
        return own, (1 - own) / (self.size - 1)

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return one value for each user's value."""
        codes = read_codes(values, self.domain, self.absent)
        return respond(codes, self._own, self.size, or_system(source))

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are values of the domain."""
        array = require_reports(reports, np.uint32)
        if array.max(initial=0) >= self.size:
            raise refuse_reports("values outside the domain")
        return array

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        return np.asarray(reports == code)

    def support(self, reports: Reports) -> Codes:
        """Return how many reports are each value."""
        return np.bincount(reports, minlength=self.size)


def truth_threshold(epsilon: float, size: int) -> int:
    """Return the chance of the true value of `size`, as a number of 2⁻⁵³ rounded down."""
    return coins.window_threshold(epsilon, 1, size - 1)


def truth_epsilon(own: int, size: int) -> float:
    """Return the ε of a response whose true value has that chance."""
    return coins.window_epsilon(own, 1, size - 1)


def respond(codes: Codes, own: int, size: int, source: RandomSource) -> NDArray[np.uint32]:
    """Return each code with chance own/2⁵³, otherwise one of the other codes below `size`, uniformly."""
    reports = np.empty(codes.size, dtype=np.uint32)
    for start in range(0, codes.size, _BLOCK):
        part = codes[start : start + _BLOCK].astype(np.uint32)
        is_lie = ~coins.flip(source, own, part.size)
        # A lie moves by 1 to size − 1 steps around the domain, so that it never meets the truth.
        part += (coins.below(source, size - 1, part.size) + np.uint32(1)) * is_lie
        reports[start : start + part.size] = np.minimum(part, part - np.uint32(size))
    return reports
