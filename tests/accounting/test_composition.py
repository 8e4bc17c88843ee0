from __future__ import annotations

import itertools
import math

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given
from hypothesis import strategies as st

from dpfed.accounting.composition import (
    MAX_COUNT,
    advanced_composition_epsilon,
    basic_composition_epsilon,
    optimal_composition_epsilon,
)
from dpfed.errors import InvalidArgument

epsilons = st.floats(1e-4, 12.0)
failures = st.one_of(st.just(0.0), st.floats(1e-12, 1e-3))
deltas = st.floats(1e-14, 0.2)

# The oracle rounds too, in its 50th digit; where δ is met exactly (one release at its own δ) that shows.
ORACLE_ERROR = mpmath.mpf(10) ** -40


def worst_mechanism(epsilon: float, failure: float) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """The outcomes of the worst (ε, δ)-DP release, of which all others are processings: (P, Q) each."""
    epsilon, failure = mpmath.mpf(epsilon), mpmath.mpf(failure)
    kept = (1 - failure) / (1 + mpmath.exp(-epsilon))
    flipped = (1 - failure) / (1 + mpmath.exp(epsilon))
    return [(failure, mpmath.mpf(0)), (kept, flipped), (flipped, kept), (mpmath.mpf(0), failure)]


def delta_by_enumeration(epsilon: float, failure: float, count: int, at: mpmath.mpf) -> mpmath.mpf:
    """δ(at) of `count` releases, from every sequence of outcomes there is."""
    growth, total = mpmath.exp(at), mpmath.mpf(0)
    for sequence in itertools.product(worst_mechanism(epsilon, failure), repeat=count):
        p, q = mpmath.fprod(p for p, _ in sequence), mpmath.fprod(q for _, q in sequence)
        total += max(p - growth * q, mpmath.mpf(0))
    return total


def delta_by_counting(epsilon: float, failure: float, count: int, at: mpmath.mpf) -> mpmath.mpf:
    """δ(at) of `count` releases, sequences with equally many flips taken together."""
    _, (kept, flipped), *_ = worst_mechanism(epsilon, failure)
    growth, total = mpmath.exp(at), 1 - (1 - mpmath.mpf(failure)) ** count
    for flips in range(count + 1):
        p, q = kept ** (count - flips) * flipped**flips, kept**flips * flipped ** (count - flips)
        total += mpmath.binomial(count, flips) * max(p - growth * q, mpmath.mpf(0))
    return total


@given(epsilon=st.floats(0, 100), count=st.integers(1, 10**6))
def test_basic_is_the_sum_and_never_below_it(epsilon, count):
    total = basic_composition_epsilon(epsilon, count)
    with mpmath.workdps(40):
        exact = mpmath.mpf(epsilon) * count
    assert exact <= total <= math.nextafter(epsilon * count, math.inf)


def test_basic_of_seed_003():
    assert basic_composition_epsilon(0.1, 100) == pytest.approx(10.0, rel=1e-15)
    assert basic_composition_epsilon(0.5, 10) == 5.0


def test_basic_beyond_the_largest_float_is_infinite():
    assert basic_composition_epsilon(1e308, 10) == math.inf


def test_advanced_known_answer():
    assert advanced_composition_epsilon(0.1, 100, 1e-5) == pytest.approx(5.2981, abs=5e-5)


def test_advanced_has_the_term_that_seed_000_lost():
    """ε√(2k ln 1/δ) alone claims 47.99 where the truth for randomized response is 79.84."""
    claimed = 1.0 * math.sqrt(2 * 100 * math.log(1e5))
    exact = optimal_composition_epsilon(1.0, 0.0, 100, 1e-5)
    assert claimed == pytest.approx(47.99, abs=0.01)
    assert exact == pytest.approx(79.84, abs=0.005)
    assert claimed < exact < advanced_composition_epsilon(1.0, 100, 1e-5)


def test_advanced_beats_basic_where_the_formula_of_seed_003_does_not():
    seed = 2 * math.sqrt(math.log(1e5) * 100) * 0.1 + 100 * math.expm1(0.1)
    assert seed > 17.3 > basic_composition_epsilon(0.1, 100) > advanced_composition_epsilon(0.1, 100, 1e-5)


@given(epsilon=epsilons, count=st.integers(1, 10_000), delta=deltas)
def test_advanced_is_the_formula_or_basic_rounded_up(epsilon, count, delta):
    e, k, d = mpmath.mpf(epsilon), count, mpmath.mpf(delta)
    with mpmath.workdps(40):
        formula = e * mpmath.sqrt(2 * k * mpmath.log(1 / d)) + k * e * (mpmath.exp(e) - 1) / (mpmath.exp(e) + 1)
        expected = min(formula, k * e)
    assert expected <= advanced_composition_epsilon(epsilon, count, delta) <= expected * (1 + mpmath.mpf(1e-14))


@given(epsilon=epsilons, count=st.integers(1, 2000), delta=deltas)
def test_optimal_is_at_most_advanced_and_advanced_at_most_basic(epsilon, count, delta):
    optimal = optimal_composition_epsilon(epsilon, 0.0, count, delta)
    advanced = advanced_composition_epsilon(epsilon, count, delta)
    assert optimal <= advanced * (1 + 1e-9) <= basic_composition_epsilon(epsilon, count) * (1 + 1e-9)


