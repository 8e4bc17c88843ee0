"""Coins and integer noise with exactly the stated probabilities: integer arithmetic only, no floats.

A float Bernoulli(e^−γ) is wrong in its last bits, and a proof about the ideal law does not cover it. These
samplers, due to Canonne, Kamath and Steinke (2020, Algorithms 1 to 3), are right for every rational
parameter.

>>> from dpfed.randomness import SeededSource
>>> coins = Coins(SeededSource(1))
>>> [coins.below(6) for _ in range(5)]
[5, 2, 1, 2, 3]
>>> [discrete_gaussian(coins, Fraction(5)) for _ in range(6)]
[1, -4, 3, 12, 0, 4]
"""

from __future__ import annotations

from fractions import Fraction

from dpfed.randomness import RandomSource

_REFILL = 512  # bits


class Coins:
    """Exact coin flips from a source's bits.

    Made for one call and thrown away, so that no buffered bits live on in both processes after a fork.
    """

    def __init__(self, source: RandomSource) -> None:
        self._source = source
        self._pool = 0
        self._left = 0

    def bits(self, count: int) -> int:
        """Return a uniform integer of `count` bits."""
        while self._left < count:
            self._pool = (self._pool << _REFILL) | int.from_bytes(self._source.bytes(_REFILL // 8), "little")
            self._left += _REFILL
        self._left -= count
        value = self._pool >> self._left
        self._pool ^= value << self._left
        return value

    def below(self, bound: int) -> int:
        """Return a uniform integer from 0 to bound − 1."""
        count = (bound - 1).bit_length()
        value = self.bits(count)
        while value >= bound:
            value = self.bits(count)
        return value

    def flip(self, numerator: int, denominator: int) -> bool:
        """Return true with probability numerator/denominator."""
        return self.below(denominator) < numerator

    def flip_exp(self, numerator: int, denominator: int) -> bool:
        """Return true with probability exp(−numerator/denominator), for a ratio of at least 0 (Algorithm 1)."""
        whole, rest = divmod(numerator, denominator)
        # e^−1 once per whole unit; the first tails ends it, so a huge ratio costs no more than a small one.
        while whole:
            if not self._flip_exp_unit(1, 1):
                return False
            whole -= 1
        return self._flip_exp_unit(rest, denominator)

    def _flip_exp_unit(self, numerator: int, denominator: int) -> bool:
        trials = 1
        while self.flip(numerator, trials * denominator):
            trials += 1
        return trials % 2 == 1


def discrete_laplace(coins: Coins, scale: Fraction) -> int:
    """Return an integer k with probability proportional to exp(−|k|/scale) (Algorithm 2)."""
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        remainder = coins.below(numerator)
        if not coins.flip_exp(remainder, numerator):
            continue
        whole = 0
        while coins.flip_exp(1, 1):
            whole += 1
        magnitude = (remainder + numerator * whole) // denominator
        is_negative = coins.bits(1)
        if not (is_negative and magnitude == 0):  # zero must not be counted twice
            return -magnitude if is_negative else magnitude


def discrete_gaussian(coins: Coins, scale: Fraction) -> int:
    """Return an integer k with probability proportional to exp(−k²/(2 scale²)) (Algorithm 3)."""
    variance = scale * scale
    n, d = variance.numerator, variance.denominator
    t = int(scale) + 1
    while True:
        candidate = discrete_laplace(coins, Fraction(t))
        # (|Y| − σ²/t)²/(2σ²) over one denominator, σ² = n/d
        if coins.flip_exp((abs(candidate) * d * t - n) ** 2, 2 * n * d * t * t):
            return candidate
