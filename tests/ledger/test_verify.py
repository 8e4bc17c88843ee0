"""Forged entries whose hash chain is right: the replay finds what does not add up and names the entry."""

from __future__ import annotations

import io
import json

import pytest

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter
from dpfed.accounting.queries import epsilon as exact_epsilon
from dpfed.errors import LedgerCorrupted
from dpfed.ledger import amounts
from dpfed.ledger.rows import GENESIS, Draft, Head, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.verify import read_export, replay

AT = "2026-01-01T00:00:00.000000Z"
STEP = ev.Gaussian(8.0)
TERMS = Terms("icu", epsilon=8.0, delta=1e-5, orders=RenyiFilter(8.0, 1e-5).orders)
COST = TERMS.cost(STEP)
MOST = RenyiFilter(8.0, 1e-5).affordable(STEP)


class Book:
    """A ledger written by hand: every digest is right, whatever the entries say."""

    def __init__(self, terms=TERMS):
        self.rows, self.state, self.terms = [], AccountState.new(terms), terms
        self.add(Draft("opened", terms.name, state=self.state.dumps(), body=compact(terms.to_dict())))

    @property
    def head(self):
        return Head(len(self.rows), self.rows[-1].hash if self.rows else GENESIS)

    def add(self, draft):
        self.rows.append(draft.row(self.head.sequence + 1, AT, self.head.digest if self.rows else GENESIS))
        return self.rows[-1]

    def move(self, kind, count=0, cost=COST, body=None, shown=None, **columns):
        """An entry that does what it says, but for what is given otherwise."""
        self.state = self.state.after(kind, count, cost, body)
        plain = {"event": ev.dumps(STEP), "times": count, "origin": "icu", "body": compact(body or {})}
        if kind in ("reserved", "carried", "recorded"):
            plain["cost"] = compact(amounts.texts(cost))
        shown = self.state if shown is None else shown
        return self.add(Draft(**{"kind": kind, "account": "icu", "state": shown.dumps(), **plain, **columns}))

    def reserve(self, count, run="r", **others):
        return self.move("reserved", count, run=run, left=count, **others)

    def commit(self, item, count, left, run="r", **others):
        return self.move("committed", count, run=run, item=item.seq, left=left, **others)

    def is_sound(self):
        return replay(self.rows, self.head)

    def is_bad_at(self, number, why):
        with pytest.raises(LedgerCorrupted, match=why) as found:
            replay(self.rows, self.head)
        assert found.value.row == number
        assert f"entry {number}" in str(found.value)


@pytest.fixture
def book():
    return Book()


def test_an_honest_book_is_sound(book):
    item = book.reserve(10)
    book.commit(item, 4, 6)
    book.move("released", 6, run="r", item=item.seq, left=0)
    book.move("recorded", 1)
    found = book.is_sound()
    assert (found.rows, found.accounts, found.head) == (5, 1, book.head)


def test_an_empty_ledger_is_sound():
    assert replay([], Head(0, GENESIS)).rows == 0


def test_a_balance_that_was_not_moved_is_found(book):
    item = book.reserve(10)
    book.commit(item, 1, 9, shown=book.state)
    book.is_bad_at(3, "balance")


@pytest.mark.parametrize("spent", [-1, 0, 1])
def test_a_balance_off_by_one_unit_is_found(book, spent):
    item = book.reserve(10)
    honest = book.state.after("committed", 1, COST)
    wrong = honest._replace(spent=(honest.spent[0] + spent,))
    book.commit(item, 1, 9, shown=wrong)
    if spent:
        book.is_bad_at(3, "balance")
    else:
        book.is_sound()


@pytest.mark.parametrize("kind", ["reserved", "recorded", "carried"])
def test_a_cost_too_low_is_found(book, kind):
    cheap = (int(COST[0] * 0.999),)
    book.move(kind, 1, cost=cheap, run="r", left=1 if kind == "reserved" else None)
    book.is_bad_at(2, "costs")


def test_a_cost_that_another_machine_rounds_otherwise_is_accepted(book):
    book.move("recorded", 1, cost=(COST[0] - 1,))
    book.is_sound()


