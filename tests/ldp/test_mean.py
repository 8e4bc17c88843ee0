"""What holds for all mechanisms of a mean. False-alarm probabilities: 2e-6 per test of moments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfed.accounting import epsilon as epsilon_of
from dpfed.errors import InvalidArgument
from dpfed.ldp import DuchiMean, HybridMean, PiecewiseMean
from dpfed.randomness import SeededSource
from support.local_reports import known, repeat, require_moments

KINDS = (DuchiMean, PiecewiseMean, HybridMean)
SECRET = 98.7654


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.mark.parametrize("case", known("ldp_mean"), ids=lambda case: case["id"])
def test_ranges_and_variances_are_the_known_ones(case):
    epsilon, value = case["inputs"]["eps"], case["inputs"]["x"]
    duchi, piecewise, hybrid = (each(epsilon) for each in KINDS)
    found = {
        "duchi_C": duchi.largest,
        "duchi_var": duchi.variance(1, value),
        "pm_C": piecewise.largest,
        "pm_var": piecewise.variance(1, value),
        "pm_worst": piecewise.worst_variance(1),
        "hybrid_worst": hybrid.worst_variance(1),
        "laplace_var": 8 / epsilon**2,
    }
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("value", [-1.0, 0.3, 1.0])
def test_estimates_are_unbiased_and_have_the_formulas_variance(kind, epsilon, value):
    """400 estimates of 200 users each."""
    mechanism, values = kind(epsilon), np.full(200, value)
    errors = repeat(lambda source, _: float(mechanism.estimate(mechanism.randomize(values, source)).means), value, 5)
    require_moments(errors, mechanism.variance(200, value))


def test_intervals_cover_the_truth_as_often_as_they_say(kind):
    """300 intervals at 90 % of users drawn from a population: binomial, two-sided at 1e-6."""
    covered, source, mechanism = 0, SeededSource(3), kind(2.0)
    for _ in range(300):
        low, high = mechanism.estimate(mechanism.randomize(2 * source.uniform(300) - 1, source)).interval(0.9)
        covered += low <= 0 <= high
    assert stats.binomtest(covered, 300, 0.9).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 2.0, 5.0, 12.0, 60.0])
def test_the_epsilon_named_is_never_above_the_one_asked_for_and_is_charged(kind, epsilon):
    mechanism = kind(epsilon)
    assert mechanism.epsilon <= epsilon
    assert epsilon > 30 or mechanism.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(mechanism.event, 0.0, adjacency="replace_one") == pytest.approx(mechanism.epsilon)


def test_the_exact_chances_of_a_sign_have_the_epsilon_as_their_largest_ratio():
    mechanism = DuchiMean(1.0)
    largest = (mechanism.largest + 1) / (mechanism.largest - 1)  # p/(1 − p) of the numbers 1 and −1
    assert math.log(largest) == pytest.approx(mechanism.epsilon, rel=1e-12)


def test_a_hybrid_is_never_worse_than_either_at_its_worst_number():
    for epsilon in (0.3, 0.7, 1.0, 1.29, 2.0, 4.0):
        duchi, piecewise, hybrid = (each(epsilon).worst_variance(1) for each in KINDS)
        assert hybrid <= min(duchi, piecewise) * (1 + 1e-9)


def test_the_same_seed_gives_the_same_reports_and_another_one_does_not(kind):
    mechanism, values = kind(1.0), np.linspace(-1, 1, 50)
    first, again, other = (mechanism.randomize(values, SeededSource(seed)) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert mechanism.randomize(values).tobytes() != mechanism.randomize(values).tobytes()


def test_reports_may_come_in_batches(kind):
    mechanism = kind(1.0)
    reports = mechanism.randomize(np.linspace(-1, 1, 500), SeededSource(1))
    whole, parts = mechanism.estimate(reports), mechanism.estimate([reports[:100], reports[100:]])
    assert float(whole.means) == pytest.approx(float(parts.means), abs=1e-12)
    assert parts.users == 500


@pytest.mark.parametrize("values", [[SECRET], [0.0, -1.0001], [math.nan], [[0.5]], [], 0.5, ["a"], [True]])
def test_numbers_out_of_range_and_wrong_shapes_are_refused_without_showing_one(kind, values):
    with pytest.raises(InvalidArgument, match=r"^values must") as refusal:
        kind(1.0).randomize(values)
    assert str(SECRET) not in str(refusal.value)


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, "1"])
def test_an_epsilon_that_is_not_positive_and_finite_is_refused(kind, epsilon):
    with pytest.raises(InvalidArgument, match="epsilon must be a positive finite number"):
        kind(epsilon)


def test_an_epsilon_too_small_for_the_coins_is_refused(kind):
    with pytest.raises(InvalidArgument, match="pure noise"):
        kind(1e-18)


def test_reports_of_another_mechanism_and_none_are_refused(kind):
    mechanism = kind(1.0)
    with pytest.raises(InvalidArgument, match="of another mechanism"):
        mechanism.estimate(np.zeros(3))
    with pytest.raises(InvalidArgument, match="at least one report"):
        mechanism.estimate(mechanism.randomize([0.5])[:0])


def test_what_is_no_sign_is_refused():
    with pytest.raises(InvalidArgument, match="what is no sign"):
        DuchiMean(1.0).estimate(np.array([1, 0], dtype=np.int8))


def test_a_single_report_has_no_error_of_zero(kind):
    mechanism = kind(1.0)
    assert mechanism.estimate(mechanism.randomize([0.0])).standard_errors > 1
    with pytest.raises(InvalidArgument, match="value must lie"):
        mechanism.variance(10, 1.5)
