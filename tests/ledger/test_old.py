"""Ledgers that earlier versions made, kept as files in ``old/``: each opens, adds up and is charged by this version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import dpfed
from dpfed import events as ev
from dpfed.errors import BudgetExceeded, InvalidArgument, NotReserved
from dpfed.ledger.rows import Head

OLD = Path(__file__).parent / "old"
HEADS = {"part6.db": "22:5bdef80b52e5e8322c56edc73db40f968d72d29c1180a45eab27e0988aa5c16b"}
STEP = ev.Gaussian(4.0)
DATA = b"the records of icu"


@pytest.fixture(params=sorted(HEADS))
def old(request, tmp_path):
    """A copy of an old ledger, and its head when it was made."""
    copy = tmp_path / "ledger.db"
    shutil.copyfile(OLD / request.param, copy)
    return copy, Head.parse(HEADS[request.param])


def test_an_old_ledger_opens_and_adds_up_and_contains_its_head(old):
    file, head = old
    with dpfed.Ledger(file) as ledger:
        ledger.require(head)
        assert ledger.verify().rows >= head.sequence
        assert [each.account.name for each in ledger.accounts()] == ["icu", "ward", "lab", "closed"]
        assert ledger.balance("icu").spent == pytest.approx(3.629335984842814)
        assert ledger.balance("closed").mode == "exact"
        assert ledger.balance("lab").cap.epsilon == 7.0


def test_an_old_reservation_is_resumed_and_charged(old):
    file, _ = old
    with dpfed.Ledger(file) as ledger:
        held = ledger.resume("study-12")
        assert held.left("icu", STEP) == 7
        held.commit({"icu": {STEP: 7}})
        with pytest.raises(NotReserved):
            held.commit({"icu": STEP})
        before = ledger.balance("icu").spent
    with dpfed.Ledger(file) as ledger:
        assert ledger.balance("icu").spent == before > 3.7
        ledger.verify()


def test_an_old_account_takes_what_fits_and_nothing_more(old):
    file, _ = old
    with dpfed.Ledger(file) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.reserve({"icu": {STEP: 1000}}, run="greedy-again")
        held = ledger.reserve({"ward": {ev.Gaussian(8.0): 1}}, run="ward-2")
        held.commit({"ward": ev.Gaussian(8.0)})
        ledger.verify()


def test_data_that_an_old_ledger_knows_are_known_again(old):
    file, _ = old
    with dpfed.Ledger(file) as ledger:
        with pytest.raises(InvalidArgument, match="icu"):
            ledger.open("second", epsilon=8.0, delta=1e-5, source=DATA)
        ledger.open("other", epsilon=8.0, delta=1e-5, source=b"other records")
        ledger.verify()
