"""The exponential mechanism: exact probabilities, bounded ratios. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.exponential import ExponentialMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource, SeededSource, SystemSource

N = 100_000
ALPHA = 1e-6


@pytest.mark.parametrize(("monotone", "factor"), [(False, 0.5), (True, 1.0)])
def test_probabilities_are_the_softmax_of_the_scaled_scores(monotone: bool, factor: float) -> None:
    scores = np.array([1.0, 0.0, 3.0])
    weights = np.exp(0.8 * factor * scores / 2.0)
    mechanism = ExponentialMechanism(0.8, 2.0, monotone=monotone)
    np.testing.assert_allclose(mechanism.probabilities(scores), weights / weights.sum())


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("make", [partial(SeededSource, 21), SystemSource], ids=["seeded", "system"])
def test_selection_follows_the_probabilities(make: Callable[[], RandomSource], monotone: bool) -> None:
    scores = [0.0, 1.0, 2.5, -1.0]
    mechanism = ExponentialMechanism(1.2, 1.0, monotone=monotone, source=make())
    counts = np.bincount([mechanism.select(scores) for _ in range(20_000)], minlength=4)
    assert stats.chisquare(counts, 20_000 * mechanism.probabilities(scores)).pvalue > ALPHA


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("monotone", [False, True])
def test_no_neighbouring_scores_change_a_probability_by_more_than_epsilon(epsilon: float, monotone: bool) -> None:
    mechanism = ExponentialMechanism(epsilon, 1.0, monotone=monotone)
    scores = np.array([0.0, 1.0, 1.5, -2.0])
    base = mechanism.probabilities(scores)
    moves = (0.0, 1.0) if monotone else (-1.0, 0.0, 1.0)
    worst = 0.0
    for move in itertools.product(moves, repeat=4):
        loss = np.log(mechanism.probabilities(scores + np.array(move)) / base)
        worst = max(worst, np.abs(loss).max())
        assert loss.max() - loss.min() <= epsilon + 1e-12  # bounded range, on which the event's zCDP rests
    assert worst <= epsilon + 1e-12


def test_monotone_is_false_by_default_because_other_moves_would_break_it() -> None:
    mechanism = ExponentialMechanism(1.0, 1.0, monotone=True)
    up, down = mechanism.probabilities([1.0, -1.0]), mechanism.probabilities([-1.0, 1.0])
    assert np.abs(np.log(up / down)).max() > 1.0
    assert not ExponentialMechanism(1.0, 1.0).monotone


def test_the_event_carries_the_adjacency_of_the_sensitivity() -> None:
    assert ExponentialMechanism(0.5, 1.0).event == ev.Exponential(0.5)
    replaced = ExponentialMechanism(0.5, Sensitivity(1.0, "linf", "replace_one"))
    assert replaced.event == ev.Exponential(0.5, adjacency="replace_one")


def test_huge_and_equal_scores_are_safe() -> None:
    mechanism = ExponentialMechanism(1.0, 1.0)
    assert mechanism.select([1e308, -1e308]) == 0
    np.testing.assert_allclose(mechanism.probabilities([1e300, 1e300]), [0.5, 0.5])


def test_a_seeded_mechanism_says_it_is_not_private() -> None:
    seeded = ExponentialMechanism(1.0, 1.0, source=SeededSource(1))
    assert not seeded.is_private
    assert "NOT PRIVATE" in repr(seeded)


@pytest.mark.parametrize("scores", [[], [math.nan, 1.0], [math.inf], [[1.0]], 3.0, ["a"], [True]])
def test_bad_scores_are_refused(scores: object) -> None:
    with pytest.raises(InvalidArgument, match="scores"):
        ExponentialMechanism(1.0, 1.0).select(scores)


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.0, 1.0), (1.0, 0.0), (1.0, Sensitivity(1.0, "l2"))])
def test_bad_arguments_are_refused(epsilon: float, sensitivity: float) -> None:
    with pytest.raises(InvalidArgument):
        ExponentialMechanism(epsilon, sensitivity)