def test_a_cost_too_high_is_the_owners_choice(book):
    book.move("recorded", 1, cost=(2 * COST[0],))
    book.is_sound()


def test_the_cost_of_a_cheaper_event_is_found(book):
    book.move("recorded", 1, cost=TERMS.cost(ev.Gaussian(80.0)))
    book.is_bad_at(2, "costs")


def test_a_reservation_beyond_the_cap_is_found(book):
    book.reserve(MOST)
    book.is_sound()
    book.reserve(1, run="s")
    book.is_bad_at(3, "afford")


def test_charges_after_the_fact_may_pass_the_cap_and_reservations_after_them_may_not(book):
    book.move("recorded", 2 * MOST)
    book.is_sound()
    book.reserve(1)
    book.is_bad_at(3, "afford")


def test_a_reservation_after_a_top_up_may_use_it(book):
    book.move("topped_up", body={"epsilon": 4.0, "reason": "x"})
    book.reserve(MOST + 1)
    book.is_sound()


@pytest.mark.parametrize("taken", [4, 10])
def test_an_item_that_is_overdrawn_is_found(book, taken):
    item = book.reserve(10)
    book.commit(item, 7, 3)
    book.commit(item, taken, 3 - taken)
    book.is_bad_at(4, "left")


def test_an_item_that_lies_about_what_is_left_is_found(book):
    item = book.reserve(10)
    book.commit(item, 7, 5)
    book.is_bad_at(3, "left")


def test_a_reservation_that_holds_more_than_it_reserves_is_found(book):
    book.move("reserved", 5, run="r", left=50)
    book.is_bad_at(2, "hold")


def test_a_commit_from_an_item_that_was_never_reserved_is_found(book):
    book.reserve(10)
    book.move("committed", 1, run="r", item=99, left=9)
    book.is_bad_at(3, "never reserved")


@pytest.mark.parametrize(
    "column",
    [{"run": "other"}, {"origin": "ward"}, {"event": ev.dumps(ev.Gaussian(80.0))}],
    ids=lambda c: next(iter(c)),
)
def test_a_commit_from_the_item_of_another_is_found(book, column):
    item = book.reserve(10)
    book.move("committed", 1, **{"run": "r", "item": item.seq, "left": 9, **column})
    book.is_bad_at(3, "another's")


@pytest.mark.parametrize("kind", ["recorded", "carried", "reserved"])
@pytest.mark.parametrize("count", [-5, 0])
def test_a_charge_of_less_than_one_event_is_found(book, kind, count):
    book.move("recorded", 10)
    book.move(kind, count, run="r", left=count)
    book.is_bad_at(3, "counts")


@pytest.mark.parametrize("kind", ["committed", "released"])
def test_a_negative_commit_or_release_is_found(book, kind):
    item = book.reserve(10)
    book.commit(item, 5, 5)
    book.move(kind, -5, run="r", item=item.seq, left=10)
    book.is_bad_at(4, "counts")


def test_a_released_item_that_is_committed_is_found(book):
    item = book.reserve(10)
    book.move("released", 10, run="r", item=item.seq, left=0)
    book.commit(item, 1, -1)
    book.is_bad_at(4, "left")


def exact(count):
    return exact_epsilon(ev.Repeated(STEP, count), 1e-5)


def test_an_exact_plan_is_recomputed(book):
    book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.is_sound()


@pytest.mark.parametrize("plan", [0.1, 7.0, -1.0])
def test_an_exact_plan_that_costs_more_than_it_says_is_found(book, plan):
    book.reserve(MOST + 1, body={"plan": plan})
    book.is_bad_at(2, "plan costs")


def test_an_exact_plan_beyond_the_cap_is_found(book):
    book.reserve(3 * MOST, body={"plan": exact(3 * MOST)})
    book.is_bad_at(2, "plan costs")


@pytest.mark.parametrize("kind", ["recorded", "carried"])
def test_an_exact_plan_after_earlier_charges_is_found(book, kind):
    book.move(kind, 1, cost=COST)
    book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.is_bad_at(3, "earlier charges")


