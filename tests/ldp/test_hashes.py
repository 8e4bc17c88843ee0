"""The hash family. False-alarm probability 1e-6 per test."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from dpfed.ldp import hashes
from dpfed.randomness import SeededSource

PRIME = hashes.PRIME


def test_lines_are_those_of_whole_numbers(campaign_scale):
    rng = np.random.default_rng(1)
    multiplier, offset = rng.integers(0, PRIME, (2, 2000 * campaign_scale), dtype=np.uint64)
    values = rng.integers(0, 1 << 31, multiplier.size)
    multiplier[:3], offset[:3], values[:3] = PRIME - 1, PRIME - 1, (1 << 31) - 1
    expected = [(int(a) * int(v) + int(b)) % PRIME for a, b, v in zip(multiplier, offset, values, strict=True)]
    assert hashes.evaluate(multiplier, offset, values).tolist() == expected


@pytest.mark.parametrize("count", [2, 3, 4, 1000, hashes.MOST_BUCKETS])
def test_buckets_are_equal_up_to_one_point(count):
    edges = [int(edge) for edge in hashes.edges(count)]
    lengths = {after - before for before, after in pairwise(edges)}
    assert edges[0] == 0
    assert edges[-1] == PRIME
    assert max(lengths) - min(lengths) <= 1


def test_an_edge_belongs_to_the_bucket_that_begins_there():
    edges = hashes.edges(7)
    assert hashes.buckets(edges[:-1], 7).tolist() == list(range(7))
    assert hashes.buckets(edges[1:] - np.uint64(1), 7).tolist() == list(range(7))


def test_two_values_are_hashed_independently():
    draws = 200_000
    multiplier, offset = hashes.draw_coefficients(SeededSource(2), 2 * draws).reshape(2, -1)
    first, second = (
        hashes.buckets(hashes.evaluate(multiplier, offset, np.full(draws, value)), 4) for value in (10, 11)
    )
    assert stats.chisquare(np.bincount(4 * first + second, minlength=16)).pvalue > 1e-6


def test_public_coefficients_follow_from_their_label():
    first, again, other = (hashes.public_coefficients(label, 50) for label in ("a", "a", "b"))
    assert first.tolist() == again.tolist() != other.tolist()
    assert max(first.tolist()) < PRIME


def test_a_coefficient_that_is_the_prime_itself_is_drawn_again():
    drawn = [PRIME, 5]

    class Once:
        def words(self, count):
            return np.array([drawn.pop(0) for _ in range(count)], dtype=np.uint64)

    assert hashes.draw_coefficients(Once(), 1).tolist() == [5]
