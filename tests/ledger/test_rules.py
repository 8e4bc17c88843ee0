"""How each kind of entry moves an account."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.ledger.rules import KINDS, AccountState, Terms

TERMS = Terms("icu", epsilon=8.0, delta=1e-5, orders=(4.0, 9.0), labels={"basis": "consent"}, overlaps=("ward",))
COST = (125, 7)
NEW = AccountState.new(TERMS)


def test_a_new_account_has_spent_nothing_and_holds_nothing():
    assert NEW.is_fresh
    assert (NEW.spent, NEW.held, NEW.cap) == ((0, 0), (0, 0), 8.0)


def test_what_is_reserved_counts_as_much_as_what_is_spent():
    state = NEW.after("reserved", 3, COST)
    assert state.total == (375, 21)
    assert state.spent == (0, 0)
    assert not state.is_fresh


def test_a_commit_moves_from_held_to_spent_and_changes_no_total():
    before = NEW.after("reserved", 3, COST)
    after = before.after("committed", 2, COST)
    assert (after.spent, after.held) == ((250, 14), (125, 7))
    assert after.total == before.total
    assert (after.charged, after.pending) == (2, 1)


def test_a_release_returns_what_is_held_and_never_what_is_spent():
    state = NEW.after("reserved", 3, COST).after("committed", 1, COST).after("released", 2, COST)
    assert (state.spent, state.held) == (COST, (0, 0))
    assert not state.is_fresh


@pytest.mark.parametrize("kind", ["carried", "recorded"])
def test_what_happened_outside_is_spent_at_once(kind):
    state = NEW.after(kind, 4, COST)
    assert (state.spent, state.charged, state.held) == ((500, 28), 4, (0, 0))


def test_an_exact_plan_is_forgotten_only_if_nothing_of_it_was_committed():
    planned = NEW.after("reserved", 3, COST, {"plan": 7.5})
    assert planned.plan == 7.5
    assert planned.after("released", 3, COST).plan is None
    assert planned.after("released", 2, COST).plan == 7.5
    assert planned.after("committed", 1, COST).after("released", 2, COST).plan == 7.5


@pytest.mark.parametrize("kind", ["carried", "recorded"])
def test_a_charge_beside_an_exact_plan_leaves_an_account_of_the_filter_that_is_closed_for_good(kind):
    state = NEW.after("reserved", 3, COST, {"plan": 7.5}).after(kind, 1, COST)
    assert (state.plan, state.closed) == (None, True)
    assert state.total == (500, 28)
    assert state.after("released", 3, COST).closed


def test_an_infinite_reservation_is_gone_when_nothing_is_held_any_more():
    state = NEW.after("reserved", 1, (math.inf, 5)).after("reserved", 2, COST)
    assert state.held[0] == math.inf
    part = state.after("released", 1, (math.inf, 5))
    assert part.held == (math.inf, 14)  # what ∞ hid is not known: kept on the safe side
    assert part.after("released", 2, COST).held == (0, 0)


def test_an_infinite_commit_is_infinite_for_ever():
    state = NEW.after("reserved", 2, (math.inf, 5)).after("committed", 1, (math.inf, 5)).after("released", 1, COST)
    assert state.spent == (math.inf, 5)


def test_freezing_and_topping_up_change_no_amount():
    state = NEW.after("reserved", 3, COST)
    frozen = state.after("frozen")
    assert frozen.frozen
    assert frozen.total == state.total
    assert frozen.after("unfrozen") == state
    assert state.after("topped_up", body={"epsilon": 2.0}).cap == 10.0


@pytest.mark.parametrize("kind", ["opened", "leased", "refused"])
def test_entries_that_charge_nothing_change_nothing(kind):
    state = NEW.after("reserved", 3, COST)
    assert state.after(kind, 5, COST) == state


steps = st.lists(
    st.tuples(st.sampled_from(["reserved", "recorded", "carried"]), st.integers(1, 9), st.integers(0, 10**30)),
    max_size=6,
)


@given(moves=steps, frozen=st.booleans(), plan=st.none() | st.floats(0.1, 9))
def test_a_state_is_read_back_as_it_was_written(moves, frozen, plan):
    state = NEW.after("reserved", 1, (math.inf, 3), {"plan": plan}).after("frozen" if frozen else "unfrozen")
    for kind, count, cost in moves:
        state = state.after(kind, count, (cost, 2 * cost))
    assert AccountState.loads(state.dumps()) == state
    assert AccountState.loads(state.dumps()).dumps() == state.dumps()


def test_terms_are_read_back_as_they_were_written():
    assert Terms.from_dict(TERMS.to_dict(), TERMS.opened) == TERMS


def test_every_kind_of_entry_has_one_name():
    assert len(set(KINDS)) == len(KINDS)
