"""Curves known at some orders, and sampling without replacement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import integrate

from dpfed.accounting.sampled_rdp import between, without_replacement


def gaussian_curve(shift: float):
    return lambda orders: orders * shift**2 / 2


def test_interpolation_is_never_below_a_true_curve() -> None:
    known = np.array([1.5, 2.0, 4.0, 16.0])
    for curve in (gaussian_curve(0.7), lambda a: np.log(0.8**a * 0.2 ** (1 - a) + 0.2**a * 0.8 ** (1 - a)) / (a - 1)):
        orders = np.linspace(1.01, 16.0, 200)
        assert np.all(between(orders, known, curve(known)) >= curve(orders) * (1 - 1e-12))
    assert between(known, known, gaussian_curve(0.7)(known)) == pytest.approx(gaussian_curve(0.7)(known))


def test_orders_above_the_largest_known_are_unknown() -> None:
    assert between(np.array([17.0]), np.array([2.0, 16.0]), np.array([1.0, 2.0]))[0] == math.inf


def true_replaced_divergence(shift: float, share: float, order: int) -> float:
    """D_α of (1−γ)N(0) + γN(a) from (1−γ)N(0) + γN(b), a and b opposite: one pair that the bound must cover."""

    def integrand(x: float) -> float:
        p, q = (
            np.logaddexp(math.log1p(-share) - x**2 / 2, math.log(share) - (x - place) ** 2 / 2)
            for place in (shift / 2, -shift / 2)
        )
        return math.exp(order * p + (1 - order) * q) / math.sqrt(2 * math.pi)

    value, _ = integrate.quad(integrand, -12, 12 + order * shift, limit=400, epsabs=0, epsrel=1e-10)
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("shift", [0.2, 1.0])
@pytest.mark.parametrize("share", [0.01, 0.3])
@pytest.mark.parametrize("order", [2, 3, 8])
@pytest.mark.parametrize("knows_chi", [True, False])
def test_the_bound_covers_a_mixture_of_gaussians(shift: float, share: float, order: int, knows_chi: bool) -> None:
    curve = without_replacement([((gaussian_curve(shift),), 1)], share, shift if knows_chi else 0.0)
    (bound,) = curve(np.array([float(order)]))
    assert true_replaced_divergence(shift, share, order) <= bound * (1 + 1e-9)
    assert bound <= gaussian_curve(shift)(order) * (1 + 1e-12)


@pytest.mark.parametrize(("divergence", "share"), [(math.inf, 1e-3), (5e4, 0.5), (1e3, 0.5)])
def test_a_huge_inner_divergence_is_not_cut_off(divergence: float, share: float) -> None:
    curve = without_replacement([((lambda orders: np.full_like(orders, divergence),), 1)], share)
    expected = min(divergence, math.log(2) + divergence + 2 * math.log(share))
    assert curve(np.array([2.0]))[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shift", [0.01, 0.5, 2.0])
def test_even_chi_moments_are_exact_binomial_sums(shift: float) -> None:
    """E_Q(P/Q − 1)^j = Σ_i C(j,i)(−1)^{j−i} e^{i(i−1)a²/2}, in 60 digits; order 4 sums j = 2, 3, 4."""
    mp.dps = 60
    share = mpf("0.01")

    def chi(j: int) -> mpf:
        return mp.fsum(
            mp.binomial(j, i) * (-1) ** (j - i) * mp.exp(i * (i - 1) * mpf(shift) ** 2 / 2) for i in range(j + 1)
        )

    inner = [mp.exp((j - 1) * j * mpf(shift) ** 2 / 2) for j in (2, 3, 4)]
    second = min(4 * (inner[0] - 1), 2 * inner[0], 4 * chi(2))
    terms = [second, min(2 * inner[1], 4 * mp.sqrt(chi(2) * chi(4))), min(2 * inner[2], 4 * chi(4))]
    total = 1 + mp.fsum(mp.binomial(4, j) * share**j * term for j, term in zip((2, 3, 4), terms, strict=True))
    expected = min(float(mp.log(total) / 3), 2 * shift**2)
    (ours,) = without_replacement([((gaussian_curve(shift),), 1)], 0.01, shift)(np.array([4.0]))
    assert ours == pytest.approx(expected, rel=1e-6)


def test_directions_are_summed_apart() -> None:
    rising, falling = (lambda orders: 0.1 * orders), (lambda orders: 0.05 * orders)
    both = without_replacement([((rising, falling), 1), ((falling, rising), 1)], 0.5)(np.array([3.0]))
    one = without_replacement([((lambda orders: 0.15 * orders,), 1)], 0.5)(np.array([3.0]))
    assert both == pytest.approx(one)
