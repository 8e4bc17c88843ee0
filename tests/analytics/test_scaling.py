from __future__ import annotations

import numpy as np
import pytest

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer
from dpfed.analytics.queries import Histogram, Moments
from dpfed.analytics.scaling import find_bounds, find_least_count, find_scale


def test_bounds_hold_nearly_all_values_and_are_not_much_wider():
    draws = np.random.default_rng(5)
    query = Histogram.fixed(2)
    values = np.stack([draws.uniform(20, 80, 40_000), draws.normal(0, 3, 40_000)], axis=1)
    noise = 60.0
    answer = HistogramAnswer(query, query.add_up(values) + noise * draws.normal(size=query.size), noise)
    (age, score) = find_bounds(answer)
    assert age == (16.0, 128.0)
    assert score[0] <= -8.0
    assert score[1] >= 8.0
    assert np.mean((values[:, 1] < score[0]) | (values[:, 1] > score[1])) < 0.05


def test_noise_makes_one_release_in_a_thousand_too_wide_and_not_one_side_in_a_hundred():
    draws, query, noise = np.random.default_rng(8), Histogram.fixed(30), 20.0
    values = draws.uniform(20, 60, (6_000, 30))
    exact = query.add_up(values)
    answers = (HistogramAnswer(query, exact + noise * draws.normal(size=query.size), noise) for _ in range(300))
    pairs = [pair for answer in answers for pair in find_bounds(answer)]
    wide = sum(low < 16.0 or high > 64.0 for low, high in pairs)
    assert wide <= 5  # 300 releases at 1e-3 each: more with probability 1e-6; at 1e-2 a side it would be some 180


def test_bounds_leave_out_at_most_what_noise_hides():
    draws, query, noise = np.random.default_rng(9), Histogram.fixed(1), 10.0
    values = draws.lognormal(3, 1, (find_least_count(query, noise) * 3 // 2, 1))
    exact = query.add_up(values)
    for _ in range(200):
        ((low, high),) = find_bounds(HistogramAnswer(query, exact + noise * draws.normal(size=query.size), noise))
        assert np.mean((values >= low) & (values <= high)) > 0.5


def test_a_column_of_which_noise_leaves_nothing_gets_no_bounds_and_no_scale():
    query = Histogram.fixed(1)
    assert find_bounds(HistogramAnswer(query, np.ones(query.size), noise=50.0)) == (None,)
    moments = Moments(((0.0, 1.0),))
    assert find_scale(MomentsAnswer(moments, np.array([90.0, 1.0, 40.0]), noise=60.0)) == (None,)


def test_mean_and_scale_are_those_of_the_values():
    values = np.random.default_rng(6).normal(5, 2, (20_000, 1))
    query = Moments(((-20.0, 30.0),))
    ((mean, scale),) = find_scale(MomentsAnswer(query, query.add_up(values), noise=0.0))
    assert mean == pytest.approx(5, abs=0.1)
    assert scale == pytest.approx(2, abs=0.1)
