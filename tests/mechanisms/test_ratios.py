"""Intervals hold the truth as often as they say, however much of the counts is noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.mechanisms.counts import NoisyCounts
from dpfed.mechanisms.ratios import Figure, area, share

CASES = [(100, 0.9, 0.0), (114, 0.95, 5.0), (30, 0.5, 5.0), (5, 0.7, 5.0), (1000, 0.9, 10.0)]


def noise_of(scale: float, shape, draws: np.random.Generator):
    chance = -math.expm1(-1 / scale) if scale else 1.0
    return draws.geometric(chance, shape) - draws.geometric(chance, shape)


@pytest.mark.parametrize(("count", "truth", "scale"), CASES)
def test_an_interval_of_a_share_holds_it_in_95_of_100_cases(count, truth, scale):
    # 2,000 cases at 95 %: fewer than 1,850 would be 5 standard deviations below, one in 10⁶ times.
    draws = np.random.default_rng(5)
    variance = NoisyCounts(scale).variance if scale else 0.0
    held = 0
    for _ in range(2000):
        right = draws.binomial(count, truth)
        noised = np.array([right, count - right]) + noise_of(scale, 2, draws)
        found = share(float(noised[0]), float(noised[1]), variance)
        held += found.low <= truth <= found.high
    assert held >= 1850


@pytest.mark.parametrize(("count", "scale"), [(400, 0.0), (400, 5.0), (60, 5.0)])
def test_an_interval_of_an_area_holds_it_in_95_of_100_cases(count, scale):
    # 400 cases at 95 %: fewer than 358 would be 5 standard deviations below, one in 10⁶ times.
    draws = np.random.default_rng(6)
    chances = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    truth = area(chances[0], chances[1], 0.0).value
    variance = NoisyCounts(scale).variance if scale else 0.0
    held = 0
    for _ in range(400):
        counts = np.stack([draws.multinomial(count // 2, each) for each in chances]) + noise_of(scale, (2, 4), draws)
        found = area(counts[0], counts[1], variance)
        held += found.low <= truth <= found.high
    assert held >= 358


def test_an_area_counts_pairs_and_halves_of_ties():
    assert area(np.array([1, 1]), np.array([0, 2]), 0.0).value == pytest.approx((2 + 1) / 4)
    assert area(np.array([0, 3]), np.array([2, 0]), 0.0).value == 0.0


def test_noise_makes_an_interval_longer_and_in_the_end_useless():
    lengths = [share(90.0, 10.0, noise) for noise in (0.0, 50.0, 500.0, 1e6)]
    assert [each.high - each.low for each in lengths] == sorted(each.high - each.low for each in lengths)
    assert [each.is_useless for each in lengths] == [False, False, False, True]


@pytest.mark.parametrize("counts", [(0.0, 0.0), (-3.0, 1.0), (5.0, -9.0)])
def test_counts_that_noise_made_impossible_give_no_value_and_no_interval(counts):
    assert share(*counts, noise=10.0) == Figure(None, 0.0, 1.0)
    assert str(share(*counts, noise=10.0)).startswith("useless")


def test_a_figure_says_its_interval():
    assert str(Figure(0.9, 0.85, 0.94)) == "0.900 (95 %: 0.850 to 0.940)"
