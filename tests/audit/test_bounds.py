"""Bounds of audits: known answers, exact enumeration, and how often they are wrong where the truth is known."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.audit.bounds import (
    Bound,
    _last_refuted,
    bayesian_interval,
    clopper_pearson,
    from_scores,
    one_run,
    one_run_fdp,
    one_run_p_value,
)
from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource

CASES = json.loads((Path(__file__).parents[1] / "reference" / "audit.json").read_text(encoding="utf-8"))
FALSE_ALARM = 1e-6  # of each statistical test below
RUNS = 2000


def cases(kind):
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


def most_wrong(runs, significance):
    """The number of wrong bounds that is passed with probability 1e-6 if each is wrong so often at most."""
    return int(binom.isf(FALSE_ALARM, runs, significance))


# --- known answers ---


@pytest.mark.parametrize("case", cases("audit_one_run"))
def test_one_run_gives_the_published_bound(case):
    assert one_run(**case["input"]) == pytest.approx(case["expected"]["eps_lower"], abs=case["tolerance"])


@pytest.mark.parametrize("case", cases("audit_one_run_p"))
def test_the_p_value_of_one_run_is_that_of_the_paper(case):
    given_values = dict(case["input"])
    found = one_run_p_value(epsilon=given_values.pop("eps"), **given_values)
    assert found == pytest.approx(case["expected"]["p_value"], abs=case["tolerance"])


@pytest.mark.parametrize("case", cases("audit_one_run_fdp"))
def test_the_form_for_gaussian_curves_gives_the_published_bound(case):
    given_values = {name: value for name, value in case["input"].items() if name != "family"}
    assert one_run_fdp(**given_values) == pytest.approx(case["expected"]["eps_lower"], abs=case["tolerance"])


@pytest.mark.parametrize("case", cases("audit_clopper_pearson"))
def test_clopper_pearson_gives_the_published_bound(case):
    assert clopper_pearson(**case["input"]) == pytest.approx(case["expected"]["eps_lower"], abs=case["tolerance"])


@pytest.mark.parametrize("case", cases("audit_scores"))
@pytest.mark.parametrize(("method", "name"), [("one_run", "steinke"), ("one_run_fdp", "fdp")])
def test_scores_with_a_correction_over_the_frontier_give_the_published_bound(case, method, name):
    scores = norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    shift = 4.0 if case["id"].endswith("4") else 1.0
    found = from_scores(scores + shift, scores, 1e-6, 0.05, method=method, threshold="frontier")
    assert found.epsilon == pytest.approx(case["expected"][name], abs=case["tolerance"])


def exact_p_value(m, guesses, correct, odds, delta):
    """The p-value in exact arithmetic, where e^ε is a whole number."""
    chance = Fraction(odds, 1 + odds)
    law = [math.comb(guesses, k) * chance**k * (1 - chance) ** (guesses - k) for k in range(guesses + 1)]
    slopes = [sum(law[correct - i : correct]) / i for i in range(1, correct + 1)]
    return min(Fraction(1), sum(law[correct:]) + 2 * m * delta * max(slopes, default=Fraction(0)))


@given(st.data())
def test_the_p_value_is_that_of_exact_arithmetic(data):
    m = data.draw(st.integers(1, 60))
    guesses = data.draw(st.integers(1, m))
    correct, odds = data.draw(st.integers(0, guesses)), data.draw(st.integers(1, 50))
    delta = data.draw(st.sampled_from([Fraction(0), Fraction(1, 1024), Fraction(1, 2**20)]))
    found = one_run_p_value(m, guesses, correct, math.log(odds), float(delta))
    assert found == pytest.approx(float(exact_p_value(m, guesses, correct, odds, delta)), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("canaries", "ceiling"), [(100, 3.49), (1000, 5.78), (10_000, 7.83)])
def test_a_perfect_attacker_cannot_prove_more_than_the_ceiling(canaries, ceiling):
    assert one_run(canaries, canaries, canaries, 1e-5, 0.05) == pytest.approx(ceiling, abs=0.006)


def test_the_credible_interval_is_that_of_a_large_sample_of_both_rates():
    tp, fp, n, delta = 80, 13, 100, 1e-3
    draws = np.random.default_rng(5)
    alarms, misses = draws.beta(0.5 + fp, 0.5 + n - fp, 400_000), draws.beta(0.5 + n - tp, 0.5 + tp, 400_000)
    least = np.maximum(np.log((1 - delta - alarms) / misses), np.log((1 - delta - misses) / alarms))
    expected = np.quantile(np.maximum(least, 0), [0.025, 0.975])
    # Five standard errors of the quantiles of so many draws are below 0.01: false alarm below 1e-6.
    assert bayesian_interval(tp, fp, n, n, delta, 0.05) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("tp", "fp", "low", "high"),
    [(400, 20, 2.5883836871379304, 3.451036212509907), (250, 250, 0.0, 0.12715435051803187)],
)
def test_the_credible_interval_is_the_published_one(tp, fp, low, high):
    """Reference cases audit_20_100 and audit_250_250: quantiles of two million draws."""
    assert bayesian_interval(tp, fp, 500, 500, 1e-5, 0.05) == pytest.approx((low, high), abs=0.01)


def test_the_credible_interval_of_a_blind_attack_begins_at_zero():
    low, high = bayesian_interval(50, 50, 100, 100, 1e-5, 0.05)
    assert low < 0.01 < high < 1


# --- how often a bound is wrong, where the truth is known ---


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("significance", [0.05, 0.001])
def test_one_run_is_wrong_as_rarely_as_it_says_under_randomized_response(epsilon, significance):
    """Each canary's bit is told truly with probability 1/(1 + e^−ε): nothing pure is easier to guess."""
    guesses, draws = 200, np.random.default_rng(11)
    correct = draws.binomial(guesses, 1 / (1 + math.exp(-epsilon)), RUNS)
    bounds = {count: one_run(guesses, guesses, int(count), 0.0, significance) for count in set(correct.tolist())}
    wrong = sum(bounds[count] > epsilon for count in correct.tolist())
    assert wrong <= most_wrong(RUNS, significance)


