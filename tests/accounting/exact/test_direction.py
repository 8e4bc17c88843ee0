from __future__ import annotations

import math

import pytest

from dpfed.accounting.closed_forms import gaussian_delta, gaussian_epsilon
from dpfed.accounting.exact import pairs
from dpfed.accounting.exact.direction import Direction

GAUSSIAN = pairs.GaussianPair(mu=0.5)
LAPLACE = pairs.LaplacePair(shift=0.2)


def direction(*parts: tuple[pairs.Pair, int]) -> Direction:
    made = Direction()
    for pair, count in parts:
        made.add(pair, count)
    return made


def test_gaussians_alone_have_their_closed_form_and_a_floor_is_never_gone_below():
    found = direction((GAUSSIAN, 3), (GAUSSIAN, 1))
    assert found.epsilon(1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), rel=1e-9)
    assert found.delta(1.0) == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-9)
    assert (found.epsilon(1e-5, floor=9.0), found.delta(1.0, floor=0.5)) == (9.0, 0.5)
    low, high = found.bracket(1e-5)
    assert low <= gaussian_epsilon(1.0, 1e-5)
    assert high - low < 1e-6


@pytest.mark.parametrize("steps", [2, 40, 400])
def test_whichever_path_answers_epsilon_and_delta_agree_within_the_bracket(steps):
    """Few steps go over the lattice, many over the contour."""
    found = direction((LAPLACE, steps))
    low, high = found.bracket(1e-5)
    assert 0 < low <= found.epsilon(1e-5) <= high * (1 + 1e-12)
    assert high - low < 0.02 * high
    assert found.delta(high) <= 1e-5 * (1 + 1e-6)
    assert found.delta(low * (1 - 1e-6)) > 1e-5 * (1 - 1e-2)


def test_the_largest_loss_is_that_of_pure_privacy_and_none_for_gaussians():
    assert direction((LAPLACE, 3)).largest_loss() == pytest.approx(0.6)
    assert direction((GAUSSIAN, 1)).largest_loss() == math.inf


def test_a_copy_goes_its_own_way():
    first = direction((GAUSSIAN, 2))
    second = first.copy()
    second.add(GAUSSIAN, 2)
    assert first.epsilon(1e-5) == direction((GAUSSIAN, 2)).epsilon(1e-5)
    assert second.epsilon(1e-5) == direction((GAUSSIAN, 2), (GAUSSIAN, 2)).epsilon(1e-5)
