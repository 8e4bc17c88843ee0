"""Running moments: kept lines stay true as a composition grows, and copies go their own way."""

from __future__ import annotations

import math

import pytest

from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.accounting.exact import contour
from dpfed.accounting.exact.pairs import DiscretePair, GaussianPair, LaplacePair
from dpfed.accounting.exact.running_moments import RunningMoments
from dpfed.accounting.exact.sampled_gaussian import SampledGaussian, Side

STEP = SampledGaussian(1.0, 0.1, Side.PRESENT)


def answer(running: RunningMoments, delta: float) -> float:
    start, inversion = running.inversion_near(delta, at_infinity=0.0)
    assert inversion is not None
    return min(start, contour.smallest_epsilon(inversion, delta, start))


def test_a_line_that_grew_answers_as_a_fresh_one() -> None:
    grown = RunningMoments()
    for count in (60, 1, 5, 200, 3000):
        grown.add(STEP, count)
        grown.add(GaussianPair(0.1), 2)
        grown_answer = answer(grown, 1e-5)
    fresh = RunningMoments()
    fresh.add(STEP, 3266)
    fresh.add(GaussianPair(0.1), 10)
    assert grown_answer == pytest.approx(answer(fresh, 1e-5), rel=1e-6)


@pytest.mark.parametrize("delta", [1e-15, 1e-5, 1e-2])
def test_gaussians_on_a_line_have_their_closed_form(delta: float) -> None:
    running = RunningMoments()
    running.add(GaussianPair(0.1), 100)
    true = gaussian_epsilon(1.0, delta)
    assert true * (1 - 1e-12) <= answer(running, delta) <= true * (1 + 1e-5)


def test_questions_in_any_order_of_delta_agree() -> None:
    deltas = [1e-5, 1e-12, 1e-2, 1e-7]
    shared = RunningMoments()
    shared.add(STEP, 500)
    for delta in deltas:
        alone = RunningMoments()
        alone.add(STEP, 500)
        assert answer(shared, delta) == pytest.approx(answer(alone, delta), rel=1e-6)


def test_copies_are_independent() -> None:
    one = RunningMoments()
    one.add(STEP, 300)
    before = answer(one, 1e-5)
    twin = one.copy()
    twin.add(STEP, 3000)
    assert answer(twin, 1e-5) > 2 * before
    assert answer(one, 1e-5) == before
    one.add(GaussianPair(5.0), 1)
    assert answer(twin, 1e-5) < answer(one, 1e-5) + 100
    fresh = RunningMoments()
    fresh.add(STEP, 3300)
    assert answer(twin, 1e-5) == pytest.approx(answer(fresh, 1e-5), rel=1e-6)


@pytest.mark.parametrize("pair", [LaplacePair(0.1), DiscretePair((-0.2, 0.2), (0.45, 0.55))], ids=["Laplace", "coin"])
def test_atoms_alone_get_no_line(pair: LaplacePair | DiscretePair) -> None:
    running = RunningMoments()
    running.add(pair, 50)
    assert running.inversion_near(1e-5, at_infinity=0.0)[1] is None
    assert running.inversion_at(1.0, 1e-5, at_infinity=0.0) is None


def test_too_few_steps_get_no_line() -> None:
    running = RunningMoments()
    running.add(STEP, 2)
    assert running.inversion_near(1e-5, at_infinity=0.0)[1] is None


def test_quick_bounds_are_bounds() -> None:
    running = RunningMoments()
    running.add(GaussianPair(0.1), 100)
    for delta in (1e-9, 1e-5, 1e-2):
        exact = gaussian_epsilon(1.0, delta)
        quick = running.epsilon_bound(delta, at_infinity=0.0)
        assert exact <= quick <= 1.3 * exact + 0.1
        assert delta <= running.delta_bound(exact) <= 1.0


def test_no_loss_at_all_is_answered() -> None:
    running = RunningMoments()
    running.add(DiscretePair((-0.0, 0.0), (0.5, 0.5)), 3)
    start, inversion = running.inversion_near(1e-5, at_infinity=0.0)
    assert inversion is None
    assert not math.isnan(start)
