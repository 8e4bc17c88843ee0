"""What a person sees: balances, statements, open reservations."""

from __future__ import annotations

import os
from datetime import datetime

import pytest

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter, filter_epsilon
from dpfed.accounting.queries import epsilon as exact_epsilon

STEP = ev.Gaussian(8.0)
OTHER = ev.Laplace(20.0)
PROMISE = {"epsilon": 8.0, "delta": 1e-5}
MOST = RenyiFilter(8.0, 1e-5).affordable(STEP)


@pytest.fixture
def ledger(sqlite_url):
    with dpfed.Ledger(sqlite_url) as opened:
        opened.open("icu", **PROMISE, purpose="study 12")
        yield opened


def by_filter(count, event=STEP):
    budget = RenyiFilter(8.0, 1e-5)
    budget.record(event, count)
    return filter_epsilon(budget.spent, 1e-5, budget.orders)


def test_a_new_account_has_all_of_its_cap_left(ledger):
    balance = ledger.balance("icu")
    assert (balance.spent, balance.reserved, balance.remaining, balance.share) == (0.0, 0.0, 8.0, 0.0)
    assert (balance.status, balance.mode, balance.entries, balance.is_overspent) == ("open", "filter", 1, False)
    assert (balance.cap.epsilon, balance.cap.delta, balance.cap.unit) == (8.0, 1e-5, "record")


def test_spent_reserved_and_remaining_add_up_to_the_cap(ledger):
    held = ledger.reserve({"icu": {STEP: 20}}, run="r")
    for done in range(5):
        balance = ledger.balance("icu")
        assert balance.spent == pytest.approx(by_filter(done) if done else 0.0)
        assert balance.spent + balance.reserved == pytest.approx(by_filter(20))
        assert balance.spent + balance.reserved + balance.remaining == pytest.approx(8.0, rel=1e-15)
        held.commit({"icu": STEP})


def test_the_share_grows_evenly(ledger):
    held = ledger.reserve({"icu": {STEP: 20}}, run="r")
    assert ledger.balance("icu").share == pytest.approx(20 * by_share())
    held.release()
    ledger.record({"icu": {STEP: 2 * MOST}}, reason="x")
    assert ledger.balance("icu").share == pytest.approx(2 * MOST * by_share())
    assert ledger.balance("icu").is_overspent
    assert ledger.balance("icu").remaining == 0


def by_share():
    budget = RenyiFilter(8.0, 1e-5)
    budget.record(STEP)
    return budget.spent[0] / budget.caps[0]


def test_whoever_spends_all_that_fits_is_not_called_overspent(ledger):
    # The accountant rounds divergences up, so the very last float may not fit: some event within 10⁻⁹ of the cap does.
    order, cap = ledger.balance("icu").account.orders[0], RenyiFilter(8.0, 1e-5).caps[0]
    sizes = [cap * (1 - 2.0**-digits) for digits in range(53, 30, -1)]
    last = next(each for each in (ev.RenyiDP((order,), (size,)) for size in sizes) if ledger.forecast("icu", each))
    ledger.reserve({"icu": last}, run="r", fixed_plan=False).commit({"icu": last})
    balance = ledger.balance("icu")
    assert not balance.is_overspent
    assert balance.remaining == pytest.approx(0.0, abs=1e-9)


def test_a_top_up_raises_the_cap(ledger):
    ledger.top_up("icu", epsilon=2.0, reason="second year")
    balance = ledger.balance("icu")
    assert (balance.cap.epsilon, balance.remaining, balance.account.epsilon) == (10.0, 10.0, 8.0)


def test_accounts_are_shown_in_the_order_they_were_opened(ledger):
    for name in ("zoo", "bed", "ant"):
        ledger.open(name, **PROMISE)
    assert [balance.account.name for balance in ledger.accounts()] == ["icu", "zoo", "bed", "ant"]
    assert ledger.accounts()[0] == ledger.balance("icu")


