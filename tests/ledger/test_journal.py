"""The last entries of accounts and items are found, and without reading what lies before them."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import sqlalchemy as sa

import dpfed
from dpfed import events as ev
from dpfed.ledger.journal import last_of_accounts, last_of_items
from dpfed.ledger.store.database import Database
from worlds import EVENT, open_accounts, rows_of

OTHER = ev.Gaussian(noise_multiplier=50.0)


def last_by(url, column):
    """The number of the last entry for each value of the column, by reading all of them."""
    return {row[column]: row["seq"] for row in rows_of(url) if row[column] is not None}


def test_the_last_entries_of_accounts_and_items_are_those_that_reading_everything_finds(url):
    chance = np.random.default_rng(1)
    names = [f"account-{number}" for number in range(3)]
    open_accounts(url, *names)
    with dpfed.Ledger(url) as ledger:
        runs = []
        for number in range(8):
            account = names[chance.integers(len(names))]
            runs.append((account, ledger.reserve({account: {EVENT: 3, OTHER: 2}}, run=f"run-{number}")))
        for _ in range(30):
            account, run = runs[chance.integers(len(runs))]
            event = (EVENT, OTHER)[chance.integers(2)]
            if run.left(account, event):
                run.commit({account: event})
            elif chance.random() < 0.3:
                run.release()
        ledger.freeze(names[0], reason="audit")
        items, opened = last_by(url, "item"), [balance.account.opened for balance in ledger.accounts()]
        with ledger._store.reading() as link:
            assert {row.item: row.seq for row in last_of_items(link, list(items))} == items
            assert {row.account: row.seq for row in last_of_accounts(link, opened)} == last_by(url, "account")
        ended = [row for row in rows_of(url) if row["left"] == 0]
        assert 0 < len(ended) < len(items)  # both ways were taken


def test_an_item_that_ended_has_no_later_entry(url):
    open_accounts(url, "icu")
    with dpfed.Ledger(url) as ledger:
        run = ledger.reserve({"icu": {EVENT: 2, OTHER: 1}}, run="study-12")
        run.commit({"icu": {EVENT: 2}})
        run.release()
        run.extend({"icu": {EVENT: 1}})
        run.commit({"icu": EVENT})
        run.release()
    by_item = {}
    for row in rows_of(url):
        if row["item"] is not None:
            by_item.setdefault(row["item"], []).append(row["left"])
    assert sorted(by_item.values()) == [[1, 0], [1, 0], [2, 0]]


@pytest.mark.parametrize("look", [last_of_accounts, last_of_items])
def test_nothing_is_read_but_the_ends_of_indexes(url, look):
    open_accounts(url, "icu")
    asked = []
    with dpfed.Ledger(url) as ledger:
        ledger.reserve({"icu": {EVENT: 2}}, run="study-12")
        with ledger._store.reading() as link:
            is_sqlite = ledger._store.database.is_sqlite
            if not is_sqlite:  # which reads small tables whole, as it may
                link.execute(sa.text("SET LOCAL enable_seqscan = off"))
                link.execute(sa.text("SET LOCAL enable_bitmapscan = off"))
            sa.event.listen(link, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
            assert len(list(look(link, [1]))) == (look is last_of_accounts)
            (statement, values) = asked[0]
            explain = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN "
            plan = "\n".join(str(row) for row in link.exec_driver_sql(explain + statement, values))
    assert not re.search(r"SCAN entries|Seq Scan|TEMP B-TREE|Sort\b|Aggregate", plan), plan
    assert "entries_of_account" in plan
    assert ("entries_ended" in plan) is (look is last_of_items)
    assert is_sqlite or "Scan Backward using entries_of_account" in plan


def test_what_is_known_survives_a_pause_in_which_the_connection_may_have_died(url):
    open_accounts(url, "icu")
    with dpfed.Ledger(url) as ledger:
        run = ledger.reserve({"icu": {EVENT: 5}}, run="study-12")
        run.commit({"icu": EVENT})
        known = ledger._store._view
        ledger._store.database._used = -math.inf
        run.commit({"icu": EVENT})
        assert ledger._store._view is known
        assert known.head == ledger.head()
        run.commit({"icu": EVENT})
        assert run.left("icu") == 2
        ledger.verify()


def test_an_interrupt_as_a_transaction_begins_leaves_no_lock(url, monkeypatch):
    open_accounts(url, "icu")
    with dpfed.Ledger(url, wait=2.0) as ledger:
        run = ledger.reserve({"icu": {EVENT: 5, OTHER: 5}}, run="study-12")
        begin = Database._begin

        def interrupted(self):
            begin(self)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Database, "_begin", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run.commit({"icu": {EVENT: 1, OTHER: 1}})
        with dpfed.Ledger(url, wait=2.0) as other:
            other.freeze("icu", reason="audit")
            other.unfreeze("icu", reason="audit is over")
        run.commit({"icu": {EVENT: 1, OTHER: 1}})
        assert run.left("icu") == 8
        ledger.verify()
