"""Moments of the sampled Gaussian against 25-digit integrals, at real and complex arguments, on all three sides."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpc, mpf

from dpfed.accounting.exact.sampled_gaussian import SampledGaussian, Side, TooManyNodes


@mp.workdps(25)
def true_log_moment(pair: SampledGaussian, s: complex) -> complex:
    """log E_P[e^{sL}] by summing its definition in 25 digits."""
    sigma, q, power = mpf(pair.sigma), mpf(pair.rate), mpc(s)

    def mixture(x: mpf) -> mpf:
        return 1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2))

    def integrand(x: mpf) -> mpc:
        density = mp.npdf(x, 0, sigma)
        if pair.side is Side.PRESENT:
            return density * mp.exp((power + 1) * mp.log(mixture(x)))
        if pair.side is Side.ABSENT:
            return density * mp.exp(-power * mp.log(mixture(x)))
        return density * mp.exp((power + 1) * mp.log(mixture(x)) - power * mp.log(mixture(-x)))

    # The trapezoidal rule converges geometrically; a step this small leaves nothing to see at 25 digits.
    step = min(sigma, sigma**2) / 12
    reach = 12 * sigma + 2 * mp.re(power) + 2
    nodes = int(reach / step)
    return complex(mp.log(step * mp.fsum(integrand(k * step) for k in range(-nodes, nodes + 1))))


CASES = [
    (1.0, 0.01, 3.0),
    (0.5, 0.3, 1.5),
    (4.0, 1e-4, 12.0),
    (0.7, 1 - 1e-12, 2.0),
    (2.0, 0.999, 6.0),
]


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("sigma", "rate", "tilt"), CASES)
def test_real_moments_are_the_integrals_rounded_up(sigma: float, rate: float, tilt: float, side: Side) -> None:
    pair = SampledGaussian(sigma, rate, side)
    true = true_log_moment(pair, tilt).real
    (ours,) = pair.cumulants(np.array([tilt]))
    assert true <= ours <= true + 1e-11


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize(("sigma", "rate", "tilt"), CASES)
def test_complex_moments_are_the_integrals_within_their_error(
    sigma: float, rate: float, tilt: float, side: Side
) -> None:
    pair = SampledGaussian(sigma, rate, side)
    step, count = 0.37 * tilt, 12
    values, error = pair.line(tilt, step, count)
    mass = true_log_moment(pair, tilt)
    for j in (1, 11):
        true = true_log_moment(pair, tilt + 1j * step * j)
        assert abs(np.exp(values[j] - mass) - np.exp(true - mass)) <= error
    assert error < 1e-12


def test_long_lines_carry_no_more_rounding_than_they_say() -> None:
    """Waves are built by multiplication; the last of a thousand is compared with one computed by itself."""
    pair = SampledGaussian(0.6, 1e-4, Side.PRESENT)
    step, count = 0.05, 1000
    values, error = pair.line(4.0, step, count)
    for j in (511, 512, 767, 999):
        (alone, _), _ = pair.line(4.0, step * j, 2), None
        assert abs(np.exp(values[j] - values[0].real) - np.exp(alone[1] - values[0].real)) <= 2 * error


@pytest.mark.parametrize("rate", [1e-6, 0.3, 0.9])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 30.0])
def test_order_two_has_its_closed_form(sigma: float, rate: float) -> None:
    (ours,) = SampledGaussian(sigma, rate, Side.PRESENT).cumulants(np.array([1.0]))
    assert ours == pytest.approx(math.log1p(rate**2 * math.expm1(1 / sigma**2)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("side", Side)
def test_a_hair_less_than_all_is_all(side: Side) -> None:
    tilts = np.array([0.5, 4.0])
    ours = SampledGaussian(1.0, 1 - 2.0**-53, side).cumulants(tilts)
    shift = 2 if side is Side.REPLACED else 1
    assert ours == pytest.approx(shift**2 * tilts * (tilts + 1) / 2, rel=1e-9)


def test_a_quadrature_that_is_not_worth_its_cost_is_refused() -> None:
    with pytest.raises(TooManyNodes):
        SampledGaussian(1e-3, 0.1, Side.PRESENT).cumulants(np.array([100.0]))
    with pytest.raises(TooManyNodes):
        SampledGaussian(5.711, 0.0003341, Side.PRESENT).line(334.0, 38.5, 1049)