def test_a_statement_has_every_entry_and_equal_commits_on_one_line(ledger):
    held = ledger.reserve({"icu": {STEP: 10, OTHER: 1}}, run="r")
    for _ in range(3):
        held.commit({"icu": STEP})
    held.commit({"icu": OTHER})
    held.commit({"icu": {STEP: 2}})
    ledger.top_up("icu", epsilon=1.0, reason="more")
    ledger.record({"icu": STEP}, run="old", reason="found in a drawer")
    held.release(reason="done")
    statement = ledger.statement("icu")
    shown = [(line.kind, line.count, line.event) for line in statement.lines]
    assert shown == [
        ("opened", None, None),
        ("reserved", 10, STEP),
        ("reserved", 1, OTHER),
        ("committed", 1, OTHER),
        ("committed", 5, STEP),
        ("topped_up", None, None),
        ("recorded", 1, STEP),
        ("released", 5, STEP),
    ]
    assert [(line.first, line.last) for line in statement.lines[3:5]] == [(8, 8), (5, 9)]
    assert [line.note for line in statement.lines if line.note] == [
        "study 12",
        "+ε 1: more",
        "found in a drawer",
        "done",
    ]
    last, balance = statement.lines[-1], statement.balance
    assert (last.spent, last.reserved, last.remaining) == (balance.spent, balance.reserved, balance.remaining)
    assert statement.head == ledger.head()
    assert statement.seen_whole_by == ("icu",)


def test_the_exact_epsilon_of_a_statement_is_that_of_all_charges_ex_post(ledger):
    assert ledger.statement("icu").exact == 0.0
    held = ledger.reserve({"icu": {STEP: 10}}, run="r")
    held.commit({"icu": {STEP: 4}})
    ledger.record({"icu": STEP}, reason="x")
    statement = ledger.statement("icu")
    assert statement.exact == pytest.approx(exact_epsilon(ev.Repeated(STEP, 5), 1e-5))
    assert statement.exact < statement.balance.spent


def test_a_charge_that_came_from_another_account_says_so(ledger):
    ledger.open("bed", **PROMISE, parent="icu")
    ledger.reserve({"bed": {STEP: 3}}, run="r").commit({"bed": STEP})
    lines = ledger.statement("icu").lines
    assert [line.note for line in lines[1:]] == ["from bed", "from bed"]


def test_a_statement_says_who_sees_all_of_the_source(ledger):
    ledger.open("next", **PROMISE, source="icu", overlaps=["icu"])
    assert ledger.statement("icu").seen_whole_by == ("next",)


def test_a_plan_admitted_by_its_exact_epsilon_is_shown_as_such(ledger):
    held = ledger.reserve({"icu": {STEP: MOST + 1}}, run="r")
    plan = exact_epsilon(ev.Repeated(STEP, MOST + 1), 1e-5)
    held.commit({"icu": {STEP: 10}})
    statement = ledger.statement("icu")
    assert statement.lines[1].note == "admitted by the exact ε of its plan"
    assert [line.spent + line.reserved for line in statement.lines[1:]] == [pytest.approx(plan)] * 2
    assert statement.balance.spent == pytest.approx(exact_epsilon(ev.Repeated(STEP, 10), 1e-5))
    assert statement.balance.share == 1.0


def test_open_reservations_are_listed_with_what_is_left_and_who_holds_them(ledger):
    ledger.open("ward", **PROMISE, parent="icu")
    held = ledger.reserve({"ward": {STEP: 10, OTHER: 2}, "icu": {STEP: 3}}, run="r")
    held.commit({"ward": {STEP: 4}, "icu": STEP})
    ledger.reserve({"icu": STEP}, run="gone").release()
    (shown,) = ledger.reservations()
    assert (shown.run, shown.committed, shown.left) == ("r", 5, 10)
    assert shown.reserved == {"ward": {STEP: 10, OTHER: 2}, "icu": {STEP: 3}}
    assert shown.is_alive
    assert str(os.getpid()) in shown.holder
    assert datetime.fromisoformat(shown.since).tzinfo is not None
    assert {each.run: each.left for each in ledger.reservations(open_only=False)} == {"r": 10, "gone": 0}


def test_looking_writes_nothing(ledger):
    ledger.reserve({"icu": {STEP: 10}}, run="r")
    head = ledger.head()
    ledger.balance("icu"), ledger.accounts(), ledger.statement("icu"), ledger.reservations()
    ledger.forecast("icu", STEP), ledger.verify(), ledger.head(), ledger.account("icu")
    assert ledger.head() == head
