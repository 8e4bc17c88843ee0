"""What answers cost on the counts at hand: the published values, and never more than the worst case."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument
from dpfed.pate.vote.renyi_bounds import (
    gnmax_log_flip,
    gnmax_rdp,
    lnmax_log_flip,
    lnmax_rdp,
    rdp_from_log_flip,
    threshold_log_answered,
    threshold_rdp,
)

CASES = json.loads((Path(__file__).parents[2] / "reference" / "pate.json").read_text(encoding="utf-8"))
ORDERS = np.array([1.5, 2.0, 3.0, 8.0, 32.0])
COUNTS = st.lists(st.integers(0, 300), min_size=2, max_size=10).filter(any)


def cases(group):
    found = [case for case in CASES if case["group"] == group]
    assert found
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def near(case, key=None):
    assert case["tol_kind"] == "rel"
    return pytest.approx(case["expected"] if key is None else case["expected"][key], rel=case["tol"], abs=0)


@cases("pate_gnmax_rdp")
def test_gnmax_costs_what_is_published(case):
    counts, sigma, order = (case["inputs"][name] for name in ("counts", "sigma", "order"))
    assert gnmax_log_flip(counts, sigma) == near(case, "logq")
    assert gnmax_rdp(counts, sigma, order) == near(case, "rdp")


@cases("pate_rdp_from_logq")
def test_a_chance_of_a_flip_costs_what_is_published(case):
    assert rdp_from_log_flip(case["inputs"]["logq"], case["inputs"]["sigma"], case["inputs"]["order"]) == near(case)


@cases("pate_threshold_rdp")
def test_a_threshold_costs_what_is_published(case):
    counts, threshold, sigma = (case["inputs"][name] for name in ("counts", "T", "sigma1"))
    assert threshold_log_answered(counts, threshold, sigma) == near(case, "logpr")
    assert threshold_rdp(counts, threshold, sigma, case["inputs"]["order"]) == near(case, "rdp")


@cases("pate_lnmax_rdp")
def test_laplace_votes_cost_what_is_published(case):
    counts, scale = case["inputs"]["counts"], case["inputs"]["lam"]
    assert lnmax_log_flip(counts, scale) == near(case, "logq")
    assert lnmax_rdp(counts, scale, case["inputs"]["order"]) == near(case, "rdp")


@cases("report_noisy_max_laplace")
def test_two_classes_flip_with_the_published_chance(case):
    gap = int(case["inputs"]["gap"])
    assert math.exp(lnmax_log_flip([gap, 0], case["inputs"]["b"])) == near(case)


@cases("pate_total_eps")
def test_a_hundred_queries_cost_what_is_published(case):
    """90 × [245, 5, 0…] and 10 × [150, 90, 10, 0…] at σ = 40, δ = 1e-5, by the older conversion."""
    orders = np.concatenate([np.arange(2, 100.5, 0.5), np.logspace(2, 3, 50)])
    agreed, split = [245, 5] + [0] * 8, [150, 90, 10] + [0] * 7
    total = 90 * gnmax_rdp(agreed, 40.0, orders) + 10 * gnmax_rdp(split, 40.0, orders)
    assert (total - math.log(1e-5) / (orders - 1)).min() == near(case)


@given(COUNTS, st.floats(0.5, 200))
def test_no_counts_cost_more_than_the_worst_case(counts, sigma):
    assert (gnmax_rdp(counts, sigma, ORDERS) <= ORDERS / sigma**2).all()
    assert (gnmax_rdp(counts, sigma, ORDERS) >= 0).all()
    assert (lnmax_rdp(counts, sigma, ORDERS) <= np.minimum(2 / sigma, 2 * ORDERS / sigma**2) * (1 + 1e-12)).all()
    assert (threshold_rdp(counts, 100.0, sigma, ORDERS) <= ORDERS / (2 * sigma**2) * (1 + 1e-12)).all()


@given(st.integers(2, 9), st.floats(2, 50))
def test_the_more_teachers_agree_the_less_it_costs(classes, sigma):
    costs = [gnmax_rdp([100 + lead, *[100] * (classes - 1)], sigma, 3.0) for lead in range(0, 400, 10)]
    assert (np.diff(costs) <= 1e-12).all()


def test_one_order_gives_one_number_and_several_an_array():
    assert np.ndim(gnmax_rdp([9, 1], 2.0, 2.0)) == 0
    assert gnmax_rdp([9, 1], 2.0, [2.0, 3.0]).shape == (2,)


def test_a_class_that_cannot_lose_costs_nothing():
    assert rdp_from_log_flip(-math.inf, 10.0, 2.0) == 0
    assert threshold_rdp([10**6, 0], 0, 1.0, 2.0) == 0


@pytest.mark.parametrize("orders", [1.0, [2.0, 0.5], [], [math.inf], [[2.0]]])
def test_orders_that_are_none_are_refused(orders):
    with pytest.raises(InvalidArgument, match="orders"):
        gnmax_rdp([9, 1], 2.0, orders)


@pytest.mark.parametrize("counts", [[5], [1.5, 2], [-1, 2], [[1, 2]], ["a", "b"]])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(InvalidArgument, match="counts"):
        gnmax_rdp(counts, 2.0, 2.0)


def test_a_chance_of_one_or_more_is_refused():
    with pytest.raises(InvalidArgument, match="chance below 1"):
        rdp_from_log_flip(0.0, 1.0, 2.0)
