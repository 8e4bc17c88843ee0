"""Time in a ledger never goes back, whatever the machine's clock says."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta

import pytest

import dpfed
from dpfed.errors import AccountUnavailable, InvalidArgument, LedgerUnavailable
from dpfed.events import Gaussian
from dpfed.ledger import clock
from worlds import rows_of

STEP = {"icu": Gaussian(40.0)}
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


class Clock:
    """This machine's clock, in a test's hand."""

    def __init__(self, monkeypatch) -> None:
        self._monkeypatch = monkeypatch
        self.set(NOON)

    def set(self, at: datetime) -> None:
        ticks = int(at.timestamp()) * 10**9
        began = time.monotonic_ns()
        self._monkeypatch.setattr(clock.time, "time_ns", lambda: ticks + time.monotonic_ns() - began)


@pytest.fixture
def machine(monkeypatch):
    return Clock(monkeypatch)


def times(url: str) -> list[str]:
    return [row["at"] for row in rows_of(url)]


def test_an_entry_says_the_later_of_clock_and_last_entry(url, machine):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study")
        machine.set(NOON - timedelta(minutes=4))
        held.commit(STEP)
        held.commit(STEP)
        held.mark("icu", STEP)
        machine.set(NOON + timedelta(minutes=1))
        held.commit(STEP)
        ledger.verify()
    found = times(url)
    assert found == sorted(found)
    assert found[-2] < "2030-06-01T12:00:05"
    assert found[-1] >= "2030-06-01T12:01"


def test_a_clock_five_minutes_behind_is_refused_and_nothing_is_written(url, machine):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study")
        head = ledger.head()
        machine.set(NOON - timedelta(minutes=5, seconds=30))
        for attempt in (
            lambda: held.commit(STEP),
            lambda: held.mark("icu"),
            lambda: held.release(),
            lambda: ledger.reserve(STEP, run="second"),
            lambda: ledger.freeze("icu", reason="audit"),
        ):
            with pytest.raises(LedgerUnavailable, match="accept-clock"):
                attempt()
        assert ledger.head() == head
        machine.set(NOON + timedelta(minutes=1))
        held.commit(STEP)


def test_a_clock_that_was_accepted_goes_on_and_may_not_be_set_back_further(url, machine):
    with dpfed.Ledger(url) as ledger:
        machine.set(NOON + timedelta(days=365))  # wrong
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study")
        machine.set(NOON)  # right
        with pytest.raises(LedgerUnavailable, match="accept-clock"):
            held.commit(STEP)
        ledger.accept_clock(reason="the battery was replaced")
        for _ in range(3):
            held.commit(STEP)
        machine.set(NOON - timedelta(hours=1))
        with pytest.raises(LedgerUnavailable, match="accept-clock"):
            held.commit(STEP)
        machine.set(NOON + timedelta(days=366))
        held.commit(STEP)
        machine.set(NOON)  # behind again, which nobody has accepted
        with pytest.raises(LedgerUnavailable, match="accept-clock"):
            held.commit(STEP)
        machine.set(NOON + timedelta(days=367))
        ledger.verify()
    found = times(url)
    assert found == sorted(found)
    assert [("battery" in row["body"]) for row in rows_of(url) if row["kind"] == "clock"] == [True]


def test_there_is_nothing_to_accept_where_the_clock_is_right(url, machine):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        with pytest.raises(InvalidArgument, match="nothing to accept"):
            ledger.accept_clock(reason="just so")
        machine.set(NOON - timedelta(hours=1))
        with pytest.raises(InvalidArgument, match="reason"):
            ledger.accept_clock(reason=" ")
        assert ledger.head().sequence == 1


def test_an_account_that_expired_does_not_come_back_when_the_clock_is_set_back(url, machine):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, expires=date(2030, 6, 30))
        ledger.open("other", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study")
        machine.set(NOON + timedelta(days=40))
        ledger.freeze("other", reason="any entry")
        machine.set(NOON)
        ledger.accept_clock(reason="we say so")
        with pytest.raises(AccountUnavailable, match="expired"):
            held.commit(STEP)
        assert ledger.balance("icu").status == "expired"


REFUSED = {
    "commit": lambda ledger, held: held.commit(STEP),
    "several": lambda ledger, held: held.commit({"icu": {Gaussian(40.0): 2}}),
    "mark": lambda ledger, held: held.mark("icu"),
    "unseen": lambda ledger, held: held.commit_unseen({}),
    "extend": lambda ledger, held: held.extend(STEP),
    "reserve": lambda ledger, held: ledger.reserve(STEP, run="second"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_was_refused_after_expiry_is_refused_when_the_clock_is_set_back(url, machine, how):
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, expires=date(2030, 6, 1))
        held = ledger.reserve({"icu": {Gaussian(40.0): 9}}, run="study", fixed_plan=False)
        held.commit(STEP)
        for _ in range(2):
            machine.set(NOON + timedelta(hours=12, minutes=1))
            for _ in range(3):
                with pytest.raises(AccountUnavailable, match="expired"):
                    REFUSED[how](ledger, held)
            machine.set(NOON + timedelta(hours=11, minutes=58))
            with pytest.raises(AccountUnavailable, match="expired"):
                REFUSED[how](ledger, held)
            assert ledger.balance("icu").status == "expired"
        ledger.verify()
        assert held.left("icu") == 8
        assert "expired" in ledger.statement("icu").lines[-1].note
    if how not in ("extend", "reserve"):
        assert [row["kind"] for row in rows_of(url)].count("refused") == 1


def test_a_time_at_the_end_of_all_times_is_not_passed():
    assert clock.later("9999-12-31T23:59:59.999999Z") == "9999-12-31T23:59:59.999999Z"
    assert clock.later("2026-01-01T00:00:00.999999Z") == "2026-01-01T00:00:01.000000Z"
