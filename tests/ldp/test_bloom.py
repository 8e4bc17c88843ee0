"""Bloom filters of cohorts. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp.bloom import Filters, read_texts

FILTERS = Filters(bits=12, hashes=3, cohorts=5)


def test_a_text_sets_as_many_different_bits_as_there_are_hashes():
    texts = [f"text {number}" for number in range(500)]
    places = FILTERS.positions(texts, np.arange(500) % 5)
    assert all(len(set(row)) == 3 for row in places.tolist())
    assert places.min() >= 0
    assert places.max() < 12


def test_all_bits_are_equally_likely():
    places = FILTERS.positions([f"text {number}" for number in range(4000)], np.zeros(4000, dtype=int))
    for column in places.T:
        assert stats.chisquare(np.bincount(column, minlength=12)).pvalue > 1e-6


def test_a_long_label_keeps_cohorts_and_labels_apart():
    """The key of a hash function has 64 bytes at most."""
    texts = [f"text {number}" for number in range(50)]
    labels = ("x" * 63, "x" * 80, "x" * 80 + "y")
    found = {
        (label, cohort): Filters(64, 2, 5, label).positions(texts, np.full(50, cohort)).tobytes()
        for label in labels
        for cohort in range(5)
    }
    assert len(set(found.values())) == len(found)


def test_cohorts_and_labels_have_functions_of_their_own():
    first, other = FILTERS.positions(["a"] * 5, np.arange(5)).tolist(), Filters(12, 3, 5, "b").positions(["a"], [0])
    assert len({tuple(row) for row in first}) > 1
    assert other.tolist()[0] != first[0]


def test_a_users_filter_is_the_column_of_its_text_in_the_design():
    texts, cohorts = np.array(["red", "blue", "red", "green"]), np.array([0, 1, 4, 1])
    design = FILTERS.design(["blue", "green", "red"])
    columns = [
        design[cohort, :, ["blue", "green", "red"].index(text)] for text, cohort in zip(texts, cohorts, strict=True)
    ]
    assert np.array_equal(FILTERS.fill(texts, cohorts), np.array(columns))


def test_numbers_are_read_as_their_digits():
    assert read_texts([1, 20]).tolist() == ["1", "20"]


@pytest.mark.parametrize("values", [[], [[1]], [1.5], "text", [None]])
def test_what_is_no_list_of_texts_is_refused(values):
    with pytest.raises(InvalidArgument, match="one list of texts"):
        read_texts(values)


def test_a_refusal_does_not_show_how_long_the_longest_text_is():
    with pytest.raises(InvalidArgument) as refusal:
        read_texts([["a"], ["x" * 537]])
    assert "537" not in str(refusal.value)