def test_one_run_is_wrong_as_rarely_as_it_says_where_delta_tells_everything():
    """With probability δ the whole membership is told, else randomized response: ε = 1, δ = 0.02."""
    m, epsilon, delta, significance = 100, 1.0, 0.02, 0.05
    draws = np.random.default_rng(12)
    guessed = draws.binomial(m, 1 / (1 + math.exp(-epsilon)), RUNS)
    correct = np.where(draws.random(RUNS) < delta, m, guessed)
    bounds = {count: one_run(m, m, int(count), delta, significance) for count in set(correct.tolist())}
    assert sum(bounds[count] > epsilon for count in correct.tolist()) <= most_wrong(RUNS, significance)


@pytest.mark.parametrize("method", ["one_run", "one_run_fdp"])
@pytest.mark.parametrize("threshold", ["grid", "split", 0.5])
def test_choosing_the_guesses_after_looking_does_not_make_bounds_wrong_more_often(method, threshold):
    """Canaries with Gaussian noise, of which ε is known; 150 runs at significance 0.2, where errors would show."""
    mu, delta, runs, significance = 0.5, 1e-3, 150, 0.2
    truth, draws, source = gaussian_epsilon(mu, delta), np.random.default_rng(13), SeededSource(1)
    wrong = 0
    for _ in range(runs):
        is_in = draws.random(60) < 0.5
        scores = draws.normal(size=60) + mu * is_in
        settings = {"method": method, "threshold": threshold, "source": source}
        wrong += from_scores(scores[is_in], scores[~is_in], delta, significance, **settings).epsilon > truth
    assert wrong <= most_wrong(runs, significance)


