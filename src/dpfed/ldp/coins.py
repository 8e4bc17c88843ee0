"""Biased coins with exactly known chances: integers compared with integers, and ε computed from those integers.

A probability of a local mechanism is a whole number of 2⁻⁵³. It is rounded so that ε never grows, the coins have that
chance exactly, and every ε that a mechanism names follows from the rounded numbers, not from the ones asked for.

>>> from dpfed.randomness import SeededSource
>>> flip(SeededSource(1), ONE // 4, 8).tolist()
[True, True, True, False, False, False, True, False]
>>> log_up(Fraction(3))
1.0986122886681098
"""

from __future__ import annotations

from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource
from dpfed.rounding import round_up

BITS = 53
ONE = 1 << BITS  # a chance of 1
HALF = ONE // 2
CHUNK = 1 << 19  # coins a pass, which stay in the cache

_LOW_BITS = BITS - 8
_PRECISE = Context(prec=80)
_SLACK = Decimal("1e-60")  # far above the error of _PRECISE, far below a float's last bit
_LARGEST_EPSILON = 1000.0  # no coin of 53 bits comes near it

Bools = NDArray[np.bool_]


def flip(source: RandomSource, threshold: int, count: int) -> Bools:
    """Return `count` coins, each true with chance threshold/2⁵³ exactly.

    A coin is a whole number of 53 bits below the threshold. Its first byte nearly always decides; the other 45 bits
    are drawn only where that byte equals the threshold's.
    """
    top, low = divmod(threshold, 1 << _LOW_BITS)
    if top > 255:
        return np.ones(count, dtype=np.bool_)
    first = np.frombuffer(source.bytes(count), dtype=np.uint8)
    heads = first < top
    if low:
        tied = np.flatnonzero(first == top)
        heads[tied] = (source.words(tied.size) >> np.uint64(64 - _LOW_BITS)) < low
    return heads


def flip_each(source: RandomSource, thresholds: ArrayLike) -> Bools:
    """Return a coin for each threshold, true with chance threshold/2⁵³ exactly, for thresholds that are whole."""
    edges = np.asarray(thresholds).astype(np.uint64)
    return np.asarray((source.words(edges.size) >> np.uint64(64 - BITS)) < edges)


def below(source: RandomSource, bound: int, count: int) -> NDArray[np.uint32]:
    """Return `count` whole numbers below the bound, of at most 2³², exactly uniform (Lemire 2019)."""
    products = np.frombuffer(source.bytes(4 * count), dtype=np.uint32) * np.uint64(bound)
    drawn = (products >> np.uint64(32)).astype(np.uint32)
    surplus = (1 << 32) % bound  # as many of the 2³² draws must go, so that each result has equally many
    if surplus:
        again = np.flatnonzero(products.astype(np.uint32) < surplus)
        if again.size:
            drawn[again] = below(source, bound, again.size)
    return drawn


def exp(epsilon: float) -> Decimal:
    """Return e^ε to 80 digits."""
    return _PRECISE.exp(Decimal(min(checks.positive(epsilon=epsilon), _LARGEST_EPSILON)))


def chance_down(odds: Decimal, others: int = 1) -> int:
    """Return odds/(odds + others), the chance of the first of so many more, in 2⁻⁵³ rounded down: never a whole one."""
    share = _PRECISE.divide(_PRECISE.multiply(odds, Decimal(ONE)), _PRECISE.add(odds, Decimal(others)))
    return min(int(share.to_integral_value(ROUND_FLOOR)), ONE - 1)  # 80 digits end where ε is above 180


def window_threshold(epsilon: float, inside: int, outside: int) -> int:
    """Return the largest chance in 2⁻⁵³ of one of `inside` results, if none is to be above e^ε times one outside."""
    own = chance_down(_PRECISE.multiply(exp(epsilon), Decimal(inside)), outside)
    require_signal(max(own * outside, (ONE - own) * inside), (ONE - own) * inside)
    return own


def window_epsilon(own: int, inside: int, outside: int) -> float:
    """Return the ε of results that are equally likely inside, with that chance in all, and equally likely outside."""
    return log_up(Fraction(own * outside, (ONE - own) * inside))


def log_up(ratio: Fraction) -> float:
    """Return the natural logarithm of a ratio of at least 1 as the next float that is not below it."""
    if ratio <= 1:
        return 0.0
    value = _PRECISE.subtract(_PRECISE.ln(Decimal(ratio.numerator)), _PRECISE.ln(Decimal(ratio.denominator)))
    return round_up(Fraction(_PRECISE.add(value, _SLACK)))


def epsilon_of_bits(first: int, second: int, changed: int) -> float:
    """Return the ε of `changed` independent bits, whose chances of being 1 are exchanged between two values."""
    high, low = max(first, second), min(first, second)
    return log_up(Fraction(high * (ONE - low), low * (ONE - high)) ** changed)


def require_signal(own: int, other: int, argument: str = "epsilon") -> None:
    """Refuse two chances of support that do not differ: such reports say nothing, and no estimator exists."""
    if own == other:
        raise InvalidArgument(
            argument,
            f"{argument} leaves the true value as likely as any other, in steps of 2⁻⁵³, so that reports would be pure "
            f"noise and cannot be decoded: choose a larger {argument}",
        )
