"""The piecewise mechanism and the hybrid. False-alarm probability 1e-6 per test of a law."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp import DuchiMean, HybridMean, PiecewiseMean, piecewise
from dpfed.ldp.coins import ONE
from dpfed.randomness import SeededSource


@pytest.fixture
def small(monkeypatch):
    """Return the mechanism on a grid of eight steps, whose cells can all be counted."""
    monkeypatch.setattr(piecewise, "GRID", 8)
    return PiecewiseMean(1.0)


def law(mechanism, place):
    """Return the chance of every cell for the number at a place of the grid of eight steps."""
    own = mechanism._own / ONE
    cells = np.arange(mechanism.cells)
    is_inside = (cells >= place) & (cells < place + mechanism.window)
    return np.where(is_inside, own / mechanism.window, (1 - own) / 8)


def test_cells_follow_their_law_for_every_point_of_a_small_grid(small):
    for place in range(9):
        reports = small.randomize(np.full(30_000, place / 4 - 1), SeededSource(place))
        counts = np.bincount(reports, minlength=small.cells)
        assert stats.chisquare(counts, 30_000 * law(small, place)).pvalue > 1e-6


def test_a_number_between_two_points_is_a_mixture_of_both(small):
    counts = np.bincount(small.randomize(np.full(60_000, 0.3), SeededSource(1)), minlength=small.cells)
    mixed = 0.8 * law(small, 5) + 0.2 * law(small, 6)  # 0.3 is 5.2 steps from −1
    assert stats.chisquare(counts, 60_000 * mixed).pvalue > 1e-6


def test_no_cell_is_more_than_e_to_the_epsilon_times_as_likely_for_another_number(small):
    laws = np.array([law(small, place) for place in range(9)])
    assert math.log((laws.max(axis=0) / laws.min(axis=0)).max()) == pytest.approx(small.epsilon, rel=1e-12)
    assert small.epsilon <= 1.0


def test_the_formula_of_the_variance_is_that_of_the_law(small):
    decoded = small.decode(np.arange(small.cells, dtype=np.uint32))
    for place in (0, 3, 8):
        chances, value = law(small, place), place / 4 - 1
        assert chances @ decoded == pytest.approx(value, abs=1e-12)
        assert chances @ decoded**2 - value**2 == pytest.approx(small.variance(1, value))


def test_cells_beyond_the_grid_are_refused():
    mechanism = PiecewiseMean(1.0)
    with pytest.raises(InvalidArgument, match="cells that the grid does not have"):
        mechanism.estimate(np.array([mechanism.cells], dtype=np.uint32))


def test_a_hybrid_of_small_epsilon_sends_signs_only():
    reports = HybridMean(0.5).randomize(np.zeros(1000), SeededSource(1))
    assert not reports["is_piecewise"].any()
    assert HybridMean(0.5).variance(1, 0.3) == DuchiMean(0.5).variance(1, 0.3)


def test_a_hybrid_says_which_mechanism_a_report_is_of():
    mechanism = HybridMean(2.0)
    reports = mechanism.randomize(np.zeros(20_000), SeededSource(1))
    assert stats.binomtest(int(reports["is_piecewise"].sum()), 20_000, 1 - math.exp(-1)).pvalue > 1e-6
    reports["cell"][:] = 2
    reports["is_piecewise"][0] = False
    with pytest.raises(InvalidArgument, match="mechanism they name"):
        mechanism.estimate(reports)
