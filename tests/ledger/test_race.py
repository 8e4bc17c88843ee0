"""Many processes and one account: the cap holds, nobody waits for ever, and a busy database says so."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest
from sqlalchemy.engine import make_url

import dpfed
from dpfed import events as ev
from dpfed.errors import BudgetExceeded, InvalidArgument, LeaseHeld, LedgerUnavailable
from dpfed.ledger.store.database import Database
from worlds import EVENT, WITHIN, Child, Say, counted, fork, open_accounts, outcome, rows_of, sqlite_path

# One order costs σ²: some 40 of these fit into ε = 2.
LARGE = ev.Gaussian(noise_multiplier=14.0)


def start_together(works: list[Callable[[Say], None]]) -> list[Child]:
    """Children that are all forked before the first begins."""
    gate, starter = os.pipe()

    def waiting(work: Callable[[Say], None]) -> Callable[[Say], None]:
        def wait_and_work(say: Say) -> None:
            os.close(starter)
            os.read(gate, 1)  # returns at the end of the file: when the parent lets go
            work(say)

        return wait_and_work

    children = [fork(waiting(work)) for work in works]
    os.close(gate)
    os.close(starter)
    return children


def race(works: list[Callable[[Say], None]]) -> Counter[str]:
    """How often each last word was said by children that started together and all came to an end."""
    deadline = time.monotonic() + WITHIN
    ends = [child.end(deadline) for child in start_together(works)]
    for code, facts in ends:
        assert code == 0, facts[-1]
    return Counter(facts[-1][0] for _, facts in ends)


def spend(ledger: dpfed.Ledger, run: str, say: Say) -> None:
    try:
        held = ledger.reserve({"icu": {LARGE: 1}}, run=run)
    except BudgetExceeded:
        say("refused")
        return
    held.commit({"icu": LARGE})
    say("spent")


def test_a_hundred_processes_race_for_one_account_and_the_cap_holds(url):
    """Fifty with a ledger of their own and fifty with the one they inherited."""
    open_accounts(url, "icu", epsilon=2.0)
    inherited = dpfed.Ledger(url, wait=WITHIN)
    affordable = inherited.forecast("icu", LARGE)
    assert 20 < affordable < 80

    def newcomer(number: int) -> Callable[[Say], None]:
        return lambda say: spend(dpfed.Ledger(url, wait=WITHIN), f"new-{number}", say)

    def heir(number: int) -> Callable[[Say], None]:
        return lambda say: spend(inherited, f"heir-{number}", say)

    ends = race([kind(number) for number in range(50) for kind in (newcomer, heir)])

    assert ends == {"spent": affordable, "refused": 100 - affordable}
    assert inherited.balance("icu").spent <= 2.0
    assert outcome(lambda: inherited.reserve({"icu": {LARGE: 1}}, run="late")) == "BudgetExceeded"
    assert counted(url, "committed", "icu").total() == affordable
    assert inherited.verify().rows == len(rows_of(url))
    inherited.close()


def test_accounts_named_in_any_order_do_not_lock_each_other_out(url):
    open_accounts(url, "icu", "ward")

    def both(number: int) -> Callable[[Say], None]:
        names = ("icu", "ward") if number % 2 else ("ward", "icu")

        def work(say: Say) -> None:
            ledger = dpfed.Ledger(url, wait=WITHIN)
            held = ledger.reserve({name: {EVENT: 3} for name in names}, run=f"run-{number}")
            held.commit(dict.fromkeys(reversed(names), EVENT))
            ledger.balance(names[0])
            held.release(reason="done")
            say("done")

        return work

    assert race([both(number) for number in range(12)]) == {"done": 12}
    with dpfed.Ledger(url) as ledger:
        ledger.verify()
        assert ledger.balance("icu").spent == ledger.balance("ward").spent > 0
        assert ledger.balance("icu").reserved == ledger.balance("ward").reserved == 0


def test_one_name_is_one_run_however_many_ask_for_it(url):
    open_accounts(url, "icu")

    def ask(say: Say) -> None:
        ledger = dpfed.Ledger(url, wait=WITHIN)
        try:
            ledger.reserve({"icu": {EVENT: 1}}, run="study-12")
        except (InvalidArgument, LeaseHeld):
            say("refused")
        else:
            say("reserved")

    assert race([ask] * 8) == {"reserved": 1, "refused": 7}


def test_of_many_resumes_of_a_dead_run_one_wins(url):
    open_accounts(url, "icu")
    fork(lambda say: dpfed.Ledger(url).reserve({"icu": {EVENT: 8}}, run="study-12")).end()
    held, holder = os.pipe()

    def resume(say: Say) -> None:
        os.close(holder)
        try:
            dpfed.Ledger(url, wait=WITHIN).resume("study-12").commit({"icu": EVENT})
        except LeaseHeld:
            say("held by another")
        else:
            say("resumed")
            os.read(held, 1)  # the winner lives on until all have asked

    children = start_together([resume] * 8)
    for child in children:
        child.hear()
    os.close(holder)
    os.close(held)
    words = Counter(facts[-1][0] for _, facts in (child.end() for child in children))
    assert words == {"resumed": 1, "held by another": 7}
    assert counted(url, "committed", "icu") == {"study-12": 1}


def test_a_run_is_held_as_long_as_its_process_lives_and_free_at_once_when_it_is_killed(url):
    open_accounts(url, "icu")

    def hold(say: Say) -> None:
        held = dpfed.Ledger(url).reserve({"icu": {EVENT: 2}}, run="study-12")
        say("reserved")
        time.sleep(WITHIN)
        held.release()

    child = fork(hold)
    child.hear()
    with dpfed.Ledger(url) as ledger:
        with pytest.raises(LeaseHeld):
            ledger.resume("study-12")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, but its parent has not looked yet
        ledger.resume("study-12").commit({"icu": EVENT})
        child.end()
        assert ledger.balance("icu").spent > 0


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody else holds the ledger's lock."""
    if url.startswith("sqlite"):
        other = sqlite3.connect(sqlite_path(url), isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
    else:
        other = psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string())
        other.execute("SELECT * FROM head FOR UPDATE")
    try:
        yield
    finally:
        other.rollback()
        other.close()