def test_optimal_known_answer_of_dp_accounting():
    ours = optimal_composition_epsilon(0.1, 1e-6, 10, 1e-4)
    assert ours == pytest.approx(0.9417337415353181, rel=1e-10)


@pytest.mark.parametrize(
    ("epsilon", "failure", "count", "delta"),
    [(0.3, 1e-7, 20, 1e-5), (1.5, 0.0, 8, 1e-4), (0.05, 1e-8, 60, 1e-6)],
)
def test_optimal_agrees_with_dp_accounting(epsilon, failure, count, delta):
    pld = privacy_loss_distribution.from_privacy_parameters(
        privacy_loss_distribution.common.DifferentialPrivacyParameters(epsilon, failure),
        value_discretization_interval=epsilon / 2,
    )
    ours = optimal_composition_epsilon(epsilon, failure, count, delta)
    assert ours == pytest.approx(pld.self_compose(count).get_epsilon_for_delta(delta), rel=1e-6)


def test_optimal_known_answers_for_randomized_response():
    assert optimal_composition_epsilon(0.1, 0.0, 100, 1e-5) == pytest.approx(4.31, abs=0.005)
    assert optimal_composition_epsilon(math.log(0.55 / 0.45), 0.0, 200, 1e-6) == pytest.approx(16.61654294764148)


@example(epsilon=0.001, failure=0.001, count=1, delta=0.001)
@given(epsilon=st.floats(1e-3, 6.0), failure=failures, count=st.integers(1, 4), delta=deltas)
def test_optimal_is_the_truth_by_enumeration_of_all_outcomes(epsilon, failure, count, delta):
    ours = optimal_composition_epsilon(epsilon, failure, count, delta)
    with mpmath.workdps(50):
        if ours == math.inf:
            assert 1 - (1 - mpmath.mpf(failure)) ** count > delta
            return
        assert delta_by_enumeration(epsilon, failure, count, mpmath.mpf(ours)) <= delta + ORACLE_ERROR
        just_below = mpmath.mpf(ours) - mpmath.mpf(1e-8)
        assert ours == 0 or delta_by_enumeration(epsilon, failure, count, just_below) > delta


@given(epsilon=epsilons, failure=failures, count=st.integers(5, 400), delta=deltas)
def test_optimal_is_never_below_the_truth_and_hardly_above(epsilon, failure, count, delta):
    ours = optimal_composition_epsilon(epsilon, failure, count, delta)
    with mpmath.workdps(60):
        if ours == math.inf:
            assert 1 - (1 - mpmath.mpf(failure)) ** count > delta
            return
        assert delta_by_counting(epsilon, failure, count, mpmath.mpf(ours)) <= delta + ORACLE_ERROR
        just_below = mpmath.mpf(ours) * (1 - mpmath.mpf(1e-8)) - mpmath.mpf(1e-8)
        assert ours < 1e-8 or delta_by_counting(epsilon, failure, count, just_below) > delta


def test_optimal_of_many_small_releases_is_never_below_the_truth():
    ours = optimal_composition_epsilon(0.01, 0.0, 20_000, 1e-5)
    with mpmath.workdps(40):
        assert delta_by_counting(0.01, 0.0, 20_000, mpmath.mpf(ours)) <= 1e-5
        assert delta_by_counting(0.01, 0.0, 20_000, mpmath.mpf(ours) * (1 - mpmath.mpf(1e-7))) > 1e-5


def test_optimal_approaches_the_gaussian_of_the_central_limit():
    """A million responses at ε = 0.001 lose N(1/2, 1), up to a step of 0.002: a Gaussian of μ = 1."""
    assert optimal_composition_epsilon(0.001, 0.0, 10**6, 1e-5) == pytest.approx(4.3771, abs=5e-4)


def test_optimal_of_one_release_at_its_own_delta_is_its_epsilon():
    assert optimal_composition_epsilon(0.7, 1e-5, 1, 1e-5) == 0.7


def test_optimal_is_infinite_when_the_failures_alone_exceed_delta():
    assert optimal_composition_epsilon(0.1, 1e-5, 10, 1e-5) == math.inf
    assert optimal_composition_epsilon(0.1, 1e-9, 1, 0.0) == math.inf


def test_optimal_without_slack_is_basic():
    assert optimal_composition_epsilon(0.25, 0.0, 10, 0.0) == 2.5


def test_optimal_of_releases_that_say_nothing_is_zero():
    assert optimal_composition_epsilon(0.0, 0.0, 1000, 1e-9) == 0.0


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (basic_composition_epsilon, (-0.1, 10), "epsilon"),
        (basic_composition_epsilon, (math.nan, 10), "epsilon"),
        (basic_composition_epsilon, (0.1, 0), "count"),
        (basic_composition_epsilon, (0.1, 2.5), "count"),
        (advanced_composition_epsilon, (0.1, 10, 0.0), "delta"),
        (advanced_composition_epsilon, (0.1, 10, 1.0), "delta"),
        (advanced_composition_epsilon, (0.1, -1, 1e-5), "count"),
        (optimal_composition_epsilon, (0.1, 1.0, 10, 1e-5), "delta_each"),
        (optimal_composition_epsilon, (0.1, 0.0, 10, math.nan), "delta"),
        (optimal_composition_epsilon, (0.1, 0.0, MAX_COUNT + 1, 1e-5), "count"),
    ],
)
def test_bad_arguments_are_refused_by_name(function, arguments, name):
    with pytest.raises(InvalidArgument) as refused:
        function(*arguments)
    assert refused.value.argument == name
