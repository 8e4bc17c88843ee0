from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import dpfed
from dpfed.errors import (
    AccountUnavailable,
    BudgetExceeded,
)
from icu import MOST, PROMISE, STEP


def test_room_that_charges_after_the_fact_have_taken_cannot_be_committed(url):
    with dpfed.Ledger(url) as ledger, dpfed.Ledger(url) as other:
        ledger.open("icu", **PROMISE)
        held = ledger.reserve({"icu": {STEP: MOST}}, run="r", fixed_plan=False)
        held.commit({"icu": {STEP: 2}})
        ledger.record({"icu": {STEP: MOST - 3}}, reason="forgotten")
        held.commit({"icu": STEP})
        head = ledger.head()
        other.top_up("icu", epsilon=2.0, reason="to end the study")
        held.commit({"icu": STEP})  # what this process last knew would refuse it
        other.record({"icu": {STEP: MOST}}, reason="forgotten")
        head = ledger.head()
        with pytest.raises(BudgetExceeded, match="after the fact"):
            held.commit({"icu": STEP})
        assert ledger.head() == head
        ledger.verify()


def test_a_frozen_account_takes_nothing_and_keeps_what_is_reserved(ledger):
    ledger.open("w", **PROMISE, parent="icu")
    held = ledger.reserve({"w": {STEP: 5}}, run="r")
    ledger.freeze("icu", reason="audit")
    head = ledger.head()
    with pytest.raises(AccountUnavailable, match="icu is frozen"):
        held.commit({"w": STEP})
    assert ledger.head() == head
    with pytest.raises(AccountUnavailable):
        held.extend({"w": STEP})
    with pytest.raises(AccountUnavailable):
        ledger.reserve({"w": STEP}, run="s")
    assert ledger.balance("icu").status == "frozen"
    ledger.unfreeze("icu", reason="over")
    held.commit({"w": {STEP: 5}})


def test_an_expired_account_takes_nothing_and_refunds_nothing(ledger, monkeypatch):
    ledger.open("short", **PROMISE, expires=datetime.now(UTC) + timedelta(hours=1))
    held = ledger.reserve({"short": {STEP: 5}}, run="r")
    held.commit({"short": STEP})
    later = time.time_ns() + 2 * 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    with pytest.raises(AccountUnavailable, match="expired"):
        held.commit({"short": STEP})
    with pytest.raises(AccountUnavailable, match="expired"):
        ledger.reserve({"short": STEP}, run="s")
    balance = ledger.balance("short")
    assert balance.status == "expired"
    assert balance.spent > 0
    assert balance.reserved > 0
    ledger.record({"short": STEP}, reason="it happened all the same")
    held.release()
    assert ledger.balance("short").reserved == 0
