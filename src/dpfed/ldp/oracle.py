"""What all frequency oracles share: a declared domain, checked values and reports, the estimator and its variance.

A report supports some of the values: the user's own with chance p, each other with chance q. That is all an estimate
needs (Wang, Blocki, Li and Jha 2017, "pure" protocols): of n reports, C support a value, and (C/n − q)/(p − q) is an
unbiased estimate of its frequency.

>>> from dpfed.ldp.kary import KaryResponse
>>> KaryResponse(epsilon=1.0, domain=3).randomize([0, 1, 7])
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: values must lie from 0 to 2, the 3 values of the declared domain, and some do not: ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.ldp.estimates import Estimate, Floats
from dpfed.randomness import RandomSource

ABSENT = -1  # the value of a user who has none
LARGEST_DOMAIN = (1 << 31) - 2
BATCH = 1 << 16  # reports decoded at a time

Codes = NDArray[np.int64]
Reports = NDArray[Any]


@dataclass(frozen=True)
class FrequencyOracle:
    """A local mechanism for values 0, 1, …, domain − 1, and the decoder of its reports.

    With absent=True a user without a value takes part as `ABSENT`, which is then one more value, the last of all
    estimates: who has nothing to report stays as hidden as everything else.

    `epsilon` is the largest ε allowed; it becomes the one of the rounded probabilities, which is never larger.

    Privacy: one report is ε-DP in the local model: any value of one user against any other (replace-one), with no
    trusted party. The event is PureDP(ε, adjacency="replace_one").
    """

    epsilon: float
    domain: int
    absent: bool = False

    def __post_init__(self) -> None:
        domain = checks.count(domain=self.domain)
        if domain + self.absent < 2 or domain > LARGEST_DOMAIN:
            raise InvalidArgument(
                "domain",
                f"domain must have from 2 to 2³¹ − 2 values, got {domain}: with fewer there is nothing to hide, and "
                "more need a coarser grouping of the values",
            )
        object.__setattr__(self, "domain", domain)
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))

    @property
    def size(self) -> int:
        """The number of values with an estimate, `ABSENT` included."""
        return self.domain + self.absent

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return ev.PureDP(self.epsilon, adjacency=REPLACE_ONE)

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances p and q that a report supports the user's own value, and any other one."""
        raise NotImplementedError

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return one report for each user."""
        raise NotImplementedError

    def supports(self, reports: Reports, value: int) -> NDArray[np.bool_]:
        """Return whether each report supports the value, which may be `ABSENT`."""
        (code,) = read_codes([value], self.domain, self.absent).tolist()
        return self._supports(self.check_reports(reports), code)

    def support(self, reports: Reports) -> Codes:
        """Return how many of a batch of reports support each value."""
        raise NotImplementedError

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports as an array; refuse what this mechanism cannot have sent."""
        raise NotImplementedError

    def estimate(self, reports: Reports | Iterable[Reports]) -> Estimate:
        """Return the unbiased estimate for every value, from an array of reports or an iterable of such arrays."""
        counts, users = np.zeros(self.size, dtype=np.int64), 0
        for batch in batches(reports):
            checked = self.check_reports(batch)
            counts += self.support(checked)
            users += len(checked)
        return self._estimate(counts, require_users(users))

    def variance(self, users: int, frequency: ArrayLike = 0.0, *, sampled: bool = False) -> Any:
        """Return the variance of the estimate for a value of that frequency among so many users.

        It is that of the coins alone, for users as they are; with sampled=True they are themselves a sample, and the
        estimate is for the population they were drawn from.
        """
        own, other = map(float, self.chances)
        gap = float(self.chances[0] - self.chances[1])
        share = as_frequency(frequency)
        coins = other * (1 - other) / gap**2 + share * (1 - own - other) / gap
        return (coins + sampling_variance(share, sampled)) / checks.count(users=users)

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        raise NotImplementedError

    def _estimate(self, counts: Codes, users: int) -> Estimate:
        own, other = self.chances
        frequencies = (counts / users - float(other)) / float(own - other)
        return Estimate(frequencies, self._errors(frequencies, users), users)

    def _errors(self, frequencies: Floats, users: int) -> Floats:
        return np.asarray(np.sqrt(self.variance(users, np.clip(frequencies, 0.0, 1.0))))


def as_frequency(frequency: ArrayLike) -> Any:
    """Return a frequency, or an array of them, if all lie from 0 to 1."""
    share = np.asarray(frequency, dtype=np.float64)
    if not np.all((share >= 0) & (share <= 1)):
        raise InvalidArgument(
            "frequency", "frequency must be a share of the users, from 0 to 1: divide counts by users"
        )
    return share if share.ndim else float(share)


def sampling_variance(share: Any, sampled: bool) -> Any:
    """Return what drawing one user from a population adds to the variance."""
    return share * (1 - share) if sampled else 0.0


def read_codes(values: ArrayLike, domain: int, absent: bool = False) -> Codes:
    """Return the users' values as codes from 0 on, `ABSENT` as the one after the last; refuse any other."""
    array = np.asarray(values)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iub":
        raise InvalidArgument(
            "values",
            f"values must be one list of whole numbers, one for each user, got shape {array.shape} of "
            f"{array.dtype.type.__name__}: number the values of the domain from 0 on",
        )
    lowest = ABSENT if absent else 0
    if array.min() < lowest or array.max() >= domain:
        where = (
            f"from 0 to {domain - 1}, the {domain} values of the declared domain{', or be ABSENT' if absent else ''}"
        )
        raise InvalidArgument(
            "values",
            f"values must lie {where}, and some do not: a report of another value cannot be decoded; declare the whole "
            "domain, or leave these users out",
        )
    codes = array.astype(np.int64)
    return np.where(codes == ABSENT, domain, codes) if absent else codes


def batches(reports: Reports | Iterable[Reports]) -> Iterator[Reports]:
    """Yield reports a batch at a time, so that decoding takes the same memory for any number of them."""
    for part in reports if isinstance(reports, Iterable) and not isinstance(reports, np.ndarray) else [reports]:
        array = np.asarray(part)
        if array.ndim == 0:
            message = "reports must be an array of reports or an iterable of such arrays: give what randomize returned"
            raise InvalidArgument("reports", message)
        for start in range(0, len(array), BATCH):
            yield array[start : start + BATCH]


def require_users(users: int) -> int:
    """Return the number of reports, if there is one at least."""
    if users == 0:
        raise InvalidArgument("reports", "reports must hold at least one report: there is nothing to estimate from")
    return users


def require_reports(reports: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Reports:
    """Return reports of the expected type and shape; refuse those of another mechanism."""
    array, expected = np.asarray(reports), np.dtype(dtype)
    if array.dtype != expected or array.shape[1:] != shape:
        raise InvalidArgument(
            "reports",
            f"reports must be {expected} of shape (users{''.join(f', {size}' for size in shape)}), got {array.dtype} "
            f"of shape {array.shape}: they are of another mechanism, so decode them with that one",
        )
    return array


def refuse_reports(what: str) -> InvalidArgument:
    """Return the refusal of reports that this mechanism cannot have sent."""
    return InvalidArgument(
        "reports",
        f"reports hold {what}, which this mechanism never sends: they are of other settings or damaged, and decoding "
        "them would be wrong; decode reports with the mechanism that made them",
    )
