"""Exact coins and integer noise against their probability mass functions. False alarms 1e-6 per test."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed.mechanisms.exact import Coins, discrete_gaussian, discrete_laplace
from dpfed.randomness import SeededSource, SystemSource

ALPHA = 1e-6


def assert_follows(draws: list[int], weight: Callable[[int], float]) -> None:
    """A chi-square test against the law ∝ weight; rare values are put together with the tails."""
    support = np.arange(-2000, 2001)
    law = np.array([weight(int(k)) for k in support])
    law /= law.sum()
    common = law * len(draws) >= 5
    observed = np.array([np.count_nonzero(np.array(draws) == k) for k in support[common]])
    expected = law[common] * len(draws)
    rest = len(draws) - observed.sum(), len(draws) - expected.sum()
    assert stats.chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue > ALPHA


@pytest.mark.parametrize("scale", [Fraction(5, 2), Fraction(0.3), Fraction(7), Fraction(10, 3)])
def test_discrete_laplace_follows_its_law(scale: Fraction) -> None:
    coins = Coins(SeededSource(int(scale * 1000)))
    count = 100_000 if scale == Fraction(5, 2) else 30_000
    assert_follows([discrete_laplace(coins, scale) for _ in range(count)], lambda k: math.exp(-abs(k) / scale))


@pytest.mark.parametrize("scale", [Fraction(5, 2), Fraction(0.3), Fraction(0.9), Fraction(20.7)])
def test_discrete_gaussian_follows_its_law(scale: Fraction) -> None:
    coins = Coins(SeededSource(int(scale * 1000)))
    count = 100_000 if scale == Fraction(5, 2) else 30_000
    draws = [discrete_gaussian(coins, scale) for _ in range(count)]
    assert_follows(draws, lambda k: math.exp(-(k**2) / (2 * scale**2)))


def test_the_system_source_gives_the_same_laws() -> None:
    coins = Coins(SystemSource())
    assert_follows([discrete_laplace(coins, Fraction(2)) for _ in range(30_000)], lambda k: math.exp(-abs(k) / 2))
    assert_follows([discrete_gaussian(coins, Fraction(2)) for _ in range(30_000)], lambda k: math.exp(-(k**2) / 8))


@pytest.mark.parametrize("ratio", [Fraction(0), Fraction(1, 7), Fraction(1), Fraction(9, 4), Fraction(1e-3)])
def test_a_coin_of_probability_exp_minus_ratio(ratio: Fraction) -> None:
    coins = Coins(SeededSource(1))
    heads = sum(coins.flip_exp(ratio.numerator, ratio.denominator) for _ in range(50_000))
    if ratio == 0:
        assert heads == 50_000
    else:
        assert stats.binomtest(heads, 50_000, math.exp(-ratio)).pvalue > ALPHA


def test_a_hopeless_coin_ends_at_once() -> None:
    assert not Coins(SeededSource(1)).flip_exp(10**300, 1)


def test_below_is_uniform_also_beyond_64_bits() -> None:
    coins = Coins(SeededSource(2))
    counts = np.bincount([coins.below(7) for _ in range(70_000)], minlength=7)
    assert stats.chisquare(counts).pvalue > ALPHA
    bound = 3 * 2**200
    thirds = np.bincount([coins.below(bound) * 3 // bound for _ in range(30_000)], minlength=3)
    assert stats.chisquare(thirds).pvalue > ALPHA


def test_bits_are_used_once() -> None:
    coins = Coins(SeededSource(3))
    assert len({coins.bits(64) for _ in range(1000)}) == 1000
