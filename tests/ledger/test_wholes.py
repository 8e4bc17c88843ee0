"""Whole clients and their records: no reservation charges one of them apart from the other."""

from __future__ import annotations

import pytest

import dpfed
from dpfed import events as ev
from dpfed.errors import InvalidArgument

STEP = ev.Gaussian(20.0)
LACKS = "which records would lack"
TOLD = "would not be told"


@pytest.fixture
def of_one_ward(tmp_path):
    """A ledger with accounts of records and of whole clients on the same data, which know nothing of each other."""
    with dpfed.Ledger(tmp_path / "ledger.db") as ledger:
        for name, unit in [("records", "record"), ("whole", "client")]:
            ledger.open(name, epsilon=9.0, delta=1e-5, unit=unit, adjacency="replace_one", source="ward")
        yield ledger


@pytest.mark.parametrize(("first", "then", "why"), [("records", "whole", TOLD), ("whole", "records", LACKS)])
def test_a_run_that_grows_does_not_charge_whole_clients_and_their_records_apart(of_one_ward, first, then, why):
    held = of_one_ward.reserve({first: {STEP: 1}}, run="r", fixed_plan=False)
    with pytest.raises(InvalidArgument, match=why):
        held.extend({then: {ev.Gaussian(3.0): 1}})
    assert of_one_ward.forecast(then, STEP) > 0 == of_one_ward.balance(then).share


def test_naming_both_accounts_pays_no_earlier_charge_of_whole_clients(of_one_ward):
    of_one_ward.reserve({"whole": {STEP: 9}}, run="first")
    with pytest.raises(InvalidArgument, match=LACKS):
        of_one_ward.reserve({"whole": {STEP: 1}, "records": {STEP: 10}}, run="both")


def test_both_accounts_are_charged_the_same_by_one_run(of_one_ward):
    with pytest.raises(InvalidArgument, match=LACKS):
        of_one_ward.reserve({"whole": {STEP: 9}, "records": {STEP: 1}}, run="both")
    of_one_ward.reserve({"whole": {STEP: 1}, "records": {STEP: 3}}, run="both")
    of_one_ward.reserve({"records": {STEP: 1}}, run="records")  # which know of all by now
    with pytest.raises(InvalidArgument, match=TOLD):
        of_one_ward.reserve({"whole": {STEP: 1}}, run="whole")  # their own two are no charge of whole clients


def test_an_account_for_add_remove_is_not_told_by_the_same_event_which_costs_it_less(tmp_path):
    with dpfed.Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("records", epsilon=9.0, delta=1e-5, source="ward")
        ledger.open("whole", epsilon=9.0, delta=1e-5, unit="client", adjacency="replace_one", source="ward")
        with pytest.raises(InvalidArgument, match=LACKS):
            ledger.reserve({"whole": {STEP: 1}, "records": {STEP: 1}}, run="both")


def test_a_parent_of_an_account_of_records_has_its_data_too(tmp_path):
    promise = {"epsilon": 9.0, "delta": 1e-5, "adjacency": "replace_one"}
    with dpfed.Ledger(tmp_path / "ledger.db") as ledger:
        ledger.open("hospital", **promise, source="hospital")
        ledger.open("records", **promise, source="ward", parent="hospital")
        ledger.open("whole", **promise, unit="client", source="ward")
        ledger.reserve({"whole": {STEP: 1}}, run="whole")
        with pytest.raises(InvalidArgument, match="which hospital would lack"):
            ledger.reserve({"hospital": {STEP: 1}}, run="hospital")


def test_what_was_recorded_after_the_fact_stops_what_comes_next(of_one_ward):
    held = of_one_ward.reserve({"records": {STEP: 1}}, run="records", fixed_plan=False)
    of_one_ward.record({"whole": {STEP: 1}, "records": {STEP: 1}}, reason="found later")
    with pytest.raises(InvalidArgument, match=LACKS):
        held.extend({"records": {STEP: 1}})


def test_an_account_of_records_that_lacks_what_its_whole_client_was_charged_for_reserves_nothing(of_one_ward):
    of_one_ward.reserve({"whole": {STEP: 1}}, run="whole").commit({"whole": STEP})
    with pytest.raises(InvalidArgument, match=r"which records would lack: open one .* overlaps=\['whole'\]"):
        of_one_ward.reserve({"records": {STEP: 1}}, run="records")
    assert of_one_ward.balance("records").share == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_whole_client_is_not_charged_where_the_account_of_its_records_would_not_be_told(of_one_ward, is_committed):
    held = of_one_ward.reserve({"records": {STEP: 1}}, run="records")
    if is_committed:
        held.commit({"records": STEP})
    with pytest.raises(InvalidArgument, match=r"records has charges for one record from the same data as whole"):
        of_one_ward.reserve({"whole": {STEP: 1}}, run="whole")
    of_one_ward.reserve({"whole": {STEP: 1}, "records": {STEP: 1}}, run="both").commit({"whole": STEP, "records": STEP})
    of_one_ward.verify()
