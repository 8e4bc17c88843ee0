"""The lattice: brackets that hold the truth for few steps, discrete losses and laws of very different width."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import oracle
import pytest
from mpmath import mp, mpf

from dpfed import events as ev
from dpfed.accounting.exact import lattice
from dpfed.accounting.exact.lattice import compose_law, delta_upper, epsilon_bracket, epsilon_upper
from dpfed.accounting.exact.pairs import pairs
from dpfed.accounting.exact.privacy_loss import (
    AbsentLaw,
    DiscreteLaw,
    GaussianLaw,
    LaplaceLaw,
    Law,
    PresentLaw,
    ReplacedGaussianLaw,
)


def coin(epsilon: float, revealed: float = 0.0, unit: float = 0.0) -> DiscreteLaw:
    truth = (1 - revealed) / (1 + math.exp(-epsilon))
    return DiscreteLaw(np.array([-epsilon, epsilon]), np.array([1 - revealed - truth, truth]), revealed, unit)


@pytest.mark.parametrize("steps", [2, 5, 20, 49, 100])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_gaussians_are_bracketed_tightly(steps: int, delta: float) -> None:
    true = oracle.smallest_epsilon(lambda e: oracle.gaussian_delta(0.4 * math.sqrt(steps), e), delta)
    low, high = epsilon_bracket([(GaussianLaw(0.4), steps)], delta)
    assert low * (1 - 1e-9) <= true <= high * (1 + 1e-9)
    assert high - low <= 1e-3 * max(true, 0.01)


@mp.workdps(30)
def exact_coin_delta(epsilon: float, steps: int, revealed: Fraction, at: float) -> float:
    """In exact binomials: heads e^ε times as likely as tails."""
    kept, heads = 1 - mpf(revealed.numerator) / revealed.denominator, 1 / (1 + mp.exp(-mpf(epsilon)))
    total = 1 - kept**steps
    for up in range(steps + 1):
        loss = (2 * up - steps) * mpf(epsilon)
        if loss > at:
            mass = mp.binomial(steps, up) * (kept * heads) ** up * (kept * (1 - heads)) ** (steps - up)
            total += mass * -mp.expm1(at - loss)
    return float(total)


@pytest.mark.parametrize("steps", [2, 3, 20, 49, 150])
@pytest.mark.parametrize("unit", [0.0, 0.3], ids=["off the unit", "on the unit"])
@pytest.mark.parametrize("revealed", [Fraction(0), Fraction(1, 10**7)])
def test_coins_agree_with_exact_binomials(steps: int, unit: float, revealed: Fraction) -> None:
    counted = [(coin(0.3, float(revealed), unit), steps)]
    delta = 1e-4
    true = oracle.smallest_epsilon(lambda e: exact_coin_delta(0.3, steps, revealed, e), delta)
    low, high = epsilon_bracket(counted, delta)
    assert low * (1 - 1e-9) <= true <= high * (1 + 1e-9)
    assert high <= true * (1 + (1e-8 if unit else 1e-3))
    assert delta_upper(counted, true / 2, known=1.0) >= exact_coin_delta(0.3, steps, revealed, true / 2) * (1 - 1e-12)


def test_mass_at_infinity_beyond_delta_has_no_epsilon() -> None:
    assert epsilon_upper([(coin(0.3, 1e-4), 20)], 1e-3) == math.inf
    assert epsilon_upper([(coin(0.3, 1e-4), 9)], 1e-3) < math.inf


# The narrower loss first: the other's hockey stick is then smooth on the scale of the nodes.
TWO = [
    (0.5, 0.3, 0.3, 0.02),
    (12.0, 1e-3, 0.5, 0.3),
    (5.0, 0.5, 5.0, 0.5),
    (0.7, 0.01, 1.0, 0.9),
    (20.0, 0.02, 1.1, 0.3),
]


@pytest.mark.parametrize(("a", "p", "b", "q"), TWO)
@pytest.mark.parametrize("delta", [1e-9, 1e-4])
def test_two_sampled_gaussians_agree_with_one_integral(a: float, p: float, b: float, q: float, delta: float) -> None:
    release = oracle.gaussian(a, fineness=8).sampled(p)
    stick = oracle.gaussian_hockey_stick(b, q)
    true = oracle.smallest_epsilon(lambda e: oracle.two_fold_delta(release, stick, e), delta)
    counted = [(PresentLaw(GaussianLaw(1 / a), p), 1), (PresentLaw(GaussianLaw(1 / b), q), 1)]
    low, high = epsilon_bracket(counted, delta)
    assert low - 1e-7 <= true <= high + 1e-7
    assert high - low <= 1e-3 * max(true, 0.01)


@pytest.mark.parametrize(("a", "p", "b", "q"), TWO)
def test_two_absent_gaussians_agree_with_one_integral(a: float, p: float, b: float, q: float) -> None:
    release = oracle.gaussian(a, fineness=8).sampled(p).mirrored()
    stick = oracle.absent_gaussian_hockey_stick(b, q)
    true = oracle.smallest_epsilon(lambda e: oracle.two_fold_delta(release, stick, e), 1e-5)
    counted = [(AbsentLaw(GaussianLaw(1 / a), p), 1), (AbsentLaw(GaussianLaw(1 / b), q), 1)]
    low, high = epsilon_bracket(counted, 1e-5)
    assert low - 1e-7 <= true <= high + 1e-7


def test_a_law_narrower_than_a_cell_adds_next_to_nothing() -> None:
    wide = PresentLaw(GaussianLaw(1 / 0.6228), 0.0369)
    narrow = PresentLaw(GaussianLaw(1 / 11.82), 0.0002519)
    alone = epsilon_upper([(wide, 1)], 1e-9)
    assert alone * (1 - 1e-4) <= epsilon_upper([(wide, 1), (narrow, 1)], 1e-9) <= alone * (1 + 1e-3)


def test_nearly_all_mass_at_the_largest_loss_is_composed() -> None:
    # An absent unit under hardly any noise: every loss but a hair of them is −log(1 − q).
    counted: lattice.Counted = [(AbsentLaw(GaussianLaw(20.0), 0.1), 20)]
    low, high = epsilon_bracket(counted, 1e-5)
    assert low <= -20 * math.log(0.9) <= high + 1e-3


@pytest.mark.parametrize("law", [GaussianLaw(1.0), PresentLaw(GaussianLaw(1.0), 0.2), ReplacedGaussianLaw(1.0, 0.1)])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 0.9, 1 - 1e-9])
def test_brackets_stay_in_order_at_the_ends_of_delta(law: Law, delta: float) -> None:
    low, high = epsilon_bracket([(law, 3)], delta)
    assert 0 <= low <= high
    assert not math.isnan(high)


def test_releases_of_one_draw_dominate_the_sum_of_their_losses() -> None:
    law = compose_law([(GaussianLaw(0.5), 1), (LaplaceLaw(1.0), 2)], 1e-32)
    noises = oracle.laplace(1.0).beside(oracle.laplace(1.0))
    for epsilon in (0.1, 1.0, 2.5):
        true = oracle.two_fold_delta(noises, oracle.gaussian_hockey_stick(2.0), epsilon)
        (above,), (q,) = law.masses(np.array([epsilon, np.inf]))
        assert true * (1 - 1e-4) <= above - math.exp(epsilon) * q <= true * 1.01


@pytest.mark.parametrize("scale", np.geomspace(0.3, 20, 40))
@pytest.mark.parametrize("sensitivity", [1, 3])
def test_discrete_noise_lies_on_its_own_lattice_at_every_scale(scale: float, sensitivity: int) -> None:
    for event in (ev.DiscreteLaplace(scale, sensitivity), ev.DiscreteGaussian(scale, sensitivity)):
        (pair,) = pairs(event, "add_remove")
        low, high = epsilon_bracket([(pair.law, 3)], 0.05)
        assert high <= low * (1 + 1e-6) + 1e-6


def test_a_composition_that_fits_no_lattice_says_so() -> None:
    with pytest.raises(lattice.TooLarge):
        epsilon_upper([(GaussianLaw(50.0), 10**9)], 1e-5)
