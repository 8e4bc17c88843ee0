"""A commit of one entry says what the longer way would say, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dpfed
from dpfed.errors import AccountUnavailable, BudgetExceeded
from dpfed.events import Gaussian
from dpfed.ledger.fast_commit import PreparedCommit
from dpfed.ledger.items import Item, dump_event
from dpfed.ledger.journal import View, rows
from dpfed.ledger.rows import Head
from dpfed.ledger.rules import AccountState, Terms

EVENT = Gaussian(4.0)
COST = (10**17,)
TERMS = Terms("icu", 8.0, 1e-5, orders=(4.0,))
STATE = AccountState.new(TERMS).after("reserved", 10, COST)
STEP = PreparedCommit(
    Item(2, "icu", "icu", EVENT, dump_event(EVENT), count=10, cost=COST, is_extension=False), "study-12"
)


def view(state: AccountState = STATE, **known: object) -> View:
    return View(Head(7, "ab" * 32), **{"states": {"icu": state}, "left": {2: 10}, "leases": {"study-12": 1}, **known})


def entry(seen: View, terms: Terms = TERMS, count: int = 1):
    return STEP.entry(seen, {"icu": terms}, lease=1, count=count)


def test_an_entry_continues_the_chain_and_moves_the_account():
    row, after = entry(view(), count=3)
    assert (row.seq, row.previous, row.left, row.times) == (8, "ab" * 32, 7, 3)
    assert after == STATE.after("committed", 3, COST)
    assert AccountState.loads(row.state) == after
    assert row.check() is row


@pytest.mark.parametrize(
    "known",
    [{"states": {}}, {"left": {}}, {"left": {2: 0}}, {"leases": {}}, {"leases": {"study-12": 5}}],
    ids=repr,
)
def test_what_is_not_known_or_not_there_gives_no_entry(known):
    assert entry(view(**known)) is None


def test_an_account_whose_terms_are_not_known_gives_no_entry():
    assert STEP.entry(view(), {}, lease=1, count=1) is None


def test_more_than_is_left_gives_no_entry():
    assert entry(view(), count=10) is not None
    assert entry(view(), count=11) is None


def test_a_frozen_an_expired_and_an_overdrawn_account_are_refused():
    with pytest.raises(AccountUnavailable, match="frozen"):
        entry(view(STATE.after("frozen")))
    with pytest.raises(AccountUnavailable, match="expired"):
        entry(view(), replace(TERMS, expires="2020-01-01T00:00:00+00:00"))
    with pytest.raises(BudgetExceeded, match="past its cap"):
        entry(view(STATE.after("recorded", 1, (10**20,))))


@pytest.mark.parametrize("event", [Gaussian(4.0), Gaussian(2.0), None, "Gaussian", 4.0, {}], ids=repr)
def test_a_step_is_of_its_own_event_and_no_other(event):
    assert STEP.is_of(event) is (event == EVENT)
    assert STEP.is_of(event) is (event == EVENT)  # also when it was seen before
    assert STEP.is_of(EVENT)


def test_the_short_way_and_the_longer_one_write_the_same(new_url):
    written = []
    for is_short in (True, False):
        with dpfed.Ledger(new_url()) as ledger:
            ledger.open("icu", epsilon=8.0, delta=1e-5)
            reservation = ledger.reserve({"icu": {EVENT: 10}}, run="study-12")
            for count in (1, 2):
                if not is_short:
                    ledger._store._view = None  # as after somebody else's entry
                reservation.commit({"icu": {EVENT: count}})
            ledger.verify()
            with ledger._store.reading() as link:
                found = [row._replace(at="", body="", previous="", hash="") for row in rows(link)]
        written.append(found)
    assert written[0] == written[1]
