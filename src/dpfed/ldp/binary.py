"""Randomized response to a yes-or-no question (Warner 1965): tell the truth with chance p, else the opposite.

>>> BinaryResponse(truth=0.75).epsilon
1.0986122886681098
>>> BinaryResponse(truth=0.25).epsilon  # lies more often than not: as private, and never a negative ε
1.0986122886681098
>>> BinaryResponse.from_epsilon(1.0).event  # the ε of the rounded chance, which is never above the one asked for
RandomizedResponse(epsilon=0.9999999999999996)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins
from dpfed.ldp.coins import HALF, ONE
from dpfed.ldp.estimates import Estimate
from dpfed.ldp.oracle import (
    Reports,
    as_frequency,
    batches,
    read_codes,
    refuse_reports,
    require_reports,
    require_users,
    sampling_variance,
)
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True)
class BinaryResponse:
    """Report a true bit with chance `truth`, the opposite bit otherwise; `truth` is rounded towards ½ to 2⁻⁵³.

    Privacy: ``|ln(p/(1 − p))|``-DP for one user's bit (replace-one, local model), exactly; the event is
    RandomizedResponse(ε, 2). At p = ½ reports are pure noise: refused.
    """

    truth: float

    def __post_init__(self) -> None:
        asked = Fraction(checks.positive_probability(truth=self.truth))
        scaled = asked * ONE
        threshold = scaled.__floor__() if asked > Fraction(1, 2) else scaled.__ceil__()
        if threshold == HALF:
            raise InvalidArgument(
                "truth",
                "truth must not be ½: such reports are pure noise, and no estimator exists; choose a chance above ½, "
                "as 0.75, which is ε = ln 3",
            )
        object.__setattr__(self, "truth", threshold / ONE)

    @classmethod
    def from_epsilon(cls, epsilon: float) -> BinaryResponse:
        """Return the response that tells the truth as often as ε allows."""
        threshold = coins.chance_down(coins.exp(epsilon))
        coins.require_signal(threshold, HALF)
        return cls(threshold / ONE)

    @property
    def epsilon(self) -> float:
        """The ε of one report, of the coins that are drawn."""
        return coins.log_up(max(self._odds, 1 / self._odds))

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return ev.RandomizedResponse(self.epsilon, 2)

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances that a report is 1 for a user with 1, and for one with 0."""
        truth = Fraction(self.truth)
        return truth, 1 - truth

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return one bit for each user's bit."""
        bits = read_codes(values, 2)
        return (bits ^ ~coins.flip(or_system(source), int(self.truth * ONE), bits.size)).astype(np.uint8)

    def supports(self, reports: Reports, value: int) -> NDArray[np.bool_]:
        """Return whether each report is the value."""
        return np.asarray(reports == value)

    def estimate(self, reports: Reports | Iterable[Reports]) -> Estimate:
        """Return the unbiased estimate of the share of ones, as the only entry."""
        ones = users = 0
        for batch in batches(reports):
            checked = self._check(batch)
            ones, users = ones + int(np.count_nonzero(checked)), users + len(checked)
        own, other = self.chances
        share = float((Fraction(ones, require_users(users)) - other) / (own - other))
        error = np.sqrt(self.variance(users, min(max(share, 0.0), 1.0)))
        return Estimate(np.array([share]), np.array([error]), users)

    def variance(self, users: int, frequency: ArrayLike = 0.0, *, sampled: bool = False) -> Any:
        """Return the variance of the estimate; with sampled=True users are drawn from the population meant."""
        share = as_frequency(frequency)
        noise = float(self.chances[0] * self.chances[1] / (2 * self.chances[0] - 1) ** 2)
        return (noise + sampling_variance(share, sampled) + 0.0 * share) / checks.count(users=users)

    @property
    def _odds(self) -> Fraction:
        return self.chances[0] / self.chances[1]

    @staticmethod
    def _check(reports: Any) -> Reports:
        array = require_reports(reports, np.uint8)
        if array.max(initial=0) > 1:
            raise refuse_reports("numbers other than 0 and 1")
        return array
