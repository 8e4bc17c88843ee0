"""The sparse vector technique: right noise, right stop, bounded ratios. False alarms 1e-6 per test."""

from __future__ import annotations

import copy
import itertools
import math
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from dpfed import events as ev
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.mechanisms.sparse_vector import SparseVector
from dpfed.randomness import SeededSource

ALPHA = 1e-6


@pytest.mark.parametrize(("monotone", "factor"), [(False, 2), (True, 1)])
@pytest.mark.parametrize("positives", [1, 5])
def test_the_noise_scales_spend_epsilon_in_the_best_ratio(monotone: bool, factor: int, positives: int) -> None:
    svt = SparseVector(0.8, 2.0, 10.0, positives, monotone=monotone)
    first = 2.0 / svt.threshold_scale
    second = factor * positives * 2.0 / svt.query_scale
    assert first + second == pytest.approx(0.8)
    assert second / first == pytest.approx((factor * positives) ** (2 / 3))


def probability(answers: tuple[bool, ...], values: list[float], svt: SparseVector) -> float:
    """The exact probability of those answers: the noisy threshold integrated out."""
    line = np.linspace(-120.0, 120.0, 200_001)
    density = stats.laplace.pdf(line, svt.threshold, svt.threshold_scale)
    for yes, value in zip(answers, values, strict=True):
        law = stats.laplace(value, svt.query_scale)
        density = density * (law.sf(line) if yes else law.cdf(line))
    return float(integrate.trapezoid(density, line))


@pytest.mark.parametrize("monotone", [False, True])
def test_no_neighbour_changes_a_stream_of_answers_by_more_than_epsilon(monotone: bool) -> None:
    svt = SparseVector(1.0, 1.0, 0.0, monotone=monotone)
    here = [0.0, 0.5, -1.0]
    streams = [(False,) * k + (True,) for k in range(3)] + [(False, False, False)]
    moves = [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]] if monotone else itertools.product((-1.0, 1.0), repeat=3)
    worst = 0.0
    for move in moves:
        there = [value + step for value, step in zip(here, move, strict=True)]
        for stream in streams:
            asked = len(stream)
            ratio = probability(stream, here[:asked], svt) / probability(stream, there[:asked], svt)
            worst = max(worst, abs(math.log(ratio)))
    assert 0.2 < worst <= 1.0 + 1e-6


def test_answers_have_the_exact_probabilities() -> None:
    values = [0.0, 1.0]
    source = SeededSource(1)
    counts = {(True,): 0, (False, True): 0, (False, False): 0}
    for _ in range(20_000):
        svt = SparseVector(2.0, 1.0, 0.5, source=source)
        first = svt.is_above(values[0])
        counts[(True,) if first else (False, svt.is_above(values[1]))] += 1
    law = [probability(stream, values[: len(stream)], svt) for stream in counts]
    assert sum(law) == pytest.approx(1.0, abs=1e-6)
    assert stats.chisquare(list(counts.values()), 20_000 * np.array(law) / sum(law)).pvalue > ALPHA


def test_it_stops_after_its_positives_and_not_before() -> None:
    svt = SparseVector(1.0, 1.0, 1000.0, max_positives=2)
    assert [svt.is_above(value) for value in (-1e6, 1e6, -1e6, -1e6, 1e6)] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert svt.is_exhausted
    with pytest.raises(BudgetExceeded, match="2 positive answers"):
        svt.is_above(-1e6)


def test_the_threshold_noise_is_drawn_once() -> None:
    svt = SparseVector(0.01, 1.0, 0.0, max_positives=1, source=SeededSource(1))
    svt.is_above(-1e9)
    line = svt._threshold_noise
    svt.is_above(-1e9)
    assert svt._threshold_noise == line != 0.0


def test_values_and_threshold_that_are_larger_by_a_constant_are_answered_alike() -> None:
    """At 2⁵² a float is a whole number: noise on the value itself would be rounded to one."""

    def answers(constant: float) -> list[bool]:
        source = SeededSource(5)
        streams = [SparseVector(5.0, 1.0, 3.0 + constant, source=source) for _ in range(500)]
        return [stream.is_above(3.0 + constant) for stream in streams]

    assert answers(2.0**52) == answers(0.0)


def test_the_event_is_charged_once_for_the_stream() -> None:
    assert SparseVector(0.5, 1.0, 0.0, max_positives=7).event == ev.PureDP(0.5)
    replaced = SparseVector(0.5, Sensitivity(1.0, "linf", "replace_one"), 0.0)
    assert replaced.event == ev.PureDP(0.5, adjacency="replace_one")


def test_copies_are_refused_because_each_would_answer_again() -> None:
    with pytest.raises(TypeError, match="one price"):
        copy.deepcopy(SparseVector(1.0, 1.0, 0.0))


def test_a_forked_process_cannot_give_the_positives_again() -> None:
    svt = SparseVector(1.0, 1.0, 0.0)
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()

    def child() -> None:
        try:
            answers.put(str(svt.is_above(1e9)))
        except BudgetExceeded as refused:
            answers.put(str(refused))

    process = fork.Process(target=child)
    process.start()
    assert "forked process" in answers.get(timeout=60)
    process.join()


def test_threads_together_get_no_more_positives_than_there_are() -> None:
    svt = SparseVector(1.0, 1.0, 0.0, max_positives=5)

    def ask(_: int) -> bool:
        try:
            return svt.is_above(1e9)
        except BudgetExceeded:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(200))) == svt.positives == 5


@given(st.floats(1e-3, 100), st.floats(1e-3, 1e3), st.integers(1, 50), st.booleans())
def test_the_scales_never_spend_more_than_epsilon(
    epsilon: float, sensitivity: float, positives: int, monotone: bool
) -> None:
    svt = SparseVector(epsilon, sensitivity, 0.0, positives, monotone=monotone)
    factor = positives * (1 if monotone else 2)
    spent = (1 / Fraction(svt.threshold_scale) + factor / Fraction(svt.query_scale)) * Fraction(sensitivity)
    assert spent <= Fraction(epsilon)


def test_a_seeded_source_is_stamped() -> None:
    svt = SparseVector(1.0, 1.0, 0.0, source=SeededSource(1))
    assert not svt.is_private
    assert "NOT PRIVATE" in repr(svt)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1.0, 0.0), "epsilon"),
        ((1.0, 0.0, 0.0), "sensitivity"),
        ((1.0, 1.0, math.nan), "threshold"),
        ((1.0, 1.0, 0.0, 0), "max_positives"),
        ((1.0, 1.0, 0.0, 1.5), "max_positives"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments: tuple[float, ...], name: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SparseVector(*arguments)
    assert refusal.value.argument == name


def test_a_query_that_is_no_number_is_refused_and_costs_nothing() -> None:
    svt = SparseVector(1.0, 1.0, 0.0)
    with pytest.raises(InvalidArgument, match="value"):
        svt.is_above(math.nan)
    assert svt.positives == 0
