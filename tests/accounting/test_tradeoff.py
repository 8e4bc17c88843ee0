from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.accounting.tradeoff import detection_rate
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee


@given(st.floats(0.3, 10), st.floats(1e-4, 0.5))
def test_the_gaussian_curve_is_that_of_the_best_test_and_never_below(noise_multiplier, false_alarm_rate):
    """By Neyman and Pearson the best test of N(0, 1) against N(μ, 1) catches Φ(Φ⁻¹(α) + μ)."""
    best = norm.cdf(norm.ppf(false_alarm_rate) + 1 / noise_multiplier)
    ours = detection_rate(ev.Gaussian(noise_multiplier), false_alarm_rate)
    assert best <= ours * (1 + 1e-9)
    assert ours <= best + 1e-3


def test_replace_one_doubles_the_shift():
    assert detection_rate(ev.Gaussian(2.0), adjacency="replace_one") == pytest.approx(detection_rate(ev.Gaussian(1.0)))


def test_randomized_response_is_caught_as_often_as_it_tells_the_truth_more_often():
    event = ev.RandomizedResponse(1.0)
    assert detection_rate(event, 0.01, adjacency="replace_one") == pytest.approx(0.01 * 2.718281828, rel=1e-6)


def test_the_curve_says_more_than_any_one_point():
    run = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000)
    caught = detection_rate(run)
    for delta in (1e-8, 1e-5, 1e-3):
        assert caught < Guarantee(epsilon(run, delta), delta).detection_rate(0.01)


def test_no_protection_catches_everybody():
    assert detection_rate(ev.Unprotected()) == 1


@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan"), True])
def test_a_bad_false_alarm_rate_is_refused(bad):
    with pytest.raises(InvalidArgument, match="false_alarm_rate"):
        detection_rate(ev.Gaussian(1.0), bad)