def test_an_exact_plan_beside_another_reservation_is_found(book):
    book.reserve(1, run="first")
    book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.is_bad_at(3, "earlier charges")


def test_a_second_run_beside_an_exact_plan_is_found(book):
    book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.reserve(1, run="second")
    book.is_bad_at(3, "earlier charges")


def test_a_growing_exact_plan_is_found(book):
    book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.reserve(1)
    book.is_bad_at(3, "plan costs")


def test_a_reservation_on_an_account_closed_for_good_is_found(book):
    item = book.reserve(MOST + 1, body={"plan": exact(MOST + 1)})
    book.move("recorded", 1)
    book.move("released", MOST + 1, run="r", item=item.seq, left=0)
    book.is_sound()
    book.reserve(1, run="s")
    book.is_bad_at(5, "afford")


def test_an_account_that_was_never_opened_is_found(book):
    book.move("recorded", 1, account="ward")
    book.is_bad_at(2, "never opened")


def test_an_account_opened_twice_is_found(book):
    book.add(Draft("opened", "icu", state=book.state.dumps(), body=compact(TERMS.to_dict())))
    book.is_bad_at(2, "opened before")


def test_an_account_opened_with_the_terms_of_another_is_found(book):
    book.add(Draft("opened", "ward", state=book.state.dumps(), body=compact(TERMS.to_dict())))
    book.is_bad_at(2, "another account")


def test_an_account_that_begins_with_a_balance_is_found():
    book = Book()
    book.rows.clear()
    rich = AccountState(cap=80.0, spent=(0,), held=(0,))
    book.add(Draft("opened", "icu", state=rich.dumps(), body=compact(TERMS.to_dict())))
    book.is_bad_at(1, "balance")


def test_an_unknown_kind_is_found(book):
    book.add(Draft("refunded", "icu", state=book.state.dumps()))
    book.is_bad_at(2, "no kind")


@pytest.mark.parametrize(
    ("column", "text"),
    [("event", "{}"), ("event", "?"), ("cost", "[]"), ("cost", '["x"]'), ("cost", None), ("body", "5"), ("body", "{")],
)
def test_what_cannot_be_read_is_named(book, column, text):
    after = book.state.after("recorded", 1, COST)
    honest = {"event": ev.dumps(STEP), "times": 1, "cost": compact(amounts.texts(COST)), "state": after.dumps()}
    book.add(Draft("recorded", "icu", **{**honest, column: text}))
    book.is_bad_at(2, "cannot be read|costs")


def test_a_gap_a_wrong_link_and_a_wrong_head_are_found(book):
    book.move("recorded", 1)
    book.move("recorded", 2)
    for rows, number in [
        (book.rows[1:], 2),
        ([book.rows[0], book.rows[2]], 3),
        (book.rows[:2], 3),
        ([book.rows[0], book.rows[1]._replace(previous="0" * 64)], 2),
    ]:
        with pytest.raises(LedgerCorrupted) as found:
            replay(rows, book.head)
        assert found.value.row == number
    with pytest.raises(LedgerCorrupted):
        replay(book.rows, Head(3, "0" * 64))
    with pytest.raises(LedgerCorrupted):
        replay(book.rows, Head(4, book.head.digest))


def test_an_export_can_be_verified_by_somebody_else(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, purpose="étude ε")
        held = ledger.reserve({"icu": {STEP: 5}}, run="r")
        held.commit({"icu": {STEP: 2}})
        stream = io.StringIO()
        ledger.export(stream)
        head = ledger.head()
    lines = stream.getvalue().splitlines()
    assert replay(read_export(lines), head).rows == 4
    changed = [line.replace('"times":2', '"times":1') for line in lines]
    with pytest.raises(LedgerCorrupted) as found:
        replay(read_export(changed), head)
    assert found.value.row == 4


@pytest.mark.parametrize("line", ["", "[]", "5", "{", json.dumps({"seq": 1})])
def test_a_line_that_is_no_entry_is_named(line):
    with pytest.raises(LedgerCorrupted, match="line 1") as found:
        list(read_export([line]))
    assert found.value.row == 1
