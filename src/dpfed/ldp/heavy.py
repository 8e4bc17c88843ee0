"""Heavy hitters: the frequent values of a domain too large to ask about each, found by extending prefixes (PEM).

Users are split into groups by a coin. The first group reports the first bits of its values, each further one some bits
more, all of them with the whole ε, since a user is in one group only. The server keeps the most frequent prefixes and
asks the next group's reports only about their extensions (Wang, Li and Jha 2021).

>>> import numpy as np
>>> from dpfed.randomness import SeededSource
>>> finder = PrefixExtension(epsilon=3.0, bits=20, first=6, step=7, keep=4)
>>> values = np.repeat([123_456, 654_321, 77], [9000, 6000, 1])
>>> finder.find(finder.randomize(values, SeededSource(1))).significant
(123456, 654321)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins
from dpfed.ldp.estimates import Estimate, normal_quantile
from dpfed.ldp.hashing import REPORT, LocalHashing
from dpfed.ldp.oracle import Codes, Reports, batches, read_codes, refuse_reports, require_reports, require_users
from dpfed.randomness import RandomSource, or_system

MOST_BITS = 30
MOST_CANDIDATES = 1 << 16  # compared with every report of a group

_GROUPED = np.dtype([("group", "<u4"), ("report", REPORT)])


@dataclass(frozen=True)
class HeavyHitters:
    """The values found, the most frequent first, with estimates from the last group alone.

    Values were chosen because their estimates are large, so these are somewhat too large for the rare ones among them;
    `significant` are those of which chance alone would not make one in twenty searches.
    """

    values: tuple[int, ...]
    estimate: Estimate
    significant: tuple[int, ...]


@dataclass(frozen=True)
class PrefixExtension:
    """Report a prefix of one's value of `bits` bits, of a length that a coin chose, by optimised local hashing.

    The lengths are `first`, `first` + `step` and so on up to `bits`. The server keeps `keep` prefixes of each.

    Privacy: the group does not depend on the value, and each user sends one report, with the whole ε of local hashing
    (replace-one, local model); the search is post-processing. The event is PureDP(ε, adjacency="replace_one").
    """

    epsilon: float
    bits: int
    first: int = 8
    step: int = 4
    keep: int = 32
    _oracle: LocalHashing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._require_sizes()
        object.__setattr__(self, "_oracle", LocalHashing(self.epsilon, 1 << self.bits))
        object.__setattr__(self, "epsilon", self._oracle.epsilon)

    def _require_sizes(self) -> None:
        bits, first = checks.count(bits=self.bits), checks.count(first=self.first)
        if bits > MOST_BITS or first > bits:
            message = f"bits must be at most {MOST_BITS} and at least first, which is {first}: hash longer values"
            raise InvalidArgument("bits", message)
        step, keep = checks.count(step=self.step), checks.count(keep=self.keep)
        if first > 16 or step > 16 or keep << min(step, bits) > MOST_CANDIDATES:
            message = "keep · 2^step and 2^first must be at most 2¹⁶, which every report is compared with: lower step"
            raise InvalidArgument("step", message)

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return self._oracle.event

    @property
    def lengths(self) -> tuple[int, ...]:
        """The length of each group's prefixes."""
        return (*range(self.first, self.bits, self.step), self.bits)

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a group and a report on the prefix of that group's length for each user."""
        codes, coin = read_codes(values, 1 << self.bits), or_system(source)
        reports = np.empty(codes.size, dtype=_GROUPED)
        reports["group"] = groups = coins.below(coin, len(self.lengths), codes.size)
        reports["report"] = self._oracle.randomize(codes >> (self.bits - np.array(self.lengths)[groups]), coin)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are of a group and of the hash family."""
        array = require_reports(reports, _GROUPED)
        if array["group"].max(initial=0) >= len(self.lengths):
            raise refuse_reports("groups that were not declared")
        self._oracle.check_reports(array["report"])
        return array

    def estimate(self, reports: Reports | Iterable[Reports], candidates: Sequence[int]) -> Estimate:
        """Return the unbiased estimate for each of some values, from the last group, who reported whole ones.

        Standard errors take that group for a sample of all users.
        """
        whole = self._split(reports)[-1]
        return self._estimate(whole, read_codes(candidates, 1 << self.bits))

    def find(self, reports: Reports | Iterable[Reports], significance: float = 0.05) -> HeavyHitters:
        """Return the most frequent values, `keep` of them at most.

        A value is missed if one of its prefixes is not among the `keep` most frequent ones. Unlike an estimate of a
        listed domain, a search holds all reports in memory, 24 bytes each and a copy, since groups come in any order.
        """
        checks.positive_probability(significance=significance)
        candidates, length = np.zeros(1, dtype=np.int64), 0
        for group, next_length in zip(self._split(reports), self.lengths, strict=True):
            candidates, tested = _extend(candidates, next_length - length), len(candidates) << (next_length - length)
            found = self._estimate(group, candidates)
            order = np.argsort(-found.frequencies, kind="stable")[: self.keep]
            candidates, length = candidates[order], next_length
        best = Estimate(found.frequencies[order], found.standard_errors[order], found.users)
        border = normal_quantile(1 - significance, tested) * np.sqrt(self._oracle.variance(found.users))
        is_above = best.frequencies > border
        return HeavyHitters(tuple(candidates.tolist()), best, tuple(candidates[is_above].tolist()))

    def variance(self, users: int, frequency: ArrayLike = 0.0) -> Any:
        """Return about the variance of the estimate for a value of that frequency, if the groups are equally large."""
        group = max(checks.count(users=users) // len(self.lengths), 1)
        return self._oracle.variance(group, frequency, sampled=True)

    def _split(self, reports: Reports | Iterable[Reports]) -> list[Reports]:
        """Return the reports of each group."""
        checked = [self.check_reports(batch) for batch in batches(reports)]
        require_users(sum(map(len, checked)))
        together = np.concatenate(checked)
        return [together["report"][together["group"] == group] for group in range(len(self.lengths))]

    def _estimate(self, reports: Reports, candidates: Codes) -> Estimate:
        if not len(reports):
            raise InvalidArgument(
                "reports",
                f"reports must come from all {len(self.lengths)} groups, and one has none, so that its prefixes cannot "
                "be counted: collect more reports, or take a larger step",
            )
        own, other = map(float, self._oracle.chances)
        counts = np.array([np.count_nonzero(self._oracle.supports(reports, each)) for each in candidates.tolist()])
        frequencies = (counts / len(reports) - other) / (own - other)
        variances = self._oracle.variance(len(reports), np.clip(frequencies, 0.0, 1.0), sampled=True)
        return Estimate(frequencies, np.sqrt(variances), len(reports))


def _extend(prefixes: Codes, bits: int) -> NDArray[np.int64]:
    """Return every prefix followed by any so many bits."""
    return ((prefixes[:, None] << bits) + np.arange(1 << bits)).ravel()
