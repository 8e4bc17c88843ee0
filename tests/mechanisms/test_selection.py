"""Selection: exact laws by enumeration and quadrature. False-alarm probability 1e-6 per test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import integrate, stats

from dpfed.mechanisms.exponential import ExponentialMechanism
from dpfed.mechanisms.selection import PermuteAndFlip, ReportNoisyMax, permute_and_flip, report_noisy_max
from dpfed.randomness import SeededSource, SystemSource

N = 20_000
ALPHA = 1e-6
SCORES = [0.0, 1.0, 2.5, -1.0]


def permute_and_flip_law(scores: list[float], spread: float) -> np.ndarray:
    """Every order of the scores, every coin: the definition, enumerated."""
    law = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        reached = 1.0
        for index in order:
            heads = math.exp((scores[index] - max(scores)) / spread)
            law[index] += reached * heads
            reached *= 1 - heads
    return law / math.factorial(len(scores))


def noisy_max_law(scores: list[float], scale: float) -> np.ndarray:
    x = np.linspace(-100.0, 100.0, 400_001)
    density = [stats.laplace.pdf(x, score, scale) for score in scores]
    below = [stats.laplace.cdf(x, score, scale) for score in scores]
    others = [np.prod(below[:index] + below[index + 1 :], axis=0) for index in range(len(scores))]
    return np.array([integrate.trapezoid(d * o, x) for d, o in zip(density, others, strict=True)])


@pytest.mark.parametrize("monotone", [False, True])
def test_permute_and_flip_follows_its_law(monotone: bool) -> None:
    mechanism = PermuteAndFlip(1.2, 1.0, monotone, SeededSource(1))
    counts = np.bincount([mechanism.select(SCORES) for _ in range(N)], minlength=4)
    law = permute_and_flip_law(SCORES, (1 if monotone else 2) / 1.2)
    assert stats.chisquare(counts, N * law).pvalue > ALPHA


@pytest.mark.parametrize("monotone", [False, True])
def test_report_noisy_max_follows_its_law(monotone: bool) -> None:
    mechanism = ReportNoisyMax(1.2, 1.0, monotone, SeededSource(2))
    assert mechanism.scale == pytest.approx((1 if monotone else 2) / 1.2)
    counts = np.bincount([mechanism.select(SCORES) for _ in range(N)], minlength=4)
    law = noisy_max_law(SCORES, mechanism.scale)
    assert stats.chisquare(counts, N * law / law.sum()).pvalue > ALPHA


@pytest.mark.parametrize("epsilon", [0.3, 2.0])
@pytest.mark.parametrize("monotone", [False, True])
def test_no_neighbouring_scores_change_a_probability_by_more_than_epsilon(epsilon: float, monotone: bool) -> None:
    spread = (1 if monotone else 2) / epsilon
    moves = (0.0, 1.0) if monotone else (-1.0, 0.0, 1.0)
    here = [0.0, 1.0, 1.5, -2.0]
    worst = 0.0
    for move in itertools.product(moves, repeat=4):
        there = [score + step for score, step in zip(here, move, strict=True)]
        losses = np.log(permute_and_flip_law(here, spread) / permute_and_flip_law(there, spread))
        worst = max(worst, np.abs(losses).max())
    assert epsilon * 0.5 < worst <= epsilon + 1e-12


@pytest.mark.parametrize("monotone", [False, True])
def test_noisy_max_ratios_stay_within_epsilon(monotone: bool) -> None:
    scale = (1 if monotone else 2) / 1.0
    moves = ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0]) if monotone else ([1.0, -1.0, -1.0], [-1.0, 1.0, 1.0])
    here = [0.0, 0.5, 3.0]
    base = noisy_max_law(here, scale)
    for move in moves:
        there = noisy_max_law([score + step for score, step in zip(here, move, strict=True)], scale)
        assert np.abs(np.log(base / there)).max() <= 1.0 + 1e-6


def test_permute_and_flip_is_never_worse_than_the_exponential_mechanism() -> None:
    for scores in (SCORES, [0.0, 0.0, 0.1], [5.0, 0.0]):
        exponential = ExponentialMechanism(1.0, 1.0).probabilities(scores)
        assert permute_and_flip_law(scores, 2.0) @ scores >= exponential @ scores - 1e-12


@pytest.mark.parametrize(("function", "kind"), [(report_noisy_max, ReportNoisyMax), (permute_and_flip, PermuteAndFlip)])
def test_functions_choose_like_the_mechanisms(function: Callable[..., int], kind: type) -> None:
    source, mechanism = SeededSource(3), kind(1.0, 1.0, source=SeededSource(3))
    chosen = [function(SCORES, 1.0, 1.0, source=source) for _ in range(50)]
    assert chosen == [mechanism.select(SCORES) for _ in range(50)]
    assert len(set(chosen)) > 1


def test_the_system_source_is_the_default() -> None:
    assert PermuteAndFlip(1.0, 1.0).is_private
    assert PermuteAndFlip(1.0, 1.0, source=SystemSource()).select([0.0, 1e9]) == 1
    assert "NOT PRIVATE" in repr(ReportNoisyMax(1.0, 1.0, source=SeededSource(1)))
