"""Reserve, commit, extend, release: attempts to have more than the cap, and what each verb refuses."""

from __future__ import annotations

import math
import re
import threading
from collections import Counter
from types import MappingProxyType

import pytest

import dpfed
from dpfed import events as ev
from dpfed.accounting.filter import RenyiFilter
from dpfed.accounting.queries import epsilon as exact_epsilon
from dpfed.errors import (
    AccountUnavailable,
    AdjacencyMismatch,
    BudgetExceeded,
    InvalidArgument,
    LeaseLost,
    NotReserved,
    PrivacyError,
    UnknownAccount,
    UnknownEvent,
    UnsupportedEvent,
)
from dpfed.ledger.opening import make_terms, open_account
from icu import MOST, PROMISE, STEP
from worlds import counted, rows_of, told


def committed(url, account="icu"):
    return sum(counted(url, "committed", account).values())


def test_all_of_the_budget_can_be_reserved_and_committed_and_not_one_more(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", **PROMISE)
        held = ledger.reserve({"icu": {STEP: MOST}}, run="a", fixed_plan=False)
        with pytest.raises(BudgetExceeded):
            ledger.reserve({"icu": STEP}, run="b")
        held.commit({"icu": {STEP: MOST}})
        with pytest.raises(NotReserved):
            held.commit({"icu": STEP})
        balance = ledger.balance("icu")
        assert (balance.reserved, balance.is_overspent) == (0.0, False)
        assert balance.spent <= 8.0
        ledger.verify()


def test_reservations_on_several_accounts_are_all_or_nothing(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("rich", epsilon=20.0, delta=1e-5)
        ledger.open("poor", epsilon=1.0, delta=1e-5)
        ledger.reserve({"rich": STEP}, run="first")
        before = ledger.balance("rich")
        with pytest.raises(BudgetExceeded, match="poor"):
            ledger.reserve({"rich": {STEP: 10}, "poor": {STEP: 10}}, run="r")
        assert ledger.balance("rich").reserved == before.reserved
        assert ledger.balance("poor").reserved == 0
        (refused,) = [row for row in rows_of(url) if row["kind"] == "refused"]
        assert (refused["account"], refused["run"], refused["times"]) == ("poor", "r", 10)


def test_the_offered_plan_is_admitted_and_one_more_is_not(ledger):
    ledger.record({"icu": {STEP: 3}}, reason="earlier")
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.reserve({"icu": {STEP: 500}}, run="r")
    offered = int(re.search(r"(\d+) of 500 would fit", str(refusal.value))[1])
    noise = float(re.search(r"noise multiplier ([0-9.]+)", str(refusal.value))[1])
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {STEP: offered + 1}}, run="r")
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {ev.Gaussian(noise * 0.997): 500}}, run="r")
    ledger.reserve({"icu": {STEP: offered}}, run="fewer").release()
    ledger.reserve({"icu": {ev.Gaussian(noise): 500}}, run="noisier")


def test_a_refusal_is_written_and_spends_nothing(ledger, sqlite_url):
    before = ledger.balance("icu")
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {STEP: 10_000}}, run="r")
    after = ledger.balance("icu")
    assert (after.spent, after.reserved, after.remaining) == (before.spent, before.reserved, before.remaining)
    assert after.entries == before.entries + 1
    row = rows_of(sqlite_url)[-1]
    assert (row["kind"], row["account"], row["run"], row["times"]) == ("refused", "icu", "r", 10_000)
    assert "would take icu to" in row["body"]
    ledger.reserve({"icu": STEP}, run="r")  # the name is still free


def test_a_released_reservation_can_commit_nothing(ledger):
    held = ledger.reserve({"icu": {STEP: MOST}}, run="a", fixed_plan=False)
    held.commit({"icu": {STEP: 3}})
    held.release(reason="done")
    for _ in range(2):
        with pytest.raises(NotReserved):
            held.commit({"icu": STEP})
        held.release()
    assert held.left("icu", STEP) == 0
    assert ledger.forecast("icu", STEP) == MOST - 3


