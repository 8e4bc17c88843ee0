"""Subset selection. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import KaryResponse, OptimizedUnary, SubsetSelection, packed
from dpfed.ldp.subset import draw_subsets
from dpfed.randomness import SeededSource
from support.local_reports import known

SIZE, WIDTH = 6, 2
SETS = list(combinations(range(SIZE), WIDTH))


def law(oracle, value):
    """Return the exact chance of every set."""
    own = oracle.chances[0]
    with_own, without = math.comb(SIZE - 1, WIDTH - 1), math.comb(SIZE - 1, WIDTH)
    return [own / with_own if value in each else (1 - own) / without for each in SETS]


def number(bits):
    return bits @ (1 << np.arange(bits.shape[-1]))


@pytest.mark.parametrize("case", known("ldp_subset_selection"), ids=lambda case: case["id"])
def test_width_chances_and_variance_are_the_known_ones(case):
    given = case["inputs"]
    oracle = SubsetSelection(given["eps"], given["k"])
    own, other = map(float, oracle.chances)
    found = {"w": oracle.width, "p": own, "q": other, "var0": oracle.variance(given["n"])}
    assert found == pytest.approx(case["expected"], rel=case["tol"])


def test_sets_follow_their_law_for_every_value():
    oracle = SubsetSelection(1.0, SIZE, width=WIDTH)
    codes = [number(np.isin(np.arange(SIZE), each)) for each in SETS]
    for value in range(SIZE):
        bits = packed.unpack(oracle.randomize(np.full(20_000, value), SeededSource(value)), SIZE)
        counts = np.bincount(number(bits), minlength=1 << SIZE)[codes]
        assert counts.sum() == 20_000
        assert stats.chisquare(counts, 20_000 * np.array(law(oracle, value), dtype=float)).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_no_set_is_more_than_e_to_the_epsilon_times_as_likely_for_another_value(epsilon):
    oracle = SubsetSelection(epsilon, SIZE, width=WIDTH)
    laws = [law(oracle, value) for value in range(SIZE)]
    assert all(sum(each) == 1 for each in laws)
    largest = max(max(column) / min(column) for column in zip(*laws, strict=True))
    assert math.log(largest) == pytest.approx(oracle.epsilon, rel=1e-12)
    assert oracle.epsilon <= epsilon


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_sets_of_items_are_uniform_and_of_their_size(size):
    drawn = draw_subsets(SeededSource(1), 5, size, 20_000)
    assert set(drawn.sum(axis=1)) == {size}
    counts = np.bincount(number(drawn))
    assert np.count_nonzero(counts) == math.comb(5, size)
    assert size in (0, 5) or stats.chisquare(counts[counts > 0]).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("domain", [2, 4, 10, 100, 1000])
def test_its_variance_over_all_values_is_not_above_the_better_of_the_others(epsilon, domain):
    def total(kind):
        oracle = kind(epsilon, domain)
        return (domain - 1) * oracle.variance(100) + oracle.variance(100, 1.0)

    assert total(SubsetSelection) <= min(total(KaryResponse), total(OptimizedUnary)) * (1 + 1e-12)


@pytest.mark.parametrize("width", [-1, 6, 2.0, 7])
def test_a_width_without_a_choice_is_refused(width):
    with pytest.raises(InvalidArgument, match="width must be a whole number from 1 to 5"):
        SubsetSelection(1.0, SIZE, width=width)


def test_sets_of_another_size_are_refused():
    oracle = SubsetSelection(1.0, SIZE, width=WIDTH)
    with pytest.raises(InvalidArgument, match="sets of another size"):
        oracle.estimate(np.array([[0b111]], dtype=np.uint8))
