"""Individual budgets: nobody's contributions cost more than promised, whatever was seen before, on every path."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed import events as ev
from dpfed.accounting.conversions import zcdp_to_epsilon
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.individual import IndividualSum
from dpfed.randomness import SeededSource
from studies import SilentSource


def make_sums(persons=3, epsilon=1.0, noise=4.0, source=None, clip_norm=1.0):
    return IndividualSum(
        epsilon,
        1e-5,
        persons=persons,
        clip_norm=clip_norm,
        noise_multiplier=noise,
        source=SilentSource() if source is None else source,
    )


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0])
def test_the_event_is_that_of_the_promise_however_many_sums_there_are(epsilon):
    sums = make_sums(epsilon=epsilon)
    assert sums.event == ev.ZeroConcentratedDP(sums.rho, adjacency="add_remove")
    assert 0.999 * epsilon < zcdp_to_epsilon(sums.rho, 1e-5) <= epsilon
    assert epsilon_of(sums.event, 1e-5) == pytest.approx(epsilon, rel=1e-3)  # at orders of its own, hardly above


lengths = st.floats(0, 10) | st.sampled_from([0.0, 1e-12, 1e6, math.nan, math.inf])


@given(seed=st.integers(0, 10**6), plan=st.lists(lengths, min_size=1, max_size=60))
def test_nobody_is_counted_beyond_its_budget_whatever_it_contributes(seed, plan):
    """Without noise, exactly: what one person moved all sums by, squared, against its budget."""
    sums, without = make_sums(persons=2), make_sums(persons=2)
    others = np.array([0.3, 0.1])
    moved = Fraction(0)
    for number, length in enumerate(plan):
        direction = SeededSource(seed + number).normal(2)
        own = length * direction / np.linalg.norm(direction)
        ours, theirs = sums.release([own, others]), without.release([np.zeros(2), others])
        moved += sum(Fraction(float(each)) ** 2 for each in ours - theirs)
    assert moved / (2 * Fraction(4) ** 2) <= Fraction(sums.rho)


def test_who_is_left_out_of_a_long_sum_comes_back_with_a_shorter_one():
    sums = make_sums(persons=1, noise=1.0, epsilon=1.0)
    assert sums.full_sums == 0
    assert sums.release([[1.0]]).tolist() == [0.0]
    budget = math.sqrt(2 * sums.rho)
    assert sums.release([[0.9 * budget]]) == pytest.approx(0.9 * budget)
    assert sums.release([[0.9 * budget]]).tolist() == [0.0]
    assert sums.release([[0.1 * budget]]) == pytest.approx(0.1 * budget)
    assert sums.find_private_budgets()[0] < sums.rho


def test_the_published_filter_drops_the_same_sum_and_goes_on():
    """Reference case renyi_filter: at order 8 and σ = 2 a sum costs its squared length, of a budget of 1.2."""
    sums = make_sums(persons=1, noise=2.0)
    sums.rho = 1.2 / 8
    spent = []
    for length in (0.5, 0.3, 1.0, 0.2):
        sums.release([[length]])
        spent.append(8 * (sums.rho - sums.find_private_budgets()[0]))
    assert spent == pytest.approx([0.25, 0.34, 0.34, 0.38], rel=1e-6)  # the third is left out


def test_whether_one_is_counted_depends_on_nobody_else():
    alone, among = make_sums(persons=2), make_sums(persons=2)
    for number in range(40):
        own = [1.0, 0.0]
        lone = alone.release([own, [0.0, 0.0]])
        crowd = among.release([own, [0.0, 1.0 if number % 2 else 1e9]])
        assert lone[0] == crowd[0]
    assert lone[0] == 0  # its budget is spent by then


def test_one_who_spends_when_it_is_lucky_loses_no_more_than_promised():
    """Adversaries that contribute in full while their loss so far is high: 50 at a time, each in a number of its own.

    exp((α − 1)(loss − α·ρ)) has a mean of at most 1 at any order; a one-sided t test of 1,500 paths at 1e-6.
    """
    order, sigma, losses = 3.0, 4.0, []
    for seed in range(30):
        sums, loss = make_sums(persons=50, epsilon=2.0, noise=sigma, source=SeededSource(seed)), np.zeros(50)
        for _ in range(8):
            lengths = np.where(loss >= 0, 1.0, 0.5)
            before = sums.find_private_budgets()
            seen = sums.release(np.diag(lengths))
            shifts = np.where(sums.find_private_budgets() < before, lengths, 0.0)
            loss += (seen * shifts - shifts**2 / 2) / sigma**2
        losses.append(loss)
    assert sums.find_private_budgets().min() < sums.rho / 4  # budgets were an obstacle
    values = np.exp((order - 1) * (np.concatenate(losses) - order * sums.rho))
    assert stats.ttest_1samp(values, 1.0, alternative="greater").pvalue > 1e-6


def test_noise_is_that_of_the_clip_norm_and_sums_are_on_its_grid():
    sums = make_sums(persons=1, noise=3.0, clip_norm=2.0, source=SeededSource(3))
    found = sums.release(np.zeros((1, 20_000)))
    assert found.std() == pytest.approx(6.0, rel=5 / (2 * 20_000) ** 0.5)


@pytest.mark.parametrize("rows", [np.zeros((2, 2)), np.zeros(3), np.zeros((3, 0)), np.array([["a"]] * 3)])
def test_rows_of_another_shape_are_refused(rows):
    with pytest.raises(InvalidArgument, match="one row of numbers for each of 3 persons"):
        make_sums().release(rows)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"noise_multiplier": 200.0}, "at most 128"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"persons": 0}, "persons"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"delta": 0.0}, "delta"),
    ],
)
def test_impossible_settings_are_refused(settings, why):
    given_all = {"epsilon": 1.0, "delta": 1e-5, "persons": 3, "clip_norm": 1.0, "noise_multiplier": 4.0, **settings}
    with pytest.raises(InvalidArgument, match=why):
        IndividualSum(given_all.pop("epsilon"), given_all.pop("delta"), **given_all)
