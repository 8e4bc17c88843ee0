"""RAPPOR: texts from an open set, reported again and again at a price that is paid once.

A client puts its text into a Bloom filter and noises that once, for ever: its **permanent response**. Every report is a
freshly noised copy of it. Whoever collects all reports of a client learns the permanent response at most (Erlingsson,
Pihur and Korolova 2014).

>>> rappor = Rappor(f=0.5, p=0.25, q=0.75, bits=32, cohorts=4)
>>> rappor.epsilon, round(rappor.epsilon_of_report, 4)  # for ever, and of a single report
(4.394449154672439, 2.0433)
>>> from dpfed.randomness import SeededSource
>>> permanent = rappor.enroll(["blue"] * 9000 + ["red"] * 1000, SeededSource(1))
>>> reports = rappor.report(permanent, SeededSource(2))
>>> rappor.estimate(reports, ["blue", "red", "green"]).frequencies.round(1).tolist()
[0.9, 0.1, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins, packed, regression
from dpfed.ldp.bloom import MOST_HASHES, Filters, read_texts
from dpfed.ldp.coins import ONE
from dpfed.ldp.estimates import Estimate
from dpfed.ldp.oracle import (
    Codes,
    Reports,
    as_frequency,
    batches,
    refuse_reports,
    require_reports,
    require_users,
    sampling_variance,
)
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True)
class Rappor:
    """Bloom filters of `bits` bits and `hashes` functions, noised once with f, and again with p and q at every report.

    A permanent bit is the filter's, flipped with chance f/2; a reported bit is 1 with chance q where the permanent one
    is, and with chance p where it is not. Users belong to `cohorts` with hash functions of their own, at random;
    `label` is the public text from which the functions follow.

    Privacy: two texts differ in at most 2·hashes bits. All reports of one text together are
    2h·ln((1 − f/2)/(f/2))-DP, which is `epsilon` and the event PureDP(ε, adjacency="replace_one"); a single one is
    ``h·|ln(q*(1 − p*)/(p*(1 − q*)))|``-DP, `epsilon_of_report` (Theorems 1 and 2). Both follow from chances rounded to
    2⁻⁵³. They hold for one text, and only if its permanent response is kept: one drawn anew, or that of another text,
    costs `epsilon` again.
    """

    f: float
    p: float
    q: float
    bits: int = 128
    hashes: int = 2
    cohorts: int = 64
    label: str = "dpfed"
    _flip: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        for name in ("bits", "hashes", "cohorts"):
            object.__setattr__(self, name, checks.count(**{name: getattr(self, name)}))
        _require_sizes(self.bits, self.hashes, self.cohorts)
        half = Fraction(checks.positive_probability(f=self.f)) / 2
        object.__setattr__(self, "_flip", math.ceil(half * ONE))
        object.__setattr__(self, "f", 2 * self._flip / ONE)
        for name in ("p", "q"):
            object.__setattr__(self, name, round(_chance(name, getattr(self, name)) * ONE) / ONE)
        if self.p == self.q:
            raise InvalidArgument("q", "q must differ from p: reports would be pure noise; take q = 0.75 and p = 0.25")

    @classmethod
    def from_epsilon(cls, epsilon: float, p: float = 0.25, q: float = 0.75, **sizes: Any) -> Rappor:
        """Return the RAPPOR whose reports of one text, all together, are ε-DP."""
        hashes = checks.count(hashes=sizes.get("hashes", cls.hashes))
        keep = coins.chance_down(coins.exp(checks.positive(epsilon=epsilon) / (2 * hashes)))
        coins.require_signal(keep, ONE - keep)
        return cls(2 * (ONE - keep) / ONE, p, q, **sizes)

    @property
    def epsilon(self) -> float:
        """The ε of all reports of one text, as long as its permanent response is kept (ε∞ of the paper)."""
        return coins.log_up(Fraction(ONE - self._flip, self._flip) ** (2 * self.hashes))

    @property
    def epsilon_of_report(self) -> float:
        """The ε of a single report (ε₁ of the paper)."""
        high, low = sorted(self.chances, reverse=True)
        return coins.log_up((high * (1 - low) / (low * (1 - high))) ** self.hashes)

    @property
    def event(self) -> ev.Event:
        """The event of all reports of one text."""
        return ev.PureDP(self.epsilon, adjacency=REPLACE_ONE)

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances that a reported bit is 1 if the filter's is, and if it is not (q* and p*)."""
        flip, p, q = Fraction(self._flip, ONE), Fraction(self.p), Fraction(self.q)
        return (1 - flip) * q + flip * p, (1 - flip) * p + flip * q

    @property
    def filters(self) -> Filters:
        """The public hash functions."""
        return Filters(self.bits, self.hashes, self.cohorts, self.label)

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report, and of a permanent response: the cohort, and the bits."""
        return np.dtype([("cohort", "<u4"), ("bits", "u1", (packed.width(self.bits),))])

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return the one and only report of each user: the permanent responses behind them are thrown away."""
        coin = or_system(source)
        return self.report(self.enroll(values, coin), coin)

    def enroll(
        self, values: ArrayLike, source: RandomSource | None = None, cohorts: ArrayLike | None = None
    ) -> Reports:
        """Return the permanent response of each user, which the client keeps for itself, for as long as the text lives.

        A user's cohort is drawn at random unless it is given, as it must be for a user's second text.
        """
        texts, coin = read_texts(values), or_system(source)
        kept = np.empty(len(texts), dtype=self.report_type)
        kept["cohort"] = self._read_cohorts(cohorts, len(texts), coin)
        for part in packed.chunks(len(texts), self.bits):
            filled = self.filters.fill(texts[part], kept["cohort"][part].astype(np.int64))
            kept["bits"][part] = packed.pack(filled ^ packed.flip_rows(coin, self._flip, *filled.shape))
        return kept

    def report(self, permanent: Reports, source: RandomSource | None = None) -> Reports:
        """Return a new report of each permanent response."""
        kept, coin = self.check_reports(permanent), or_system(source)
        reports = kept.copy()
        for part in packed.chunks(len(kept), self.bits):
            is_set = packed.unpack(kept["bits"][part], self.bits) == 1
            ones = packed.flip_rows(coin, int(self.q * ONE), *is_set.shape)
            zeros = packed.flip_rows(coin, int(self.p * ONE), *is_set.shape)
            reports["bits"][part] = packed.pack(np.where(is_set, ones, zeros))
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are of these filters and cohorts."""
        array = require_reports(reports, self.report_type)
        if len(array) and array["cohort"].max() >= self.cohorts:
            raise refuse_reports("cohorts that were not declared")
        packed.require_padding(array["bits"], self.bits)
        return array

    def supports(self, reports: Reports, value: str) -> Codes:
        """Return which of the text's bits each report has, as a number of `hashes` binary digits."""
        places = self.filters.positions([str(value)] * self.cohorts, np.arange(self.cohorts))[reports["cohort"]]
        found = np.zeros(len(reports), dtype=np.int64)
        for index in range(self.hashes):
            found = 2 * found + packed.bit(reports["bits"], places[:, index])
        return found

    def estimate(self, reports: Reports | Iterable[Reports], candidates: Sequence[str]) -> Estimate:
        """Return the unbiased estimate for each candidate, by weighted least squares.

        It is right if all texts that users have are among the candidates, or meet none of their bits. Standard errors
        are for users who are a sample themselves.
        """
        return self._fit(reports, candidates).solve_all()

    def decode(
        self,
        reports: Reports | Iterable[Reports],
        candidates: Sequence[str],
        significance: float = 0.05,
        select: str = regression.NNLS,
    ) -> regression.Decoded:
        """Return which candidates are there: non-negative least squares, and a test of each that it leaves above 0.

        With select="lasso" the fit has a penalty: for many candidates of which few are there. The level is shared by
        all candidates (Bonferroni), and the test is that of candidates chosen beforehand (`regression.Decoded`). A text
        that is no candidate, but sets the same bits as one, can make that one seem significant: the test does not
        cover it.
        """
        if select not in (regression.NNLS, regression.LASSO):
            raise InvalidArgument("select", f"select must be 'nnls' or 'lasso', got {select!r:.40}: choose one of them")
        return self._fit(reports, candidates).decode(checks.positive_probability(significance=significance), select)

    def variance(self, users: int, frequency: ArrayLike = 0.0, *, sampled: bool = False) -> Any:
        """Return the variance of the estimate for a single candidate whose bits no other text sets."""
        (own, other), share = map(float, self.chances), as_frequency(frequency)
        noise = (share * own * (1 - own) + (1 - share) * other * (1 - other)) / (self.hashes * (own - other) ** 2)
        return (noise + sampling_variance(share, sampled)) / checks.count(users=users)

    def _fit(self, reports: Reports | Iterable[Reports], candidates: Sequence[str]) -> regression.Fit:
        names = _read_candidates(candidates)
        ones, users = np.zeros((self.cohorts, self.bits), dtype=np.int64), np.zeros(self.cohorts, dtype=np.int64)
        for batch in batches(reports):
            checked = self.check_reports(batch)
            cohorts = checked["cohort"].astype(np.int64)
            ones += packed.count_bits_by_group(cohorts, np.ascontiguousarray(checked["bits"]), ones.shape)
            users += np.bincount(cohorts, minlength=self.cohorts)
        require_users(int(users.sum()))
        own, other = map(float, self.chances)
        return regression.Fit(tuple(names), self.filters.design(names), ones, users, own, other)

    def _read_cohorts(self, cohorts: ArrayLike | None, users: int, source: RandomSource) -> NDArray[Any]:
        if cohorts is None:
            return coins.below(source, self.cohorts, users)
        array = np.asarray(cohorts)
        if array.shape != (users,) or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= self.cohorts:
            message = (
                f"cohorts must be a whole number from 0 to {self.cohorts - 1} for each user: give those drawn before"
            )
            raise InvalidArgument("cohorts", message)
        return array


def _chance(name: str, value: float) -> Fraction:
    chance = Fraction(checks.non_negative(**{name: value}))
    if chance > 1:
        raise InvalidArgument(name, f"{name} must be a chance from 0 to 1: it says how often a reported bit is 1")
    return chance


def _require_sizes(bits: int, hashes: int, cohorts: int) -> None:
    if hashes > min(bits - 1, MOST_HASHES):
        raise InvalidArgument("hashes", f"hashes must be at most {MOST_HASHES} and below bits: two are usual")
    if bits > 1 << 16 or cohorts > 1 << 16:
        raise InvalidArgument("bits", "bits and cohorts must be at most 2¹⁶ each: 128 and 64 are usual")


def _read_candidates(candidates: Sequence[str]) -> list[str]:
    names = [str(name) for name in read_texts(np.asarray(list(candidates)), "candidates")]
    if len(set(names)) < len(names):
        raise InvalidArgument("candidates", "candidates must all be different: remove the repeated one")
    return names
