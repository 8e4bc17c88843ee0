"""The ledger's money: whole numbers, costs rounded up, caps down."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.accounting.conversions import rdp_to_epsilon
from dpfed.accounting.filter import divergences, order_caps
from dpfed.ledger import amounts

ORDERS = (2.5, 7.0, 64.0)
WHOLE = st.integers(0, 10**40)


@given(noise=st.floats(1e-3, 1e4), orders=st.sampled_from([(2.5,), ORDERS]), adjacency=st.sampled_from(["add_remove"]))
def test_a_cost_is_never_below_the_divergence_and_at_most_one_unit_above(noise, orders, adjacency):
    event = ev.Gaussian(noise)
    for paid, owed in zip(amounts.cost(event, orders, adjacency), divergences(event, orders, adjacency), strict=True):
        assert owed <= Fraction(paid, 10**18) < owed + Fraction(1, 10**18)


@given(epsilon=st.floats(1e-3, 1e3), delta=st.floats(1e-300, 0.1))
def test_a_cap_is_never_above_what_the_promise_allows_and_at_most_one_unit_below(epsilon, delta):
    for mine, exact in zip(amounts.caps(epsilon, delta, ORDERS), order_caps(epsilon, delta, ORDERS), strict=True):
        assert Fraction(exact) - Fraction(1, 10**18) < Fraction(mine, 10**18) <= Fraction(exact)


@given(epsilon=st.floats(1e-2, 1e2), delta=st.sampled_from([1e-5, 1e-9, 1e-300]), order=st.floats(1.01, 500))
def test_whoever_spends_all_of_a_cap_has_not_passed_its_epsilon(epsilon, delta, order):
    (cap,) = amounts.caps(epsilon, delta, (order,))
    if cap > 0:
        assert amounts.epsilon_of((cap,), delta, (order,)) <= epsilon * (1 + 1e-12)
        assert rdp_to_epsilon(order, cap / 10**18, delta) <= epsilon * (1 + 1e-12)


def test_a_cost_is_that_of_the_accounts_adjacency():
    (added,) = amounts.cost(ev.Gaussian(2.0), (8.0,), "add_remove")
    (replaced,) = amounts.cost(ev.Gaussian(2.0), (8.0,), "replace_one")
    assert replaced == pytest.approx(4 * added, rel=1e-9)


def test_an_event_told_as_repeated_costs_at_most_rounding_less_than_told_twice():
    (once,) = amounts.cost(ev.Gaussian(3.0), (8.0,), "add_remove")
    (twice,) = amounts.cost(ev.Repeated(ev.Gaussian(3.0), 2), (8.0,), "add_remove")
    assert 2 * once - 1 <= twice <= 2 * once


@pytest.mark.parametrize("event", [ev.Unprotected(), ev.ApproximateDP(0.1, 1e-9), ev.PureDP(1e300)])
def test_no_protection_costs_infinity(event):
    assert amounts.cost(event, ORDERS, "add_remove") == (math.inf,) * 3


def test_an_enormous_cost_counts_as_infinite_so_that_sums_never_overflow():
    each = amounts.cost(ev.ZeroConcentratedDP(1e199), (2.0,), "add_remove")
    total = amounts.plus((0,), 2**40, each)
    assert total[0] > 10**200
    assert amounts.plus(total, 1, (math.inf,)) == (math.inf,)
    assert amounts.cost(ev.ZeroConcentratedDP(1e250), (2.0,), "add_remove") == (math.inf,)


def test_an_enormous_cap_can_be_compared_with_an_infinite_cost():
    (cap,) = amounts.caps(1e300, 1e-5, (2.0,))
    assert cap - math.inf == -math.inf
    assert not amounts.fits((math.inf,), (cap,))


@given(start=WHOLE, count=st.integers(1, 2**40), each=WHOLE)
def test_what_is_added_can_be_taken_away_again(start, count, each):
    assert amounts.minus(amounts.plus((start,), count, (each,)), count, (each,)) == (start,)


def test_what_is_infinite_stays_so_when_something_is_taken_away():
    assert amounts.minus((math.inf,), 1, (math.inf,)) == (math.inf,)
    assert amounts.minus((math.inf,), 3, (5,)) == (math.inf,)


@pytest.mark.parametrize(
    "work",
    [lambda a, b: amounts.plus(a, 1, b), lambda a, b: amounts.minus(a, 2, b), amounts.fits],
    ids=["plus", "minus", "fits"],
)
def test_amounts_of_other_orders_are_refused(work):
    for pair in (((1, 2), (1,)), ((1,), (1, 2))):
        with pytest.raises(ValueError, match="amounts"):
            work(*pair)


def test_one_order_within_its_limit_is_enough_and_none_is_not():
    assert amounts.fits((10, 99), (10, 50))
    assert not amounts.fits((11, 51), (10, 50))
    assert not amounts.fits((math.inf, 1), (10, 0))


@given(values=st.lists(WHOLE | st.just(math.inf), min_size=1, max_size=4))
def test_texts_keep_every_digit(values):
    assert amounts.from_texts(amounts.texts(tuple(values))) == tuple(values)


@given(amount=WHOLE)
def test_nats_are_never_below_the_amount(amount):
    assert Fraction(amounts.nats(amount)) >= Fraction(amount, 10**18)


def test_nothing_spent_is_epsilon_zero():
    assert amounts.epsilon_of((0, 0), 1e-5, (2.0, 4.0)) == 0.0