def test_a_busy_database_is_waited_for_and_then_refused_in_words(url):
    open_accounts(url, "icu")
    before = rows_of(url)
    with dpfed.Ledger(url, wait=0.5) as ledger:
        with locked(url):
            start = time.monotonic()
            with pytest.raises(LedgerUnavailable, match=r"busy.*0\.5 s.*nothing was written"):
                ledger.reserve({"icu": {EVENT: 1}}, run="study-12")
            assert time.monotonic() - start >= 0.4
        assert rows_of(url) == before
        ledger.reserve({"icu": {EVENT: 1}}, run="study-12").commit({"icu": EVENT})
        ledger.verify()


def test_a_lock_that_is_let_go_in_time_is_no_error(url):
    open_accounts(url, "icu")
    with dpfed.Ledger(url, wait=WITHIN) as ledger:
        ledger.balance("icu")
        taken, free = threading.Event(), threading.Event()

        def hold() -> None:
            with locked(url):
                taken.set()
                free.wait(WITHIN)

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait(WITHIN)
        threading.Timer(0.5, free.set).start()
        ledger.reserve({"icu": {EVENT: 1}}, run="study-12").commit({"icu": EVENT})
        assert free.is_set(), "the lock was not waited for"
        holder.join()


def test_readers_do_not_wait_for_a_writer(url):
    open_accounts(url, "icu")
    with dpfed.Ledger(url, wait=0.5) as ledger, locked(url):
        assert ledger.balance("icu").spent == 0
        ledger.verify()
        assert ledger.reservations() == ()


