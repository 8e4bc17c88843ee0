"""The Gaussian curve against 40 digits, each answer on its safe side."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpfed.accounting.closed_forms import gaussian_delta, gaussian_delta_lower, gaussian_epsilon, gaussian_mu

MUS = [1e-4, 0.02, 1.0, 7.0, 200.0]
DELTAS = [1e-300, 1e-15, 1e-5, 0.3]


@mp.workdps(40)
def true_delta(mu: float, epsilon: float) -> mpf:
    m, e = mpf(mu), mpf(epsilon)
    upper, lower = m / 2 - e / m, -m / 2 - e / m
    return (mp.erfc(-upper / mp.sqrt(2)) - mp.exp(e) * mp.erfc(-lower / mp.sqrt(2))) / 2


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 4.0])
def test_delta_is_the_truth_rounded_up(mu: float, share: float) -> None:
    epsilon = mu**2 / 2 + share * mu
    true = true_delta(mu, epsilon)
    assert gaussian_delta_lower(mu, epsilon) <= true * (1 + mpf(10) ** -14)
    assert gaussian_delta(mu, epsilon) >= true * (1 - mpf(10) ** -12)
    assert gaussian_delta(mu, epsilon) <= true * (1 + mpf(10) ** -8)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_the_root(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert true_delta(mu, epsilon) <= mpf(delta) * (1 + mpf(10) ** -10)
    assert epsilon == 0 or true_delta(mu, epsilon * (1 - 1e-9) - 1e-12) > delta


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
def test_mu_is_the_largest_that_fits(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert true_delta(mu * (1 + 1e-9), epsilon) > delta


def test_known_calibrations() -> None:
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-4)
    assert 1 / gaussian_mu(8.0, 1e-5) == pytest.approx(0.60023, abs=1e-5)


def test_the_ends() -> None:
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_mu(1.0, 0.0) == 0.0
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_delta(1e6, 1.0) == 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-15, 1e-5), (0.0, 1e-5), (1e-300, 1e-10), (0.0, 1e-280), (700.0, 0.9)]
)
def test_the_largest_mu_is_found_where_epsilon_is_nothing_beside_delta(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(1.00001 * mu, epsilon)


@given(st.floats(1e-4, 300.0), st.floats(1e-15, 0.9))
@example(0.004049028302956464, 0.0002253494825795565)  # here the logs of two different δ round to the same number
def test_what_is_returned_has_itself_been_found_private_enough(mu: float, delta: float) -> None:
    assert gaussian_delta(mu, gaussian_epsilon(mu, delta)) <= delta
