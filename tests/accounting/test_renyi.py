"""Rényi curves of runs, and what they promise as (ε, δ)."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest

from dpfed import events as ev
from dpfed.accounting.renyi import DEFAULT_ORDERS, delta_from_rdp, epsilon_from_rdp, rdp
from dpfed.errors import InvalidArgument


def test_curves_add_up_and_directions_are_summed_apart() -> None:
    one, other = ev.PoissonSampled(ev.Gaussian(0.7), 0.2), ev.Laplace(2.0)
    orders = [1.5, 4.0, 30.0]
    run = ev.Composed([ev.Repeated(one, 7), other])
    assert rdp(run, orders) == pytest.approx(7 * rdp(one, orders) + rdp(other, orders), rel=1e-9)


@pytest.mark.parametrize("order", [1.01, 2.5, 40.0])
def test_a_sampled_gaussian_is_charged_its_dearer_direction(order: float) -> None:
    release = oracle.gaussian(1.0, top=order + 2).sampled(0.3)
    both = [r.log_moment(np.array([order - 1]))[0].real / (order - 1) for r in (release, release.mirrored())]
    (ours,) = rdp(ev.PoissonSampled(ev.Gaussian(1.0), 0.3), [order])
    assert max(both) * (1 - 1e-10) <= ours <= max(both) * (1 + 1e-6)


@pytest.mark.parametrize("delta", [1e-300, 1e-10, 1e-5, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 10.0])
def test_the_promise_of_a_gaussian_curve_covers_its_exact_epsilon(mu: float, delta: float) -> None:
    promised = epsilon_from_rdp(DEFAULT_ORDERS, DEFAULT_ORDERS * mu**2 / 2, delta)
    assert oracle.gaussian_delta(mu, promised) <= delta * (1 + 1e-9) + 1e-16


@pytest.mark.parametrize("delta", [1e-4, 0.01, 0.3])
def test_a_divergence_is_free_only_where_total_variation_is_below_delta(delta: float) -> None:
    """Bretagnolle and Huber: TV² ≤ 1 − e^{−KL}. A coin that costs nothing must really have TV ≤ δ."""
    orders = DEFAULT_ORDERS[DEFAULT_ORDERS < 64]
    for variation in np.linspace(0.2, 3, 30) * delta:
        p, q = 0.5 + variation / 2, 0.5 - variation / 2
        curve = np.log(p**orders * q ** (1 - orders) + q**orders * p ** (1 - orders)) / (orders - 1)
        assert epsilon_from_rdp(orders, curve, delta) > 0 or variation <= delta


def test_epsilon_and_delta_are_inverse() -> None:
    curve = 0.02 * DEFAULT_ORDERS
    for delta in (1e-9, 1e-5, 1e-2):
        epsilon = epsilon_from_rdp(DEFAULT_ORDERS, curve, delta)
        assert delta_from_rdp(DEFAULT_ORDERS, curve, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("rho", [1e-12, 1e-6, 1e-3, 0.1])
def test_where_epsilon_is_nothing_delta_is_total_variation_and_covers_the_true_one(rho: float) -> None:
    curve = rho * DEFAULT_ORDERS
    free = delta_from_rdp(DEFAULT_ORDERS, curve, 0.0)
    assert epsilon_from_rdp(DEFAULT_ORDERS, curve, free * 1.01) == 0.0
    assert oracle.gaussian_delta(math.sqrt(2 * rho), 0.0) <= free <= 1.01 * math.sqrt(1.01 * rho)


def test_the_known_promise_of_concentrated_privacy() -> None:
    assert epsilon_from_rdp(DEFAULT_ORDERS, 0.5 * DEFAULT_ORDERS, 1e-6) == pytest.approx(5.2215, abs=1e-3)


def test_the_ends() -> None:
    assert epsilon_from_rdp([2.0], [0.1], 0.0) == math.inf
    assert epsilon_from_rdp([2.0, 3.0], [math.inf, math.inf], 1e-5) == math.inf
    assert epsilon_from_rdp([2.0, 3.0], [0.0, 0.0], 1e-5) == 0.0
    assert delta_from_rdp([2.0], [math.inf], 1.0) == 1.0


@pytest.mark.parametrize("orders", [[], [1.0], [0.5, 2.0], [math.nan], [math.inf], [[2.0, 3.0]]])
def test_orders_must_be_finite_and_above_one(orders: list[float]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        rdp(ev.Gaussian(1.0), orders)
    assert caught.value.argument == "orders"