def test_a_new_ledger_may_be_opened_by_many_at_once(new_url):
    for _ in range(3):
        url = new_url()

        def opens(number: int, url: str = url) -> Callable[[Say], None]:
            def work(say: Say) -> None:
                ledger = dpfed.Ledger(url, wait=WITHIN)
                ledger.open(f"account-{number}", epsilon=8.0, delta=1e-5)
                say("opened")

            return work

        assert race([opens(number) for number in range(6)]) == {"opened": 6}
        with dpfed.Ledger(url) as ledger:
            ledger.verify()
            assert len(ledger.accounts()) == 6


def test_a_new_file_may_be_looked_into_by_many_at_once(tmp_path):
    # Two that put it in WAL mode at once are told "locked" without a wait, now and then: see test_database too.
    def looks(url: str) -> Callable[[Say], None]:
        def work(say: Say) -> None:
            with Database(url, wait=WITHIN).reading():
                say("looked")

        return work

    for number in range(40):
        (tmp_path / f"{number}.db").touch()
        assert race([looks(f"sqlite:///{tmp_path}/{number}.db")] * 6) == {"looked": 6}


def test_threads_of_one_process_may_share_a_ledger(url):
    open_accounts(url, "icu", epsilon=2.0)
    with dpfed.Ledger(url, wait=WITHIN) as ledger:
        affordable = ledger.forecast("icu", LARGE)
        words: list[str] = []
        threads = [
            threading.Thread(target=spend, args=(ledger, f"run-{number}", words.append))
            for number in range(affordable + 5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WITHIN)
        assert Counter(words) == {"spent": affordable, "refused": 5}
        ledger.verify()


def test_a_child_that_outlives_its_parent_keeps_what_it_commits(url):
    """SQLite's locks are not inherited: a parent that closes last must not sweep the child's log away."""
    open_accounts(url, "icu")
    closed, closing = os.pipe()

    def parent(say: Say) -> None:
        ledger = dpfed.Ledger(url)
        ledger.reserve({"icu": {EVENT: 1}}, run="parent").commit({"icu": EVENT})

        def child(say: Say) -> None:
            os.close(closing)
            held = ledger.reserve({"icu": {EVENT: 2}}, run="child")
            held.commit({"icu": EVENT})
            say("committed before")
            os.read(closed, 1)
            held.commit({"icu": EVENT})
            say("committed after")

        born = fork(child)
        born.hear()
        ledger.close()
        os.close(closing)
        code, facts = born.end()
        say("drawn", code, facts)

    child = fork(parent)
    os.close(closed)
    os.close(closing)
    code, facts = child.end()
    assert (code, facts) == (0, [["drawn", 0, [["committed before"], ["committed after"]]]])
    with dpfed.Ledger(url) as ledger:
        ledger.verify()
    assert counted(url, "committed", "icu") == {"parent": 1, "child": 2}


def test_forks_while_other_threads_commit_lose_nothing(url):
    open_accounts(url, "icu")
    with dpfed.Ledger(url, wait=WITHIN) as ledger:
        stop, mine = threading.Event(), []

        def commit_on(number: int) -> None:
            held = ledger.reserve({"icu": {EVENT: 1000}}, run=f"thread-{number}")
            while not stop.is_set() and len(mine) < 1000:
                held.commit({"icu": EVENT})
                mine.append(number)

        def in_child(number: int, say: Say) -> None:
            held = ledger.reserve({"icu": {EVENT: 3}}, run=f"child-{number}")
            for _ in range(3):
                held.commit({"icu": EVENT})
                say("drawn")

        threads = [threading.Thread(target=commit_on, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            ends = [fork(partial(in_child, number)).end() for number in range(6)]
        finally:
            stop.set()
            for thread in threads:
                thread.join(WITHIN)
        assert [(code, len(facts)) for code, facts in ends] == [(0, 3)] * 6
        ledger.verify()
    assert counted(url, "committed", "icu").total() == len(mine) + 18
