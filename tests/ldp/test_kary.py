"""Randomized response among k values. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import KaryResponse
from dpfed.randomness import SeededSource
from support.local_reports import known


@pytest.mark.parametrize("case", known("ldp_grr"), ids=lambda case: case["id"])
def test_chances_and_variances_are_the_known_ones(case):
    given, expected = case["inputs"], case["expected"]
    response = KaryResponse(given["eps"], given["k"])
    found = {
        "p": float(response.chances[0]),
        "q": float(response.chances[1]),
        "var0": response.variance(given["n"]),
        "var": response.variance(given["n"], given["f"]),
    }
    assert found == pytest.approx(expected, rel=case["tol"])


@pytest.mark.parametrize("size", [2, 3, 10])
def test_reports_follow_their_law_for_every_value(size):
    response = KaryResponse(1.5, size)
    own, other = map(float, response.chances)
    for value in range(size):
        counts = np.bincount(response.randomize(np.full(40_000, value), SeededSource(value)), minlength=size)
        law = np.where(np.arange(size) == value, own, other)
        assert stats.chisquare(counts, 40_000 * law).pvalue > 1e-6


def test_the_ratio_of_chances_is_the_epsilon():
    response = KaryResponse(2.0, 50)
    assert math.log(response.chances[0] / response.chances[1]) == pytest.approx(response.epsilon, rel=1e-12)


def test_a_report_outside_the_domain_is_refused():
    with pytest.raises(InvalidArgument, match="values outside the domain"):
        KaryResponse(1.0, 4).estimate(np.array([0, 4], dtype=np.uint32))