def test_what_was_returned_is_spent_by_one_of_two_only(ledger, sqlite_url):
    first = ledger.reserve({"icu": {STEP: MOST}}, run="a", fixed_plan=False)
    first.release()
    second = ledger.reserve({"icu": {STEP: MOST}}, run="b", fixed_plan=False)
    second.commit({"icu": {STEP: MOST}})
    with pytest.raises(NotReserved):
        first.commit({"icu": STEP})
    with pytest.raises(BudgetExceeded):
        first.extend({"icu": STEP})
    assert committed(sqlite_url) == MOST


@pytest.mark.parametrize(
    ("reserved", "asked"),
    [
        ({ev.Repeated(STEP, 2): 1}, {STEP: 2}),
        ({STEP: 2}, {ev.Repeated(STEP, 2): 1}),
        ({ev.Composed([STEP, STEP]): 1}, {STEP: 2}),
        ({ev.Gaussian(8.000001): 5}, {STEP: 1}),
        ({ev.PoissonSampled(STEP, 0.01): 5}, {STEP: 1}),
        ({STEP: 5}, {ev.Unprotected(): 1}),
        ({STEP: 5}, {STEP: 6}),
    ],
)
def test_only_what_was_reserved_may_be_committed_in_the_words_it_was_reserved_in(ledger, reserved, asked):
    held = ledger.reserve({"icu": reserved}, run="r")
    head = ledger.head()
    with pytest.raises(NotReserved):
        held.commit({"icu": asked})
    assert ledger.head() == head


def test_an_event_in_other_words_costs_the_same(ledger):
    ledger.open("other", **PROMISE)
    ledger.record({"icu": {STEP: 4}, "other": {ev.Composed([ev.Repeated(STEP, 3), STEP]): 1}}, reason="both")
    assert ledger.balance("icu").spent == pytest.approx(ledger.balance("other").spent, rel=1e-15)


