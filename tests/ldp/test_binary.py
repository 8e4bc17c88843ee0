from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.ldp import BinaryResponse
from dpfed.randomness import SeededSource
from support.local_reports import known, repeat, require_moments

BITS = np.repeat([0, 1], [1400, 600])


@pytest.mark.parametrize("case", known("ldp_binary_rr"), ids=lambda case: case["id"])
def test_epsilon_and_variance_are_the_known_ones(case):
    given, expected = case["inputs"], case["expected"]
    response = BinaryResponse(given["p_truth"])
    assert response.epsilon == pytest.approx(expected["eps"], rel=case["tol"])
    assert response.variance(given["n"], given["pi"], sampled=True) == pytest.approx(expected["var"], rel=case["tol"])


def test_a_response_that_lies_more_often_than_not_has_a_positive_epsilon():
    """Seed 000 writes ln(p/(1 − p)), which is negative for p below ½."""
    assert BinaryResponse(0.25).epsilon == BinaryResponse(0.75).epsilon == pytest.approx(math.log(3))


@pytest.mark.parametrize("truth", [0.75, 0.2])
def test_the_estimate_is_unbiased_and_has_the_formulas_variance(truth):
    """400 estimates of 2,000 users each; false-alarm probability 2e-6."""
    response = BinaryResponse(truth)
    errors = repeat(lambda source, _: response.estimate(response.randomize(BITS, source)).frequencies[0], 0.3, seed=3)
    require_moments(errors, response.variance(len(BITS), 0.3))


def test_the_two_coin_response_of_the_textbooks_is_truth_three_quarters():
    assert BinaryResponse.from_epsilon(math.log(3)).truth == pytest.approx(0.75)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 10.0, 80.0])
def test_the_epsilon_of_the_rounded_truth_is_never_above_the_one_asked_for(epsilon):
    response = BinaryResponse.from_epsilon(epsilon)
    assert response.epsilon <= epsilon
    assert response.event == ev.RandomizedResponse(response.epsilon, 2)
    assert BinaryResponse.from_epsilon(response.epsilon) == response


@pytest.mark.parametrize("truth", [0.5, 0.5 - 2.0**-60])
def test_a_fair_coin_is_refused(truth):
    with pytest.raises(InvalidArgument, match="truth must not be ½"):
        BinaryResponse(truth)


def test_an_epsilon_too_small_for_the_coins_is_refused():
    with pytest.raises(InvalidArgument, match="pure noise"):
        BinaryResponse.from_epsilon(1e-18)


@pytest.mark.parametrize("truth", [0.0, 1.0, -0.1, math.nan])
def test_certain_answers_are_refused(truth):
    with pytest.raises(InvalidArgument, match="truth must be above 0 and below 1"):
        BinaryResponse(truth)


@pytest.mark.parametrize("values", [[0, 2], [0.5], [[0, 1]], []])
def test_other_values_than_bits_are_refused(values):
    with pytest.raises(InvalidArgument, match=r"^values must"):
        BinaryResponse(0.75).randomize(values)


def test_truths_of_bool_are_bits():
    reports = BinaryResponse(0.9).randomize(np.array([True, False]), SeededSource(1))
    assert reports.dtype == np.uint8


def test_damaged_reports_are_refused():
    with pytest.raises(InvalidArgument, match="other than 0 and 1"):
        BinaryResponse(0.75).estimate(np.array([0, 2], dtype=np.uint8))
    with pytest.raises(InvalidArgument, match="at least one"):
        BinaryResponse(0.75).estimate(np.array([], dtype=np.uint8))
