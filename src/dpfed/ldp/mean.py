"""The mean of numbers from −1 to 1, of which every user sends only a noisy one, unbiased: what all mechanisms share.

The first of them, Duchi's sign, is the best at small ε; `piecewise.py` has those for larger ones. All draw whole
numbers only, so that no rounding is left that a proof does not cover. What is rounded is the value, by a coin, before
it is noised: without bias beyond the last bit of a float.

>>> from dpfed.randomness import SeededSource
>>> mechanism = DuchiMean(epsilon=1.0)
>>> found = mechanism.estimate(mechanism.randomize([0.25] * 40_000, SeededSource(1)))
>>> round(float(found.means), 2), round(float(found.standard_errors), 2)
(0.24, 0.01)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins
from dpfed.ldp.coins import HALF
from dpfed.ldp.estimates import Floats, MeanEstimate
from dpfed.ldp.oracle import Reports, batches, refuse_reports, require_reports, require_users
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True)
class MeanMechanism:
    """A local mechanism for numbers from −1 to 1, and the decoder of its reports.

    `epsilon` is the largest ε allowed; it becomes the one of the rounded probabilities, which is never larger.

    Privacy: one report is ε-DP in the local model: any value of one user against any other (replace-one), with no
    trusted party. The event is PureDP(ε, adjacency="replace_one").
    """

    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return ev.PureDP(self.epsilon, adjacency=REPLACE_ONE)

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report."""
        raise NotImplementedError

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return one report for each user's number."""
        return self.draw(read_numbers(values, 1), or_system(source))

    def draw(self, numbers: Floats, source: RandomSource) -> Reports:
        """Return one report for each number, of which all were checked and none is left over."""
        raise NotImplementedError

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports as an array; refuse what this mechanism cannot have sent."""
        raise NotImplementedError

    def decode(self, reports: Reports) -> Floats:
        """Return an unbiased estimate of each user's number."""
        raise NotImplementedError

    def noise(self, value: Any) -> Any:
        """Return the variance of one decoded report of that number."""
        raise NotImplementedError

    def estimate(self, reports: Reports | Iterable[Reports]) -> MeanEstimate:
        """Return the unbiased estimate of the mean, from an array of reports or an iterable of such arrays.

        Its standard error is that of users who are a sample themselves: for the mean of just these users it is
        somewhat too large.
        """
        sums, users = np.zeros(2), 0
        for batch in batches(reports):
            decoded = self.decode(self.check_reports(batch))
            sums += decoded.sum(), decoded @ decoded
            users += len(decoded)
        return summarize(sums[0], sums[1], require_users(users), min(self.noise(0.0), self.noise(1.0)))

    def variance(self, users: int, value: ArrayLike = 0.0) -> Any:
        """Return the variance of the estimate for so many users who all have that number; it is that of the coins."""
        numbers = np.asarray(value, dtype=np.float64)
        _require_range("value", numbers)
        return self.noise(numbers if numbers.ndim else float(numbers)) / checks.count(users=users)

    def worst_variance(self, users: int) -> float:
        """Return the largest variance of the estimate, whatever the numbers are."""
        return float(max(self.variance(users, 0.0), self.variance(users, 1.0)))


@dataclass(frozen=True)
class DuchiMean(MeanMechanism):
    """Send a sign: plus with chance ½ + x(e^ε − 1)/(2(e^ε + 1)) (Duchi, Jordan and Wainwright 2018).

    The number is rounded to −1 or 1 by a coin, and that sign is turned round with chance 1/(e^ε + 1).

    Privacy: the sign is a randomized response, so a report is ln(p/(1 − p))-DP with p rounded down to 2⁻⁵³
    (replace-one, local model), whatever the rounding before did; the event is PureDP(ε, adjacency="replace_one").
    """

    _keep: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_keep", coins.window_threshold(self.epsilon, 1, 1))
        object.__setattr__(self, "epsilon", coins.window_epsilon(self._keep, 1, 1))

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report: a sign."""
        return np.dtype(np.int8)

    @property
    def largest(self) -> float:
        """The size of every decoded report, C = (e^ε + 1)/(e^ε − 1)."""
        return float(Fraction(HALF, self._keep - HALF))

    def draw(self, numbers: Floats, source: RandomSource) -> Reports:
        """Return a sign for each number."""
        is_plus = coins.flip_each(source, np.rint((numbers + 1) * HALF))
        is_kept = coins.flip(source, self._keep, numbers.size)
        return np.where(is_plus == is_kept, 1, -1).astype(np.int8)

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are signs."""
        array = require_reports(reports, self.report_type)
        if not np.all(np.abs(array) == 1):
            raise refuse_reports("what is no sign")
        return array

    def decode(self, reports: Reports) -> Floats:
        """Return an unbiased estimate of each user's number."""
        return np.asarray(reports, dtype=np.float64) * self.largest

    def noise(self, value: Any) -> Any:
        """Return the variance of one decoded report of that number, C² − x²."""
        return self.largest**2 - value**2


def read_numbers(values: ArrayLike, axes: int) -> Floats:
    """Return the users' numbers, if all lie from −1 to 1 in an array of so many axes that is not empty."""
    array = np.asarray(values)
    if array.ndim != axes or not array.size or array.dtype.kind not in "iuf":
        raise InvalidArgument(
            "values",
            f"values must be numbers in an array of {axes} ax{'is' if axes == 1 else 'es'}, the first one for users, "
            f"got shape {array.shape} of {array.dtype}: give one row for each user",
        )
    _require_range("values", array)
    return array.astype(np.float64)


def summarize(total: Any, squares: Any, users: int, least: Any) -> MeanEstimate:
    """Return the mean and its standard error from sums of decoded reports and their squares.

    The variance of one report is not taken to be below `least`, which it cannot be.
    """
    means = np.asarray(total / users)
    spread = np.asarray(squares / users) - means**2
    return MeanEstimate(means, np.sqrt(np.maximum(spread, least) / users), users)


def _require_range(name: str, numbers: Floats) -> None:
    if not np.all(np.abs(numbers) <= 1):
        raise InvalidArgument(
            name,
            f"{name} must lie from −1 to 1, and some do not: noise for that range would not hide them; scale by bounds "
            "that are public, and clip to them yourself",
        )
