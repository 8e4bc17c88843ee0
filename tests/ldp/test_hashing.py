"""Optimised local hashing. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import LocalHashing, hashes
from dpfed.randomness import SeededSource
from support.local_reports import known


@pytest.mark.parametrize("case", known("ldp_olh"), ids=lambda case: case["id"])
def test_buckets_chances_and_variance_are_the_known_ones(case):
    given = case["inputs"]
    oracle = LocalHashing(given["eps"], 1000)
    found = {
        "g": oracle.buckets,
        "p": float(oracle.chances[0]),
        "q": float(oracle.chances[1]),
        "var0": oracle.variance(given["n"]),
    }
    assert found == pytest.approx(case["expected"], rel=case["tol"])


def test_given_its_function_a_bucket_is_a_randomized_response():
    oracle = LocalHashing(1.0, 100)
    reports = oracle.randomize(np.full(40_000, 42), SeededSource(1))
    points = hashes.evaluate(reports["multiplier"], reports["offset"], np.full(40_000, 42))
    moved = (reports["bucket"].astype(int) - hashes.buckets(points, oracle.buckets)) % oracle.buckets
    own = float(oracle.chances[0])
    law = [own, *[(1 - own) / (oracle.buckets - 1)] * (oracle.buckets - 1)]
    assert stats.chisquare(np.bincount(moved, minlength=oracle.buckets), 40_000 * np.array(law)).pvalue > 1e-6


def test_hash_functions_are_drawn_for_every_user_and_do_not_depend_on_the_value():
    oracle = LocalHashing(1.0, 100)
    ours, theirs = (oracle.randomize(np.full(1000, value), SeededSource(1)) for value in (0, 99))
    assert len(np.unique(ours["multiplier"])) == 1000
    assert np.array_equal(ours["multiplier"], theirs["multiplier"])
    assert np.array_equal(ours["offset"], theirs["offset"])


def test_walking_along_lines_counts_as_hashing_every_value_does():
    oracle = LocalHashing(0.7, 300, buckets=11)
    reports = oracle.randomize(np.arange(20_000) % 300, SeededSource(2))
    assert oracle.support(reports).tolist() == [int(oracle.supports(reports, v).sum()) for v in range(300)]


def test_the_number_of_buckets_may_be_chosen_and_is_bounded():
    assert LocalHashing(1.0, 10, buckets=2).chances[1] == 0.5
    assert LocalHashing(30.0, 10).buckets == hashes.MOST_BUCKETS
    for buckets in (1, -1, hashes.MOST_BUCKETS + 1, 2.0):
        with pytest.raises(InvalidArgument, match="buckets must be"):
            LocalHashing(1.0, 10, buckets=buckets)
    oracle = LocalHashing(1.0, 10, buckets=2)
    assert math.log(oracle.chances[0] / (1 - oracle.chances[0])) == pytest.approx(oracle.epsilon, rel=1e-12)


@pytest.mark.parametrize(("name", "value"), [("bucket", 4), ("multiplier", hashes.PRIME), ("offset", 2**63)])
def test_reports_outside_the_family_are_refused(name, value):
    oracle = LocalHashing(1.0, 10)
    reports = oracle.randomize([1, 2])
    reports[name][1] = value
    with pytest.raises(InvalidArgument, match="never sends"):
        oracle.estimate(reports)
