"""What an account says to a plan: by the filter, by the exact ε of a first plan, and what it offers instead."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter
from dpfed.accounting.queries import epsilon as exact_epsilon
from dpfed.ledger import admission, amounts
from dpfed.ledger.admission import judge
from dpfed.ledger.rules import AccountState, Terms

STEP = ev.Gaussian(4.0)
TERMS = Terms("icu", epsilon=8.0, delta=1e-5, orders=RenyiFilter(8.0, 1e-5).orders)
FRESH = AccountState.new(TERMS)
USED = FRESH.after("recorded", 1, TERMS.cost(ev.Gaussian(40.0)))


def most(state=FRESH, terms=TERMS, fixed_plan=False, event=STEP):
    """The largest admitted count, counted up one by one."""
    count = 0
    while judge(terms, state, {event: count + 1}, fixed_plan=fixed_plan).is_admitted:
        count += 1
    return count


def test_the_filter_admits_exactly_what_the_accountants_filter_admits():
    budget = RenyiFilter(8.0, 1e-5)
    assert most() == budget.affordable(STEP)
    assert budget.admits(STEP, most())
    assert not budget.admits(STEP, most() + 1)


def test_a_first_fixed_plan_is_admitted_up_to_its_exact_epsilon():
    count = most(fixed_plan=True)
    assert count > most()
    assert exact_epsilon(ev.Repeated(STEP, count), 1e-5) <= 8.0 < exact_epsilon(ev.Repeated(STEP, count + 1), 1e-5)


def test_the_filter_is_asked_first_so_that_an_account_is_not_closed_without_need():
    assert judge(TERMS, FRESH, {STEP: most()}, fixed_plan=True).plan is None
    verdict = judge(TERMS, FRESH, {STEP: most() + 1}, fixed_plan=True)
    assert verdict.plan == pytest.approx(exact_epsilon(ev.Repeated(STEP, most() + 1), 1e-5))


@pytest.mark.parametrize(
    "state",
    [
        USED,
        FRESH.after("reserved", 1, TERMS.cost(ev.Gaussian(40.0))),
        FRESH.after("carried", 1, TERMS.cost(ev.Gaussian(40.0))),
    ],
)
def test_only_an_account_without_any_charge_admits_by_the_exact_epsilon(state):
    wanted = {STEP: most(state) + 1}
    assert not judge(TERMS, state, wanted, fixed_plan=True).is_admitted
    assert judge(TERMS, FRESH, wanted, fixed_plan=True).is_admitted


def test_a_plan_that_may_grow_is_never_admitted_by_its_exact_epsilon():
    wanted = {STEP: RenyiFilter(8.0, 1e-5).affordable(STEP) + 1}
    assert judge(TERMS, FRESH, wanted, fixed_plan=True).is_admitted
    assert not judge(TERMS, FRESH, wanted, fixed_plan=False).is_admitted


def test_an_account_with_an_exact_plan_admits_nothing_more_however_large_its_cap():
    planned = FRESH.after("reserved", 1, TERMS.cost(STEP), {"plan": 0.1}).after("topped_up", body={"epsilon": 50.0})
    closed = planned.after("recorded", 1, TERMS.cost(STEP))
    for state in (planned, closed):
        assert not judge(TERMS, state, {ev.Gaussian(100.0): 1}, fixed_plan=True).is_admitted
        assert admission.affordable(TERMS, state, ev.Gaussian(100.0)) == 0


@pytest.mark.parametrize("state", [FRESH, USED, FRESH.after("reserved", 7, TERMS.cost(STEP))])
@pytest.mark.parametrize("event", [STEP, ev.Laplace(8.0), ev.Composed([STEP, ev.Repeated(ev.Gaussian(9.0), 2)])])
def test_affordable_is_what_is_admitted(state, event):
    count = admission.affordable(TERMS, state, event)
    assert count == most(state, event=event)


def test_with_several_orders_one_that_fits_is_enough_and_each_has_its_share_of_delta():
    orders = (2.0, 8.0, 32.0)
    terms = Terms("icu", epsilon=8.0, delta=1e-5, orders=orders)
    budget = RenyiFilter(8.0, 1e-5, orders)
    for event in (STEP, ev.Gaussian(30.0), ev.PureDP(0.5), ev.RenyiDP((8.0,), (0.1,))):
        count = admission.affordable(terms, AccountState.new(terms), event)
        assert count == budget.affordable(event)
        assert judge(terms, AccountState.new(terms), {event: count}, fixed_plan=False).is_admitted
        assert not judge(terms, AccountState.new(terms), {event: count + 1}, fixed_plan=False).is_admitted


@pytest.mark.parametrize(
    "event",
    [
        ev.Unprotected(),
        ev.ApproximateDP(1.0, 1e-2),
        ev.Gaussian(1e-9),
        ev.Laplace(1e-9),
        ev.PureDP(1e300),
        ev.RenyiDP((2.0,), (1.0,)),
        ev.Repeated(ev.Laplace(4.0), 2**62),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_no_account_could_afford_is_refused_in_words(event):
    verdict = judge(TERMS, FRESH, {event: 1}, fixed_plan=True)
    assert not verdict.is_admitted
    assert "no part of this plan fits" in verdict.refusal() or "noise multiplier" in verdict.refusal()


def test_a_delta_within_the_accounts_is_admitted_by_the_exact_epsilon_only():
    event = ev.ApproximateDP(1.0, 1e-6)
    assert not judge(TERMS, FRESH, {event: 1}, fixed_plan=False).is_admitted
    verdict = judge(TERMS, FRESH, {event: 1}, fixed_plan=True)
    assert verdict.plan == pytest.approx(1.0, rel=1e-3)
    assert not judge(TERMS, FRESH, {event: 11}, fixed_plan=True).is_admitted


@st.composite
def refusals(draw):
    noise = draw(st.floats(0.5, 30.0))
    one = draw(st.sampled_from([ev.Gaussian(noise), ev.PoissonSampled(ev.Gaussian(noise), 1.0), ev.Laplace(noise)]))
    used = FRESH.after("recorded", draw(st.integers(1, 40)), TERMS.cost(ev.Gaussian(8.0)))
    count = draw(st.integers(1, 500))
    verdict = judge(TERMS, used, {one: count}, fixed_plan=draw(st.booleans()))
    return verdict, one, count


def scaled(event: ev.Event, noise: float) -> ev.Event:
    inner = ev.PoissonSampled(ev.Gaussian(noise), 1.0)
    return inner if isinstance(event, ev.PoissonSampled) else type(event)(noise)


@given(case=refusals())
def test_what_is_offered_is_really_admitted_and_hardly_more_would_be(case):
    verdict, event, count = case
    if verdict.is_admitted:
        return
    text = verdict.refusal()
    fewer, noisier = re.search(r"(\d+) of (\d+) would fit", text), re.search(r"noise multiplier ([0-9.e+]+)", text)
    if fewer:
        offered = int(fewer[1])
        assert int(fewer[2]) == count
        assert judge(TERMS, verdict.state, {event: offered}, fixed_plan=verdict.fixed_plan).is_admitted
        assert not judge(TERMS, verdict.state, {event: offered + 1}, fixed_plan=verdict.fixed_plan).is_admitted
    else:
        assert not judge(TERMS, verdict.state, {event: 1}, fixed_plan=verdict.fixed_plan).is_admitted
    assert noisier
    noise = float(noisier[1])
    fixed = verdict.fixed_plan
    assert judge(TERMS, verdict.state, {scaled(event, noise): count}, fixed_plan=fixed).is_admitted
    assert not judge(TERMS, verdict.state, {scaled(event, noise * 0.997): count}, fixed_plan=fixed).is_admitted


def test_a_mixed_plan_is_offered_in_whole_rounds():
    verdict = judge(TERMS, USED, {STEP: 100, ev.Gaussian(8.0): 50}, fixed_plan=True)
    rounds = int(re.search(r"(\d+) of 50 would fit", verdict.refusal())[1])
    fits = judge(TERMS, USED, {STEP: 2 * rounds, ev.Gaussian(8.0): rounds}, fixed_plan=True)
    more = judge(TERMS, USED, {STEP: 2 * rounds + 2, ev.Gaussian(8.0): rounds + 1}, fixed_plan=True)
    assert (fits.is_admitted, more.is_admitted) == (True, False)
    assert "noise multiplier" not in verdict.refusal()


def test_a_refusal_says_what_was_asked_what_remains_and_what_to_do():
    text = judge(TERMS, FRESH, {STEP: 100}, fixed_plan=True).refusal()
    assert text.startswith("reserving 100 × Gaussian(noise_multiplier=4.0) would take icu to ε = ")
    assert "of 8; 8 remains" in text
    assert text.endswith("or ask the owner for a top-up")


def test_what_remains_is_rounded_down_and_what_it_would_take_is_rounded_up():
    state = FRESH.after("recorded", 3, TERMS.cost(STEP))
    text = judge(TERMS, state, {STEP: 100}, fixed_plan=True).refusal()
    spent = amounts.epsilon_of(state.total, TERMS.delta, TERMS.orders)
    after = amounts.epsilon_of(state.after("recorded", 100, TERMS.cost(STEP)).total, TERMS.delta, TERMS.orders)
    assert float(re.search(r"; ([0-9.]+) remains", text)[1]) <= 8.0 - spent
    assert float(re.search(r"ε = ([0-9.]+) of", text)[1]) >= after


def test_a_free_event_fits_as_often_as_can_be_counted():
    free = ev.RenyiDP((2.0, 4.0, 64.0), (0.0, 0.0, 0.0))
    assert admission.affordable(TERMS, FRESH, free) == 2**40
    assert admission.affordable(TERMS, FRESH, ev.Unprotected()) == 0


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 1e3])
@pytest.mark.parametrize("delta", [1e-300, 1e-5, 0.5])
def test_tiny_and_huge_promises_are_kept(epsilon, delta):
    terms = Terms("icu", epsilon=epsilon, delta=delta, orders=RenyiFilter(epsilon, delta).orders)
    event = ev.ZeroConcentratedDP(terms.caps(epsilon)[0] / 10**18 / terms.orders[0] / 7.5)
    count = admission.affordable(terms, AccountState.new(terms), event)
    spent = AccountState.new(terms).after("recorded", count, terms.cost(event)).spent
    assert count == 7
    assert amounts.epsilon_of(spent, delta, terms.orders) <= epsilon * (1 + 1e-9)
    assert not judge(terms, AccountState.new(terms), {event: count + 1}, fixed_plan=False).is_admitted


def test_an_accountant_without_an_answer_admits_nothing():
    unanswerable = ev.PoissonSampled(ev.ZeroConcentratedDP(1.0), 0.5)
    assert admission.plan_or_infinity(unanswerable, TERMS) == math.inf
