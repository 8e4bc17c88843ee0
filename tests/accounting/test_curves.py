"""Curves known at some orders, and sampling without replacement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp import RdpAccountant
from mpmath import mp, mpf
from scipy import integrate
from scipy.special import logsumexp

from dpfed.accounting.curves import _log_even_chi, between, without_replacement
from dpfed.accounting.renyi import rdp
from dpfed.events import Gaussian, SampledWithoutReplacement


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
@mp.workdps(60)
def test_even_chi_moments_are_exact_binomial_sums(shift: float) -> None:
    """E_Q(P/Q − 1)^j = Σ_i C(j,i)(−1)^{j−i} e^{i(i−1)a²/2}, in 60 digits; order 4 sums j = 2, 3, 4."""
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


@pytest.mark.parametrize("shift", [3e-4, 0.01, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("power", [2, 10, 100, 200])
@mp.workdps(1000)
def test_a_chi_moment_is_its_binomial_sum_however_small_the_shift(shift: float, power: int) -> None:
    """The peaks of a high moment lie √j from the middle, far beyond what a small shift reaches."""
    square = mpf(shift) ** 2
    exact = mp.log(
        mp.fsum(
            mp.binomial(power, i) * (-1) ** (power - i) * mp.exp(i * (i - 1) * square / 2) for i in range(power + 1)
        )
    )
    assert _log_even_chi(shift, np.array([power]))[0] == pytest.approx(float(exact), rel=1e-13, abs=1e-11)


def one_by_one(curve, share: float, shift: float, order: float) -> float:
    """The theorem at one order by plain sums over j, with one quadrature of the whole line for each even moment."""
    log_chi = {}
    for j in range(2, math.ceil(order) + 2, 2):
        reach = shift * j + 12 + math.sqrt(j)
        x = np.arange(-reach, reach, 0.02)
        with np.errstate(divide="ignore"):
            log_excess = np.log(np.abs(np.expm1(shift * x - shift**2 / 2)))
        log_chi[j] = logsumexp(j * log_excess - x**2 / 2) + math.log(0.02 / math.sqrt(2 * math.pi))

    def term(j: int) -> float:
        chi = (log_chi[j - j % 2] + log_chi[j + j % 2]) / 2
        plain = math.log(2) + (j - 1) * curve(j)
        return min(plain, math.log(4) + chi, math.log(4 * math.expm1(curve(2))) if j == 2 else math.inf)

    def at(whole: int) -> float:
        if whole == 1:
            return 0.0
        terms = [math.log(math.comb(whole, j)) + j * math.log(share) + term(j) for j in range(2, whole + 1)]
        return min(np.logaddexp(0, logsumexp(terms)) / (whole - 1), curve(whole)) * (whole - 1)

    low = math.floor(order)
    return (at(low) + (order - low) * (at(math.ceil(order)) - at(low))) / (order - 1)


@pytest.mark.parametrize(("shift", "share"), [(0.02, 0.5), (0.4, 0.01), (0.86, 0.1), (2.0, 0.3)])
def test_all_orders_at_once_give_what_each_gives_by_plain_sums(shift: float, share: float) -> None:
    orders = np.array([1.1, 1.9, 2.0, 2.5, 3.0, 17.3, 40.0, 97.25])
    ours = without_replacement([((gaussian_curve(shift),), 1)], share, shift)(orders)
    slow = [one_by_one(gaussian_curve(shift), share, shift, order) for order in orders]
    np.testing.assert_allclose(ours, slow, rtol=2e-9)
    assert np.all(ours >= np.array(slow) * (1 - 1e-13))


@pytest.mark.parametrize(("noise", "size", "population"), [(2.0, 10, 100), (6.0, 30, 60), (1.0, 1, 1000)])
def test_dp_accounting_agrees(noise: float, size: int, population: int) -> None:
    orders = [2, 3, 8, 32, 128]
    theirs = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
    # Their noise is over the distance of neighbours, which replacing doubles.
    theirs.compose(SampledWithoutReplacementDpEvent(population, size, GaussianDpEvent(noise / 2)))
    event = SampledWithoutReplacement(Gaussian(noise), size, population)
    unsampled = 2 * np.array(orders) / noise**2  # a bound too, which they do not use
    expected = np.minimum(theirs._rdp, unsampled)
    np.testing.assert_allclose(rdp(event, orders, adjacency="replace_one"), expected, rtol=1e-6)
