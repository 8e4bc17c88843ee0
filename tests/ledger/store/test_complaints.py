"""What a driver complains of, as a sentence that says what happened and what to do."""

from __future__ import annotations

import pytest

from dpfed.errors import LedgerCorrupted, LedgerError, LedgerUnavailable
from dpfed.ledger.store.complaints import MOVED, explain


@pytest.mark.parametrize(
    ("complaint", "kind", "said"),
    [
        ("database is locked", LedgerUnavailable, "busy for more than 30 s"),
        ("canceling statement due to lock timeout", LedgerUnavailable, "busy for more than 30 s"),
        ("attempt to write a readonly database", LedgerUnavailable, "make the file and its folder writable"),
        ("database or disk is full", LedgerUnavailable, "make room, then go on"),
        ("unable to open database file", LedgerUnavailable, "does its folder exist"),
        ("server closed the connection unexpectedly", LedgerUnavailable, "no noise may be drawn"),
        ("database disk image is malformed", LedgerCorrupted, "is damaged"),
        (MOVED, LedgerError, "refused to be rewritten"),
    ],
)
def test_a_complaint_is_explained_with_what_to_do(complaint, kind, said):
    error = explain(f"{complaint}\n  at line 1", "sqlite:///ledger.db", wait=30.0)
    assert type(error) is kind
    assert "the ledger at sqlite:///ledger.db" in str(error)
    assert said in str(error)
    assert f"{complaint} at line 1" in str(error)
