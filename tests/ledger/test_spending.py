from __future__ import annotations

import json

import pytest

import dpfed
from dpfed.errors import UnknownAccount
from icu import MOST, PROMISE, STEP
from worlds import rows_of


def test_what_happened_is_written_even_past_the_cap_and_marked(url):
    with dpfed.Ledger(url) as ledger:
        ledger.open("h", **PROMISE)
        ledger.open("icu", **PROMISE, parent="h")
        ledger.freeze("h", reason="audit")
        ledger.record({"icu": {STEP: 2 * MOST}}, run="old", reason="found in a drawer")
        for name in ("icu", "h"):
            assert ledger.balance(name).is_overspent
            assert ledger.balance(name).remaining == 0
            assert ledger.forecast(name, STEP) == 0
        rows = [row for row in rows_of(url) if row["kind"] == "recorded"]
        assert [(row["account"], row["origin"], row["run"], row["times"]) for row in rows] == [
            ("icu", "icu", "old", 2 * MOST),
            ("h", "icu", "old", 2 * MOST),
        ]
        assert all(json.loads(row["body"])["after_the_fact"] is True for row in rows)
        ledger.verify()


def test_a_record_of_several_accounts_is_all_or_nothing(ledger):
    head = ledger.head()
    with pytest.raises(UnknownAccount):
        ledger.record({"icu": STEP, "nobody": STEP}, reason="x")
    assert ledger.head() == head
