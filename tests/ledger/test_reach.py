from __future__ import annotations

import pytest

from dpfed.ledger.rules import AccountState, Terms
from forger import Forger
from icu import PROMISE, STEP


@pytest.fixture
def family(ledger):
    """A ward whose parent is the icu, and a later account that carries the ward's charges."""
    ledger.open("ward", **PROMISE, parent="icu")
    held = ledger.reserve({"ward": {STEP: 4}}, run="r")
    held.commit({"ward": STEP})
    ledger.record({"ward": STEP}, reason="forgotten")
    ledger.open("later", **PROMISE, source="ward", overlaps=["ward"])
    held.extend({"ward": {STEP: 2}})
    held.commit({"ward": {STEP: 4}})
    held.release()
    return ledger


def test_a_family_is_sound(family):
    assert Forger(family).again().is_sound() == family.verify()


@pytest.mark.parametrize("kind", ["reserved", "committed", "recorded", "carried"])
def test_a_charge_that_did_not_reach_another_account_is_found(family, kind):
    forger, whose = Forger(family), "later" if kind == "carried" else "icu"
    states = {}

    def moved(row):
        # The balances of the account are made to fit the missing entry.
        if row.account is None:
            return row
        before = states.get(row.account, AccountState.new(Terms.from_dict(ROWS[row.account], 1)))
        cost = COSTS if row.kind in ("carried", "recorded", "reserved", "committed", "released") else ()
        states[row.account] = before.after(row.kind, row.times or 0, cost, row.details())
        return row._replace(state=states[row.account].dumps())

    ROWS = {row.account: row.details() for row in forger.rows if row.kind == "opened"}
    COSTS = Terms.from_dict(ROWS["icu"], 1).cost(STEP)
    forger.again(change=moved).is_sound()
    states.clear()
    if kind == "committed":  # returned instead: then every item adds up
        is_commit = ("icu", "committed")
        forger.again(change=lambda row: row._replace(kind="released") if row[3:1:-1] == is_commit else row)
    else:
        missing = ("reserved", "committed", "released") if kind == "reserved" else (kind,)
        forger.again(drop=lambda row: row.account == whose and row.kind in missing)
    states.clear()
    forger.again(change=moved).is_bad("never reached|may still commit")


def test_what_a_parent_gets_back_before_it_is_committed_is_found(family):
    held = family.reserve({"ward": {STEP: 4}}, run="s")
    held.release()
    forger = Forger(family)
    forger.again(drop=lambda row: row[2:5] == ("released", "ward", "s")).is_bad("may still commit")
