from __future__ import annotations

import numpy as np
import pytest

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer
from dpfed.analytics.queries import Histogram, Moments
from dpfed.analytics.scaling import find_bounds, find_scale


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
