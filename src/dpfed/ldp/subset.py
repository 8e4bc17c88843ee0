"""Subset selection: send a set of w values, which holds the user's own one more often than any other.

With w near k/(e^ε + 1) its variance, added up over all values, is not above that of k-ary response or of unary
encoding, whichever is better (Ye and Barg 2018). A report is k bits, w of them ones.

>>> oracle = SubsetSelection(epsilon=0.5, domain=1000)
>>> oracle.width, round(oracle.variance(users=10_000), 9)
(378, 0.001563749)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed.errors import InvalidArgument
from dpfed.ldp import coins, packed
from dpfed.ldp.coins import ONE
from dpfed.ldp.oracle import Codes, FrequencyOracle, Reports, read_codes, refuse_reports, require_reports
from dpfed.randomness import RandomSource, or_system

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)  # of each byte


@dataclass(frozen=True)
class SubsetSelection(FrequencyOracle):
    """Send `width` values: with chance p the user's own among them, the rest drawn uniformly from the others.

    `width` is round(k/(e^ε + 1)), and 1 at least, unless it is given: then the variance is near the least.

    Privacy: a set with the user's value has chance p/C(k − 1, w − 1), one without (1 − p)/C(k − 1, w), so a report is
    ln(p(k − w)/((1 − p)w))-DP (replace-one, local model), with p rounded down to 2⁻⁵³; the event is
    PureDP(ε, adjacency="replace_one").
    """

    width: int = 0
    _own: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", _read_width(self.width, self.epsilon, self.size))
        inside, outside = self.width, self.size - self.width
        object.__setattr__(self, "_own", coins.window_threshold(self.epsilon, inside, outside))
        object.__setattr__(self, "epsilon", coins.window_epsilon(self._own, inside, outside))

    @property
    def chances(self) -> tuple[Fraction, Fraction]:
        """The exact chances that a report holds the user's own value, and any other one."""
        own = Fraction(self._own, ONE)
        return own, (self.width - own) / (self.size - 1)

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return a row of bits for each user, eight to a byte, with `width` ones."""
        codes, coin = read_codes(values, self.domain, self.absent), or_system(source)
        reports = np.empty((codes.size, packed.width(self.size)), dtype=np.uint8)
        for part in packed.chunks(codes.size, self.size):
            reports[part] = packed.pack(self._draw(codes[part], coin))
        return reports

    def _draw(self, codes: Codes, source: RandomSource) -> NDArray[np.bool_]:
        """Return the chosen values: column 0 stands for the user's own, column i for the one i steps further on."""
        chosen = np.empty((codes.size, self.size), dtype=np.bool_)
        chosen[:, 0] = has_own = coins.flip(source, self._own, codes.size)
        for is_member, drawn in ((has_own, self.width - 1), (~has_own, self.width)):
            chosen[is_member, 1:] = draw_subsets(source, self.size - 1, drawn, int(is_member.sum()))
        steps = (np.arange(self.size) - codes[:, None]) % self.size
        return np.take_along_axis(chosen, steps, axis=1)

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if each holds `width` values of the domain."""
        array = packed.require_padding(require_reports(reports, np.uint8, (packed.width(self.size),)), self.size)
        if np.any(_ONES[array].sum(axis=1, dtype=np.int64) != self.width):
            raise refuse_reports("sets of another size")
        return array

    def _supports(self, reports: Reports, code: int) -> NDArray[np.bool_]:
        return packed.bit(reports, code)

    def support(self, reports: Reports) -> Codes:
        """Return how many reports hold each value."""
        return packed.count_bits(reports, self.size)


def draw_subsets(source: RandomSource, items: int, size: int, count: int) -> NDArray[np.bool_]:
    """Return a row for each of `count` sets of so many of the items, exactly uniform (Floyd 1987)."""
    chosen, rows = np.zeros((count, items), dtype=np.bool_), np.arange(count)
    for last in range(items - size, items):
        drawn = coins.below(source, last + 1, count)
        chosen[rows, np.where(chosen[rows, drawn], last, drawn)] = True
    return chosen


def _read_width(width: int, epsilon: float, size: int) -> int:
    if width == 0:
        return max(round(Decimal(size) / (1 + coins.exp(epsilon))), 1)
    if not isinstance(width, int) or not 1 <= width < size:
        message = (
            f"width must be a whole number from 1 to {size - 1}, one less than the values, or the sets would say "
            "nothing: leave it out for the one with the least variance"
        )
        raise InvalidArgument("width", message)
    return width
