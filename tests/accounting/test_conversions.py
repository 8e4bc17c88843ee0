from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st

from dpfed.accounting.conversions import (
    best_order,
    bounded_range_to_zcdp,
    epsilon_to_zcdp_cap,
    gaussian_to_epsilon,
    gaussian_to_zcdp,
    pure_to_zcdp,
    rdp_allowance,
    rdp_to_epsilon,
    zcdp_to_epsilon,
    zcdp_to_rdp,
)
from dpfed.errors import InvalidArgument

REFERENCE = Path(__file__).parents[1] / "reference" / "accounting.json"

rhos = st.floats(1e-6, 1e3)
deltas = st.floats(1e-12, 0.1)


def reference(case_id: str) -> dict[str, float]:
    return next(case for case in json.loads(REFERENCE.read_text()) if case["id"] == case_id)


def test_zcdp_converts_as_tightly_as_the_reference():
    case = reference("zcdp_tight")
    epsilon = zcdp_to_epsilon(rho=0.5, delta=1e-6)
    # The reference searched a grid of orders; over all real ones ε is smaller, but not below the exact one.
    assert case["lower"] < epsilon <= case["value"]
    assert epsilon == pytest.approx(5.2215, abs=1e-4)


def test_the_loose_textbook_conversion_is_not_what_is_offered():
    loose = 0.5 + 2 * math.sqrt(0.5 * math.log(1e6))
    assert loose == pytest.approx(5.757, abs=1e-3)
    assert zcdp_to_epsilon(0.5, 1e-6) < loose - 0.5


@given(rho=rhos, delta=deltas)
def test_zcdp_lies_between_the_exact_gaussian_and_a_fine_grid_of_orders(rho, delta):
    epsilon = zcdp_to_epsilon(rho, delta)
    orders = 1 + np.geomspace(1e-3, 1e5, 400)
    grid, _ = rdp_privacy_accountant.compute_epsilon(orders, rho * orders, delta)
    assert gaussian_to_epsilon(math.sqrt(2 * rho), delta) <= epsilon <= max(grid, 1e-12) * (1 + 1e-9)


@given(order=st.floats(1.02, 1e3), divergence=st.floats(0, 100), delta=deltas)
def test_one_order_converts_as_dp_accounting_does_and_not_below(order, divergence, delta):
    ours = rdp_to_epsilon(order, divergence, delta)
    theirs, _ = rdp_privacy_accountant.compute_epsilon([order], [divergence], delta)
    if divergence > 0 and -math.expm1(-divergence) > delta**2:  # below that they use another theorem
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@given(order=st.floats(1.01, 1e3), epsilon=st.floats(0.01, 100), delta=deltas)
def test_the_allowance_of_an_order_converts_back_to_no_more_than_epsilon(order, epsilon, delta):
    allowance = rdp_allowance(order, epsilon, delta)
    if allowance >= 0:
        assert rdp_to_epsilon(order, allowance, delta) <= epsilon
        assert rdp_to_epsilon(order, allowance * (1 + 1e-6) + 1e-6, delta) > epsilon


@given(epsilon=st.floats(0.01, 100), delta=deltas)
def test_a_budget_in_zcdp_keeps_its_promise(epsilon, delta):
    rho = epsilon_to_zcdp_cap(epsilon, delta)
    assert zcdp_to_epsilon(rho, delta) <= epsilon < zcdp_to_epsilon(rho * 1.001 + 1e-9, delta)


@given(rho=rhos, delta=deltas)
def test_the_best_order_is_best(rho, delta):
    order = best_order(rho, delta)
    here = rdp_to_epsilon(order, rho * order, delta)
    for other in (1 + (order - 1) * 0.9, 1 + (order - 1) * 1.1):
        assert here <= rdp_to_epsilon(other, rho * other, delta) + 1e-9


def test_known_sums_of_concentrated_privacy():
    assert pure_to_zcdp(1.0) == 0.5
    assert bounded_range_to_zcdp(1.0) == 0.125
    assert gaussian_to_zcdp(2.0) == 2.0
    assert zcdp_to_rdp(0.5, [2.0, 8.0]) == pytest.approx([1.0, 4.0], rel=1e-14)
    assert pure_to_zcdp(0.1) >= 0.1**2 / 2


def test_without_delta_zcdp_promises_no_epsilon():
    assert zcdp_to_epsilon(0.5, 0.0) == math.inf
    assert zcdp_to_epsilon(0.0, 0.0) == 0.0


@pytest.mark.parametrize("order", [1.0, 0.5, math.inf, math.nan])
def test_an_order_that_is_not_above_one_is_refused(order):
    with pytest.raises(InvalidArgument, match="above 1"):
        rdp_to_epsilon(order, 1.0, 1e-5)
