"""Unary encodings: one bit for each value of the domain, each of them noised (basic RAPPOR, and the optimised one).

>>> round(OptimizedUnary(epsilon=1.0, domain=100).variance(users=10_000), 9)
0.000368269
>>> round(SymmetricUnary(epsilon=1.0, domain=100).variance(users=10_000), 9)
0.00039177
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.ldp import coins, packed
from dpfed.ldp.coins import HALF, ONE
from dpfed.ldp.oracle import Codes, FrequencyOracle, Reports, read_codes, require_reports
from dpfed.randomness import RandomSource, or_system


@dataclass(frozen=True)
class _Unary(FrequencyOracle):
    """A row of bits, of which the user's own is 1 with chance p and every other with chance q."""

    _own: int = field(init=False, repr=False, default=0)
    _other: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        own, other = self._thresholds()
        coins.require_signal(own, other)
        object.__setattr__(self, "_own", own)
        object.__setattr__(self, "_other", other)
        object.__setattr__(self, "epsilon", coins.epsilon_of_bits(own, other, changed=1))

    def _thresholds(self) -> tuple[int, int]:
        raise NotImplementedError

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances that the user's own bit is 1, and that any other is."""
        return Fraction(self._own, ONE), Fraction(self._other, ONE)

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a row of bits for each user, eight to a byte."""
        codes, coin = read_codes(values, self.domain, self.absent), or_system(source)
        reports = np.empty((codes.size, packed.width(self.size)), dtype=np.uint8)
        for part in packed.chunks(codes.size, self.size):
            own = codes[part]
            bits = packed.flip_rows(coin, self._other, own.size, self.size)
            bits[np.arange(own.size), own] = coins.flip(coin, self._own, own.size)
            reports[part] = packed.pack(bits)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if each has one bit for every value."""
        return packed.require_padding(require_reports(reports, np.uint8, (packed.width(self.size),)), self.size)

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        return packed.bit(reports, code)

    def support(self, reports: Reports) -> Codes:
        """Return how many reports have each bit."""
        return packed.count_bits(reports, self.size)


@dataclass(frozen=True)
class SymmetricUnary(_Unary):
    """Send the user's one-hot row with every bit flipped with chance 1/(e^{ε/2} + 1) (basic one-time RAPPOR).

    Privacy: two values differ in two bits, so a report is ln(p(1 − q)/(q(1 − p)))-DP (replace-one, local model), with
    both chances rounded towards ½ to 2⁻⁵³; the event is PureDP(ε, adjacency="replace_one").
    """

    def _thresholds(self) -> tuple[int, int]:
        own = coins.chance_down(coins.exp(self.epsilon / 2))
        return own, ONE - own


@dataclass(frozen=True)
class OptimizedUnary(_Unary):
    """Send the user's own bit as a fair coin, and every other as 1 with chance 1/(e^ε + 1) (Wang et al. 2017, OUE).

    Privacy: two values differ in two bits, so a report is ln((1 − q)/q)-DP (replace-one, local model), with q rounded
    up to 2⁻⁵³; the event is PureDP(ε, adjacency="replace_one").
    """

    def _thresholds(self) -> tuple[int, int]:
        return HALF, ONE - coins.chance_down(coins.exp(self.epsilon))
