"""Optimised local hashing: each user hashes its value to a few buckets by a function of its own, and responds to those.

A report is twenty bytes for any domain, and as accurate as a unary encoding. What it costs is decoding: every report is
compared with every value of the domain (Wang, Blocki, Li and Jha 2017).

>>> oracle = LocalHashing(epsilon=1.0, domain=1000)
>>> oracle.buckets, round(oracle.variance(users=10_000), 9)
(4, 0.000369165)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.errors import InvalidArgument
from dpfed.ldp import coins, hashes
from dpfed.ldp.coins import ONE
from dpfed.ldp.kary import respond, truth_epsilon, truth_threshold
from dpfed.ldp.oracle import Codes, FrequencyOracle, Reports, read_codes, refuse_reports, require_reports
from dpfed.randomness import RandomSource, or_system

REPORT = np.dtype([("multiplier", "<u8"), ("offset", "<u8"), ("bucket", "<u4")])
_BLOCK = 1 << 13  # reports whose points stay in the cache while the values pass by
_PRIME = np.uint64(hashes.PRIME)


@dataclass(frozen=True)
class LocalHashing(FrequencyOracle):
    """Send a hash function drawn at random and a randomized response to the bucket of the user's value.

    `buckets` is round(e^ε) + 1 unless it is given: then the variance is the least; at most 2¹⁶.

    Privacy: the function does not depend on the value, and the bucket is a randomized response among `buckets` ones, so
    a report is ln(p(g − 1)/(1 − p))-DP (replace-one, local model), with p rounded down to 2⁻⁵³; the event is
    PureDP(ε, adjacency="replace_one").
    """

    buckets: int = 0
    _own: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buckets", _read_buckets(self.buckets, self.epsilon))
        object.__setattr__(self, "_own", truth_threshold(self.epsilon, self.buckets))
        object.__setattr__(self, "epsilon", truth_epsilon(self._own, self.buckets))

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The chances that a report's bucket is that of the user's own value, and that of any other one."""
        return Fraction(self._own, ONE), Fraction(1, self.buckets)

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a hash function and a bucket for each user."""
        codes, coin = read_codes(values, self.domain, self.absent), or_system(source)
        reports = np.empty(codes.size, dtype=REPORT)
        for start in range(0, codes.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            reports[part] = self._randomize(codes[part], coin)
        return reports

    def _randomize(self, codes: Codes, source: RandomSource) -> Reports:
        reports = np.empty(codes.size, dtype=REPORT)
        multiplier, offset = hashes.draw_coefficients(source, 2 * codes.size).reshape(2, -1)
        hashed = hashes.buckets(hashes.evaluate(multiplier, offset, codes), self.buckets)
        reports["multiplier"], reports["offset"] = multiplier, offset
        reports["bucket"] = respond(hashed, self._own, self.buckets, source)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are functions of the family and buckets of theirs."""
        array = require_reports(reports, REPORT)
        if len(array) and array["bucket"].max() >= self.buckets:
            raise refuse_reports("buckets that this number of them does not have")
        if len(array) and max(array["multiplier"].max(), array["offset"].max()) >= _PRIME:
            raise refuse_reports("hash functions outside the family")
        return array

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        points = hashes.evaluate(reports["multiplier"], reports["offset"], np.asarray(code))
        return np.asarray(hashes.buckets(points, self.buckets) == reports["bucket"])

    def support(self, reports: Reports) -> Codes:
        """Return how many reports have the bucket of each value."""
        counts = np.zeros(self.size, dtype=np.int64)
        for start in range(0, len(reports), _BLOCK):
            self._count(reports[start : start + _BLOCK], counts)
        return counts

    def _count(self, reports: Reports, counts: Codes) -> None:
        """Add to the counts by walking along each line: the next value's point is one multiplier further."""
        edges, bucket = hashes.edges(self.buckets), reports["bucket"]
        begin, step = edges[bucket], np.ascontiguousarray(reports["multiplier"])
        length = edges[bucket + 1] - begin
        offset = np.ascontiguousarray(reports["offset"])
        point = np.minimum(offset - begin, offset - begin + _PRIME)  # its distance from where the bucket begins
        wrapped, is_inside = np.empty_like(point), np.empty(len(point), dtype=np.bool_)
        for value in range(self.size):
            counts[value] += np.count_nonzero(np.less(point, length, out=is_inside))
            np.add(point, step, out=point)
            np.subtract(point, _PRIME, out=wrapped)
            np.minimum(point, wrapped, out=point)


def _read_buckets(buckets: int, epsilon: float) -> int:
    if buckets == 0:
        return min(round(coins.exp(min(epsilon, 20.0))) + 1, hashes.MOST_BUCKETS)
    if not isinstance(buckets, int) or not 2 <= buckets <= hashes.MOST_BUCKETS:
        message = "buckets must be a whole number from 2 to 2¹⁶: leave it out for the one with the least variance"
        raise InvalidArgument("buckets", message)
    return buckets