def test_a_commit_writes_the_same_entry_however_its_charge_is_said(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", **PROMISE)
        held = ledger.reserve({"icu": {STEP: 10}}, run="r")
        for charge in ({"icu": STEP}, {"icu": {STEP: 1}}, MappingProxyType({"icu": STEP}), {"icu": Counter([STEP])}):
            held.commit(charge)
        written = [row for row in rows_of(url) if row["kind"] == "committed"]
        entries = [(row["item"], row["event"], row["times"], row["left"]) for row in written]
        assert entries == [(3, ev.dumps(STEP), 1, left) for left in (9, 8, 7, 6)]
        assert held.left("icu", STEP) == 6
        ledger.verify()


def test_a_commit_of_several_accounts_is_all_or_nothing(ledger):
    ledger.open("ward", **PROMISE)
    held = ledger.reserve({"icu": {STEP: 5}, "ward": {STEP: 1}}, run="r")
    head = ledger.head()
    with pytest.raises(NotReserved, match="ward"):
        held.commit({"icu": STEP, "ward": {STEP: 2}})
    assert ledger.head() == head
    held.commit({"icu": {STEP: 4}, "ward": STEP})
    assert (held.left("icu"), held.left("ward")) == (1, 0)


def test_nothing_is_reserved_on_another_account(ledger):
    ledger.open("ward", **PROMISE)
    held = ledger.reserve({"icu": {STEP: 5}}, run="r")
    for verb in (held.left, held.events, held.epsilon, lambda name: held.commit({name: STEP})):
        with pytest.raises(NotReserved, match="only on icu"):
            verb("ward")
        with pytest.raises(InvalidArgument):
            verb("\0")


def test_a_parent_of_a_parent_is_charged_and_can_refuse(ledger):
    ledger.open("h", epsilon=2.0, delta=1e-5)
    ledger.open("w", epsilon=50.0, delta=1e-5, parent="h")
    ledger.open("bed", epsilon=50.0, delta=1e-5, parent="w")
    top = RenyiFilter(2.0, 1e-5).affordable(STEP)
    assert ledger.forecast("bed", STEP) == top
    with pytest.raises(BudgetExceeded, match="h to ε"):
        ledger.reserve({"bed": {STEP: top + 1}}, run="r", fixed_plan=False)
    held = ledger.reserve({"bed": {STEP: top - 1}, "w": STEP}, run="s", fixed_plan=False)
    held.commit({"bed": {STEP: top - 1}, "w": STEP})
    assert held.accounts == ("bed", "w")
    assert ledger.forecast("h", STEP) == 0
    assert ledger.balance("h").reserved == 0
    assert ledger.balance("w").spent > ledger.balance("bed").spent
    ledger.verify()


def test_a_charge_that_reaches_an_account_twice_is_judged_as_one(ledger):
    ledger.open("h", epsilon=2.0, delta=1e-5)
    ledger.open("w1", epsilon=50.0, delta=1e-5, parent="h")
    ledger.open("w2", epsilon=50.0, delta=1e-5, parent="h")
    top = RenyiFilter(2.0, 1e-5).affordable(STEP)
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"w1": {STEP: top // 2 + 1}, "w2": {STEP: top // 2 + 1}}, run="r", fixed_plan=False)
    ledger.reserve({"w1": {STEP: top // 2}, "w2": {STEP: top // 2}}, run="s", fixed_plan=False)


def test_an_overlap_opened_while_a_reservation_is_open_sees_all_that_may_come_of_it(ledger, sqlite_url):
    held = ledger.reserve({"icu": {STEP: 10}}, run="r")
    held.commit({"icu": {STEP: 2}})
    ledger.open("later", **PROMISE, overlaps=["icu"])
    held.commit({"icu": {STEP: 3}})
    assert ledger.forecast("later", STEP) == MOST - 10
    held.extend({"icu": {STEP: 4}})
    assert ledger.forecast("later", STEP) == MOST - 14
    held.commit({"icu": {STEP: 9}})
    assert ledger.forecast("later", STEP) == MOST - 14
    assert (committed(sqlite_url), committed(sqlite_url, "later")) == (14, 4)
    held.release()
    assert ledger.forecast("later", STEP) == MOST - 14
    ledger.verify()


def test_an_extension_after_an_overlap_is_refused_by_the_overlapping_account_too(ledger):
    held = ledger.reserve({"icu": {STEP: 10}}, run="r")
    ledger.open("later", epsilon=3.2, delta=1e-5, overlaps=["icu"])
    room = ledger.forecast("later", STEP)
    assert room < ledger.balance("icu").entries + MOST
    with pytest.raises(BudgetExceeded, match="later"):
        held.extend({"icu": {STEP: room + 1}})
    held.extend({"icu": {STEP: room}})
    assert ledger.forecast("icu", STEP) == 0


def test_an_extension_is_never_admitted_by_the_exact_epsilon(ledger):
    held = ledger.reserve({"icu": {STEP: 1}}, run="r")
    held.release()
    with pytest.raises(BudgetExceeded):
        held.extend({"icu": {STEP: MOST + 1}})
    held.extend({"icu": {STEP: MOST}})


def test_an_account_whose_plan_was_admitted_by_exact_epsilon_is_closed(ledger):
    count = MOST + 1
    held = ledger.reserve({"icu": {STEP: count}}, run="r")
    balance = ledger.balance("icu")
    assert (balance.mode, balance.status, balance.remaining) == ("exact", "closed", 0.0)
    assert balance.reserved == pytest.approx(exact_epsilon(ev.Repeated(STEP, count), 1e-5))
    assert held.epsilon("icu") <= 8.0
    free = ev.Gaussian(1e6)
    for verb in (lambda: held.extend({"icu": free}), lambda: ledger.reserve({"icu": free}, run="s")):
        with pytest.raises(AccountUnavailable, match="closed for further charges"):
            verb()
    held.commit({"icu": {STEP: count}})
    ledger.top_up("icu", epsilon=50.0, reason="more")
    with pytest.raises(AccountUnavailable):
        ledger.reserve({"icu": free}, run="s")
    assert ledger.balance("icu").spent == pytest.approx(held.epsilon("icu"))
    ledger.verify()


def test_a_closed_account_reopens_only_if_nothing_of_its_plan_was_committed(ledger):
    ledger.reserve({"icu": {STEP: MOST + 1}}, run="a").release()
    assert ledger.balance("icu").status == "open"
    held = ledger.reserve({"icu": {STEP: MOST + 1}}, run="b")
    held.commit({"icu": STEP})
    held.release()
    assert ledger.balance("icu").status == "closed"
    assert ledger.balance("icu").spent == pytest.approx(held.epsilon("icu"))  # the whole plan's, stopped or not
    with pytest.raises(AccountUnavailable):
        ledger.reserve({"icu": STEP}, run="c")
    ledger.verify()


def test_the_exact_plan_of_a_child_closes_its_parent_too(ledger):
    ledger.open("h", **PROMISE)
    ledger.open("w", **PROMISE, parent="h")
    ledger.reserve({"w": {STEP: MOST + 1}}, run="r")
    assert [ledger.balance(name).mode for name in ("w", "h")] == ["exact", "exact"]
    with pytest.raises(AccountUnavailable):
        ledger.reserve({"h": ev.Gaussian(1e6)}, run="s")
    with pytest.raises(BudgetExceeded):
        ledger.open("w2", **PROMISE, parent="h", opening={ev.Gaussian(1e6): 1})


def test_a_charge_after_the_fact_beside_an_exact_plan_is_added_up_by_the_filter(ledger):
    held = ledger.reserve({"icu": {STEP: MOST + 1}}, run="r")
    ledger.record({"icu": STEP}, reason="forgotten")
    balance = ledger.balance("icu")
    assert (balance.mode, balance.status) == ("filter", "closed")
    with pytest.raises(BudgetExceeded, match="after the fact"):
        held.commit({"icu": {STEP: MOST}})
    held.commit({"icu": {STEP: MOST - 1}})
    assert not ledger.balance("icu").is_overspent
    ledger.verify()


@pytest.mark.parametrize("event", [ev.ApproximateDP(1.0, 1e-6), ev.Composed([STEP, ev.ApproximateDP(1.0, 1e-7)])])
def test_an_event_without_a_renyi_divergence_is_admitted_by_an_exact_plan_only(ledger, event):
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": event}, run="r", fixed_plan=False)
    held = ledger.reserve({"icu": {event: 2}}, run="r", fixed_plan=True)
    held.commit({"icu": event})
    balance = ledger.balance("icu")
    assert balance.mode == "exact"
    assert 0 < balance.spent < balance.spent + balance.reserved <= 8.0
    held.release()
    with pytest.raises(AccountUnavailable):
        ledger.reserve({"icu": ev.Gaussian(1e6)}, run="s")
    ledger.statement("icu")
    ledger.verify()


def test_no_protection_is_never_admitted(ledger):
    for fixed in (True, False):
        with pytest.raises(BudgetExceeded, match="∞"):
            ledger.reserve({"icu": ev.Composed([STEP, ev.Unprotected()])}, run="r", fixed_plan=fixed)
    ledger.record({"icu": ev.Unprotected()}, reason="a leak")
    assert ledger.balance("icu").spent == math.inf
    assert ledger.balance("icu").is_overspent
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": ev.Gaussian(1e6)}, run="r")
    assert ledger.statement("icu").exact == math.inf
    ledger.verify()


def test_events_of_the_other_adjacency_are_refused_and_not_written(ledger):
    ledger.open("swap", **PROMISE, adjacency="replace_one")
    head = ledger.head()
    for account, event in [("icu", ev.RandomizedResponse(1.0)), ("swap", ev.PureDP(0.1))]:
        with pytest.raises(AdjacencyMismatch):
            ledger.reserve({account: event}, run="r")
        with pytest.raises(AdjacencyMismatch):
            ledger.record({account: event}, reason="x")
    with pytest.raises(UnsupportedEvent):
        ledger.reserve({"icu": ev.PoissonSampled(ev.ZeroConcentratedDP(0.1), 0.5)}, run="r")
    assert ledger.head() == head
    ledger.reserve({"swap": ev.RandomizedResponse(1.0)}, run="r")


def test_a_replace_one_account_pays_for_twice_the_shift(ledger):
    ledger.open("swap", **PROMISE, adjacency="replace_one")
    assert ledger.forecast("swap", STEP) == RenyiFilter(8.0, 1e-5, adjacency="replace_one").affordable(STEP)
    assert ledger.forecast("swap", STEP) < MOST // 3


def test_two_ledger_objects_of_one_process_share_one_budget(url):
    with dpfed.Ledger(url) as one, dpfed.Ledger(url) as two:
        one.open("icu", **PROMISE)
        a = one.reserve({"icu": {STEP: MOST - 5}}, run="a")
        b = two.reserve({"icu": {STEP: 5}}, run="b")
        for _ in range(3):
            a.commit({"icu": STEP})
            b.commit({"icu": STEP})
            with pytest.raises(BudgetExceeded):
                one.reserve({"icu": STEP}, run="c")
        taken = two.resume("a")
        with pytest.raises(LeaseLost):
            a.commit({"icu": STEP})
        taken.commit({"icu": {STEP: MOST - 8}})
        with pytest.raises(NotReserved):
            taken.commit({"icu": STEP})
        two.open("later", epsilon=9.0, delta=1e-5, overlaps=["icu"])
        assert one.balance("later").spent > 0
        one.verify()


def test_twenty_threads_share_a_ledger_and_never_pass_the_cap(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", **PROMISE)
        shared = ledger.reserve({"icu": {STEP: 40}}, run="shared", fixed_plan=False)
        done, refused, errors = [], [], []

        def work(number: int) -> None:
            try:
                shared.commit({"icu": {STEP: 2}})
                held = ledger.reserve({"icu": {STEP: MOST // 8}}, run=f"run-{number}", fixed_plan=False)
                held.commit({"icu": {STEP: MOST // 8}})
                done.append(number)
                ledger.open(f"ward-{number}", **PROMISE)
            except BudgetExceeded:
                refused.append(number)
                ledger.accounts()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(done) == (MOST - 40) // (MOST // 8)
        assert len(done) + len(refused) == 20
        assert shared.left("icu") == 0
        assert committed(url) == 40 + len(done) * (MOST // 8)
        ledger.verify()


def test_an_account_opened_by_another_thread_between_two_commits_is_not_overlooked(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", **PROMISE)
        held = ledger.reserve({"icu": {STEP: 5}}, run="r")
        held.commit({"icu": STEP})
        terms = make_terms("later", 8.0, 1e-5, "record", "add_remove", overlaps=["icu"])
        with ledger._store.writing() as journal:  # as Ledger.open does, before it has looked at the result
            open_account(journal, terms, {}, journal.terms)
        held.commit({"icu": STEP})
        held.extend({"icu": {STEP: 3}})
        assert ledger.forecast("later", STEP) == MOST - 8


def test_threads_may_look_while_others_open_accounts(ledger):
    errors, stop = [], threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                assert ledger.accounts()[0].account.name == "icu"
                ledger.statement("icu")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        ledger.open(f"ward-{number}", **PROMISE)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_reservation_used_on_both_sides_of_a_fork_is_one_reservation(url):
    ledger = dpfed.Ledger(url)
    ledger.open("icu", **PROMISE)
    held = ledger.reserve({"icu": {STEP: 10}}, run="r")
    held.commit({"icu": STEP})

    def child(say):
        made = 0
        for _ in range(20):
            try:
                held.commit({"icu": STEP})
                made += 1
            except NotReserved:
                break
            if made == 4:
                break
        say(made)

    assert told(child) == [[4]]
    assert held.left("icu", STEP) == 5
    held.commit({"icu": {STEP: 5}})
    with pytest.raises(NotReserved):
        held.commit({"icu": STEP})
    assert committed(url) == 10
    ledger.verify()
    ledger.close()


def test_enormous_counts_are_added_up_without_overflow(ledger):
    most, free = 2**40, ev.RenyiDP((2.0, 64.0), (0.0, 0.0))
    held = ledger.reserve({"icu": {free: most}}, run="r")
    for _ in range(3):
        held.extend({"icu": {free: most}})
        ledger.record({"icu": {free: most}}, reason="x")
    held.commit({"icu": {free: 3 * most // 3}})
    assert held.left("icu", free) == 3 * most
    ledger.open("later", **PROMISE, overlaps=["icu"])
    assert ledger.balance("later").spent == ledger.balance("icu").spent
    with pytest.raises(BudgetExceeded):
        ledger.reserve({"icu": {STEP: most}}, run="s")
    ledger.statement("icu")
    ledger.verify()


HOSTILE_CHARGES = [None, {}, [], "icu", STEP, 5, {"icu": {}}, {"icu": None}, {"icu": [STEP]}, {"i cu": STEP}, {5: STEP}]
HOSTILE_COUNTS = [0, -1, 1.5, float("nan"), float("inf"), "3", True, None, 2**62]


def test_hostile_charges_are_refused_by_every_verb_and_nothing_is_written(ledger):
    held = ledger.reserve({"icu": {STEP: 50}}, run="r")
    head = ledger.head()
    verbs = [
        held.commit,
        held.extend,
        lambda charges: ledger.reserve(charges, run="s"),
        lambda charges: ledger.record(charges, reason="x"),
    ]
    for verb in verbs:
        for charges in HOSTILE_CHARGES:
            with pytest.raises(InvalidArgument) as refusal:
                verb(charges)
            assert refusal.value.argument in ("charges", "account")
        for count in HOSTILE_COUNTS:
            with pytest.raises(InvalidArgument) as refusal:
                verb({"icu": {STEP: count}})
            assert refusal.value.argument == "count"
        for event in ("Gaussian", 5, None, ev.Gaussian, ev.Event()):
            with pytest.raises(UnknownEvent):
                verb({"icu": {event: 1}})
        with pytest.raises((UnknownAccount, NotReserved)):
            verb({"nobody": STEP})
    assert ledger.head() == head


@pytest.mark.parametrize("run", ["", "a b", "\0", "\ud800", None, 5, "x" * 10_000_000, "r'; --"])
def test_a_hostile_run_is_refused_and_nothing_is_written(ledger, run):
    head = ledger.head()
    verbs = [
        lambda: ledger.reserve({"icu": STEP}, run=run),
        lambda: ledger.resume(run),
        lambda: ledger.release(run, reason="x"),
        *([] if run is None else [lambda: ledger.record({"icu": STEP}, run=run, reason="x")]),
    ]
    for verb in verbs:
        with pytest.raises(InvalidArgument) as refusal:
            verb()
        assert refusal.value.argument == "run"
    assert ledger.head() == head


@pytest.mark.parametrize("reason", ["", " ", "\0", "\ud800", None, 5, "x" * 10_000_000, "two\nlines"])
def test_a_hostile_reason_is_refused_and_nothing_is_written(ledger, reason):
    held = ledger.reserve({"icu": {STEP: 5}}, run="r")
    head = ledger.head()
    verbs = [
        lambda: ledger.record({"icu": STEP}, reason=reason),
        lambda: ledger.freeze("icu", reason=reason),
        lambda: ledger.unfreeze("icu", reason=reason),
        lambda: ledger.top_up("icu", epsilon=1.0, reason=reason),
        lambda: ledger.release("r", reason=reason),
        *([] if reason in ("", " ") else [lambda: held.release(reason=reason)]),
    ]
    for verb in verbs:
        with pytest.raises(InvalidArgument) as refusal:
            verb()
        assert refusal.value.argument == "reason"
    assert ledger.head() == head


@pytest.mark.parametrize("fixed_plan", ["no", "False", 1, 0, None])
def test_whether_a_plan_is_fixed_is_said_with_true_or_false(ledger, fixed_plan):
    head = ledger.head()
    with pytest.raises(InvalidArgument) as refusal:
        ledger.reserve({"icu": {STEP: MOST + 1}}, run="r", fixed_plan=fixed_plan)
    assert refusal.value.argument == "fixed_plan"
    assert ledger.head() == head


def test_every_refusal_is_a_privacy_error(ledger):
    with pytest.raises(PrivacyError):
        ledger.reserve({"nobody": STEP}, run="r")


def test_a_reservation_shows_its_plan(ledger):
    held = ledger.reserve({"icu": {STEP: 5}}, run="r")
    assert repr(held) == f"<Reservation of run 'r' on icu: {ev.Repeated(STEP, 5)}>"
    assert "Reservation of run r" in held._repr_html_()
    assert held.run == "r"
    assert held.epsilon("icu") == pytest.approx(exact_epsilon(ev.Repeated(STEP, 5), 1e-5))


def test_what_is_left_of_each_is_what_is_left_of_one(ledger):
    other = ev.Gaussian(9.0)
    ledger.open("parent", epsilon=50.0, delta=1e-5)
    ledger.open("ward", **PROMISE, parent="parent")
    held = ledger.reserve({"icu": {STEP: 3, other: 1}, "ward": {STEP: 2}}, run="a", fixed_plan=False)
    held.extend({"icu": {STEP: 2}})
    held.commit({"icu": {STEP: 4}, "ward": STEP})
    assert held.left_of_each() == {"icu": {STEP: 1, other: 1}, "ward": {STEP: 1}}
    assert held.left("icu", STEP) == held.left("ward") == 1


def test_a_mark_costs_nothing_and_is_counted_by_whoever_goes_on(ledger, sqlite_url):
    held = ledger.reserve({"icu": {STEP: 2}}, run="study-12")
    held.mark("icu")
    held.commit({"icu": STEP})
    held.mark("icu")
    spent = ledger.balance("icu").spent
    with dpfed.Ledger(sqlite_url) as other:
        resumed = other.resume("study-12")
        assert (resumed.marks(), resumed.left("icu")) == (2, 1)
        assert other.balance("icu").spent == spent
        other.verify()
    with pytest.raises(LeaseLost):
        held.mark("icu")
    assert held.marks() == 2


def test_a_mark_is_refused_where_a_charge_would_be(ledger):
    held = ledger.reserve({"icu": {STEP: 2}}, run="study-12")
    ledger.freeze("icu", reason="audit")
    with pytest.raises(AccountUnavailable):
        held.mark("icu")
    with pytest.raises(NotReserved):
        held.mark("ward")
    assert held.marks() == 0


# Where it is secret who is charged.


def two_wards(ledger):
    for name in ("north", "south"):
        ledger.open(name, **PROMISE, parent="icu")
    return ledger.reserve({"north": {STEP: 3}, "south": {STEP: 3}}, run="study-12")


def unseen(held, charges):
    """The refusal of an unseen commit; None where there was none."""
    try:
        held.commit_unseen(charges)
    except PrivacyError as error:
        return type(error), str(error)
    return None


CHOICES = ({}, {"north": STEP}, {"south": STEP}, {"north": STEP, "south": STEP})


def test_an_unseen_commit_charges_whom_it_says_and_is_counted_once_whomever_that_is(ledger, sqlite_url):
    held = two_wards(ledger)
    for charges in CHOICES:
        held.commit_unseen(charges)
    assert (committed(sqlite_url, "north"), committed(sqlite_url, "south"), committed(sqlite_url)) == (2, 2, 4)
    assert held.marks() == 4
    ledger.verify()


@pytest.mark.parametrize("account", ["icu", "north", "south"])
def test_an_unseen_commit_is_refused_alike_whomever_it_charges(ledger, sqlite_url, account):
    held = two_wards(ledger)
    ledger.freeze(account, reason="audit")
    refusals = {unseen(held, charges) for charges in CHOICES}
    assert len(refusals) == 1
    assert "frozen" in refusals.pop()[1]
    assert (committed(sqlite_url), held.marks()) == (0, 0)
    ledger.unfreeze(account, reason="over")
    held.commit_unseen({"north": STEP})


@pytest.mark.parametrize("spent", [0, 1, 3])
def test_an_unseen_commit_is_refused_alike_however_much_was_charged(ledger, spent):
    """Here the first charge would still fit: when it no longer did would tell how many there were."""
    held = two_wards(ledger)
    for _ in range(spent):
        held.commit_unseen({"north": STEP})
    ledger.record({"icu": {STEP: MOST - 5}}, reason="found later")
    refusals = {unseen(held, charges) for charges in CHOICES[:3]}
    assert len(refusals) == 1
    assert refusals.pop()[0] is BudgetExceeded
    ledger.top_up("icu", epsilon=1.0, reason="agreed")
    held.commit_unseen({})


def test_an_unseen_commit_of_a_run_that_was_taken_over_is_refused_even_where_nobody_is_charged(ledger, sqlite_url):
    held = two_wards(ledger)
    with dpfed.Ledger(sqlite_url) as other:
        other.resume("study-12")
    assert {unseen(held, charges)[0] for charges in CHOICES} == {LeaseLost}
