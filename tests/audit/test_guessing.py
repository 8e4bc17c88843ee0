"""Guesses are made from scores alone: no tie, order or label helps them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.audit.guessing import FRONTIER, GRID, SHARES, Guesses, guess_surest, list_guesses, require_scores, split
from dpfed.errors import InvalidArgument
from dpfed.randomness import SeededSource

SMALL = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12).map(np.array)


@given(SMALL, SMALL, st.sampled_from(SHARES))
def test_of_all_ways_to_break_ties_the_worst_is_counted(members, others, share):
    """Random jitter that keeps the order of unequal scores never gives fewer correct guesses."""
    found = guess_surest(members, others, share)
    draws = np.random.default_rng(len(members))
    for _ in range(5):
        jittered = guess_surest(
            members + 0.1 * draws.random(len(members)), others + 0.1 * draws.random(len(others)), share
        )
        assert found.made == jittered.made
        assert found.correct <= jittered.correct


def test_all_scores_alike_give_no_correct_guess_but_those_that_cannot_be_avoided():
    assert guess_surest(np.zeros(8), np.zeros(8), 0.5) == Guesses(16, 8, 0)


@given(SMALL, SMALL)
def test_the_numbers_of_guesses_do_not_depend_on_scores(members, others):
    sizes = [each.made for each in list_guesses(members, others, GRID)]
    zeros = [each.made for each in list_guesses(np.zeros(len(members)), np.zeros(len(others)), GRID)]
    assert sizes == zeros
    assert sizes[-1] == len(members) + len(others)


def test_guesses_go_to_both_ends():
    found = guess_surest(np.array([5.0, 4.0, 0.0, 0.0]), np.array([-5.0, -4.0, 0.5, 0.6]), 0.5)
    assert found == Guesses(8, 4, 4)
    assert (found.wrong, found.precision, found.share) == (0, 1.0, 0.5)


def test_the_frontier_has_the_corners_of_the_hull_and_the_empty_one():
    members, others = np.array([3.0, 2.0, 0.0]), np.array([1.0, -1.0, -2.0])
    corners = list(list_guesses(members, others, FRONTIER))
    assert [(each.made, each.correct) for each in corners] == [(1, 0), (2, 2), (4, 3), (6, 3)]


def test_a_threshold_that_nobody_reaches_is_refused():
    with pytest.raises(InvalidArgument, match="no score reaches the threshold 9"):
        list(list_guesses(np.zeros(2), np.zeros(2), 9.0))
    with pytest.raises(InvalidArgument, match="threshold must be 'grid', 'split', 'frontier' or a number"):
        list(list_guesses(np.zeros(2), np.zeros(2), "best"))


def test_a_split_has_every_canary_once():
    members, others = np.arange(40.0), np.arange(100.0, 130.0)
    (first_in, first_out), (second_in, second_out) = split(members, others, SeededSource(3))
    assert sorted([*first_in, *second_in]) == members.tolist()
    assert sorted([*first_out, *second_out]) == others.tolist()
    with pytest.raises(InvalidArgument, match="too few canaries"):
        split(members[:1], others, SeededSource(3))


@pytest.mark.parametrize("scores", [[], [[1.0]], [np.nan]])
def test_scores_that_cannot_be_ordered_are_refused(scores):
    with pytest.raises(InvalidArgument, match="out_scores must be one number for each canary"):
        require_scores([1.0], scores)
