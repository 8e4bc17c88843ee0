"""Exact coins. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import coins
from dpfed.ldp.coins import HALF, ONE
from dpfed.randomness import RandomSource, SeededSource

N = 1 << 20


class Played(RandomSource):
    """A source whose bytes and words are written down before: each coin of a test is known."""

    is_private = False

    def __init__(self, first: list[int], words: list[int]) -> None:
        super().__init__()
        self._bytes, self._words = first, words

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def bytes(self, count: int) -> bytes:
        return bytes(self._bytes[:count])

    def words(self, count: int) -> np.ndarray:
        return np.array(self._words[:count], dtype=np.uint64)


@pytest.mark.parametrize("threshold", [0, 1, ONE // 3, HALF, ONE - 1, ONE])
def test_a_coin_has_its_chance(threshold):
    heads = int(coins.flip(SeededSource(1), threshold, N).sum())
    assert stats.binomtest(heads, N, threshold / ONE).pvalue > 1e-6


@pytest.mark.parametrize("threshold", [(5 << 45) + 1, (5 << 45) + 7, 5 << 45])
def test_a_coin_is_a_number_of_53_bits_below_the_threshold(threshold):
    """Where the first byte is the threshold's own, the other 45 bits decide, to the last one."""
    low = threshold & ((1 << 45) - 1)
    rest = [low - 1 if low else 0, low, low + 1, 0]
    heads = coins.flip(Played([5, 5, 5, 5], [each << 19 for each in rest]), threshold, 4)
    assert heads.tolist() == [((5 << 45) + each) < threshold for each in rest]
    assert coins.flip(Played([4, 6], []), threshold, 2).tolist() == [True, False]


@pytest.mark.parametrize("bound", [1, 3, 999, 1 << 20])
def test_whole_numbers_below_a_bound_are_uniform(bound):
    drawn = coins.below(SeededSource(2), bound, N)
    groups = min(bound, 64)
    counts = np.bincount(drawn.astype(np.int64) * groups // bound, minlength=groups)
    law = np.bincount(np.arange(bound) * groups // bound, minlength=groups) / bound
    assert drawn.max() < bound
    assert groups == 1 or stats.chisquare(counts, N * law).pvalue > 1e-6


def test_draws_that_would_be_too_many_for_one_number_are_drawn_again():
    """Of 2³² draws one is left over for a bound of 3: the one whose product has the smallest remainder."""

    class Once(Played):
        def bytes(self, count: int) -> bytes:
            value = self._bytes.pop(0)
            return value.to_bytes(4, "little")

    assert (1 << 32) % 3 == 1
    assert coins.below(Once([0, 1 << 31], []), 3, 1).tolist() == [1]


def test_logarithms_are_rounded_up_and_no_more_than_that():
    for ratio in (Fraction(3), Fraction(10, 9), Fraction(ONE - 1, 1), 1 + Fraction(1, ONE)):
        found = coins.log_up(ratio)
        with_digits = Decimal(ratio.numerator).ln() - Decimal(ratio.denominator).ln()
        assert Decimal(found) >= with_digits - Decimal("1e-26")
        assert math.isclose(found, float(with_digits), rel_tol=1e-9)
    assert coins.log_up(Fraction(3)) == 1.0986122886681098
    assert coins.log_up(Fraction(1, 2)) == 0.0


def test_chances_are_rounded_down_from_more_digits_than_a_float_has():
    assert coins.chance_down(Decimal(1), 2) == ONE // 3
    assert coins.chance_down(Decimal(ONE - 1)) == ONE - 1
    assert coins.chance_down(coins.exp(60.0)) == ONE - 1


def test_no_epsilon_is_so_large_that_a_coin_has_one_side_only():
    """Above 184 the 80 digits end: e^ε and e^ε + 1 are the same number."""
    for epsilon in (180.0, 190.0, 700.0, 1e6):
        assert coins.chance_down(coins.exp(epsilon)) == ONE - 1


def test_the_epsilon_of_bits_is_symmetric_and_grows_with_their_number():
    one = coins.epsilon_of_bits(ONE // 4, 3 * (ONE // 4), 1)
    assert one == coins.epsilon_of_bits(3 * (ONE // 4), ONE // 4, 1) == pytest.approx(2 * math.log(3))
    assert coins.epsilon_of_bits(ONE // 4, 3 * (ONE // 4), 3) == pytest.approx(3 * one)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_not_positive_and_finite_is_refused(epsilon):
    with pytest.raises(InvalidArgument, match="epsilon must be a positive finite number"):
        coins.exp(epsilon)


def test_chances_without_a_difference_are_refused():
    with pytest.raises(InvalidArgument, match="pure noise"):
        coins.require_signal(HALF, HALF)


def test_coins_of_their_own_thresholds_are_never_and_always_true_at_both_ends():
    assert not coins.flip_each(SeededSource(1), np.zeros(1000)).any()
    assert coins.flip_each(SeededSource(1), np.full(1000, float(ONE))).all()


def test_coins_of_their_own_thresholds_compare_53_bits_of_a_word():
    words = SeededSource(3).words(1000) >> np.uint64(11)
    assert not coins.flip_each(SeededSource(3), words).any()
    assert coins.flip_each(SeededSource(3), words + np.uint64(1)).all()


@pytest.mark.parametrize(("inside", "outside"), [(1, 1), (1, 9), (3, 7), (1 << 30, 1 << 31)])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_a_windows_chance_is_the_largest_that_keeps_the_epsilon(inside, outside, epsilon):
    own = coins.window_threshold(epsilon, inside, outside)
    assert coins.window_epsilon(own, inside, outside) <= epsilon < coins.window_epsilon(own + 2, inside, outside)