def test_clopper_pearson_over_independent_runs_is_wrong_as_rarely_as_it_says():
    """One canary per run with Gaussian noise of known ε, guessed at the best threshold for δ."""
    mu, delta, trials, significance = 1.0, 1e-2, 400, 0.05
    truth, draws = gaussian_epsilon(mu, delta), np.random.default_rng(14)
    threshold = truth / mu + mu / 2
    hits = draws.binomial(trials, norm.sf(threshold - mu), RUNS)
    alarms = draws.binomial(trials, norm.sf(threshold), RUNS)
    found = [clopper_pearson(tp, fp, trials, trials, delta, significance) for tp, fp in zip(hits, alarms, strict=True)]
    assert sum(bound > truth for bound in found) <= most_wrong(RUNS, significance)


def test_scores_of_many_canaries_come_near_the_truth_for_a_gaussian():
    scores = norm.ppf((np.arange(5000) + 0.5) / 5000)
    found = from_scores(scores + 2.0, scores, 1e-5, 0.05, method="one_run_fdp")
    assert 5.4 < found.epsilon < gaussian_epsilon(2.0, 1e-5)
    assert found.ceiling > gaussian_epsilon(2.0, 1e-5)


# --- what is asked ---


@given(st.integers(1, 300), st.data())
def test_a_bound_rises_with_correct_guesses_and_falls_with_delta_and_confidence(guesses, data):
    correct = data.draw(st.integers(0, guesses))
    found = one_run(300, guesses, correct, 1e-6, 0.05)
    assert one_run(300, guesses, correct, 1e-6, 0.001) <= found <= one_run(300, guesses, correct, 0.0, 0.05) + 1e-6
    assert correct == guesses or one_run(300, guesses, correct + 1, 1e-6, 0.05) >= found - 1e-6


@given(st.integers(0, 1000), st.sampled_from([1e-12, 1e-5, 1e-2]), st.sampled_from([0.3, 0.05, 1e-3, 1e-9]))
def test_the_search_for_a_gaussian_curve_always_ends(correct, delta, significance):
    assert 0 <= one_run_fdp(1000, 1000, correct, delta, significance) < 60


def test_the_smaller_root_counts_where_a_test_is_not_monotone():
    assert _last_refuted(lambda epsilon: epsilon < 0.5 or 2.0 < epsilon < 3.0) == pytest.approx(0.5, abs=1e-6)
    assert _last_refuted(lambda epsilon: epsilon < 3.0 and not 1.3 < epsilon < 1.6) == pytest.approx(1.3, abs=0.3)
    assert _last_refuted(lambda epsilon: True) == math.inf
    assert _last_refuted(lambda epsilon: False) == 0


def test_a_bound_says_how_it_was_found():
    found = from_scores(np.arange(50) + 60.0, np.arange(50), 1e-5, 0.05)
    assert isinstance(found, Bound)
    assert (found.canaries, found.method, found.confidence, found.corrections) == (100, "one_run", 0.95, 8)
    assert found.epsilon == found.ceiling > 2  # the attack is perfect
    assert (found.guesses, found.correct) == (100, 100)


def test_a_blind_attack_proves_nothing():
    draws = np.random.default_rng(15)
    assert from_scores(draws.normal(size=500), draws.normal(size=500), 1e-5, 1e-6).epsilon == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_run(10, 11, 5, 0, 0.05), "more guesses than canaries"),
        (lambda: one_run(10, 5, 6, 0, 0.05), "more correct ones than guesses"),
        (lambda: one_run(0, 1, 1, 0, 0.05), "m must be a whole number"),
        (lambda: one_run(10, 5, 5, 1.0, 0.05), "delta must be at least 0 and below 1"),
        (lambda: one_run(10, 5, 5, 0, 0.6), "significance must be below 0.5"),
        (lambda: one_run(10, 5, 5, 0, 0), "significance must be above 0"),
        (lambda: one_run_fdp(10, 5, 5, 0, 0.05), "delta must be above 0"),
        (lambda: clopper_pearson(11, 0, 10, 10, 0, 0.05), "counted among the trials"),
        (lambda: bayesian_interval(1, 11, 10, 10, 0, 0.05), "counted among the trials"),
        (lambda: from_scores([1.0], [0.0], 1e-5, 0.05, method="mia"), "method must be 'one_run'"),
    ],
)
def test_what_cannot_be_a_count_or_a_probability_is_refused(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()
