"""Attacks on the ledger that once worked: each of them left less on an account than was released from its data."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import pytest

from dpfed import events as ev
from dpfed.accounting.accountant import PrivacyAccountant
from dpfed.errors import BudgetExceeded, PrivacyError
from dpfed.ledger.rows import Draft, compact
from dpfed.ledger.rules import AccountState, Terms
from dpfed.report.statement import make_page
from forger import Forger
from icu import MOST, PROMISE, STEP

# What is reserved may not be drawn any more when a charge after the fact has taken its room.


def test_a_commit_never_takes_an_account_past_its_cap(ledger):
    held = ledger.reserve({"icu": {STEP: MOST}}, run="r")
    ledger.record({"icu": {STEP: 10}}, reason="forgotten")
    held.commit({"icu": {STEP: MOST - 10}})
    head = ledger.head()
    with pytest.raises(BudgetExceeded, match="after the fact"):
        held.commit({"icu": STEP})
    assert ledger.head() == head
    assert not ledger.balance("icu").is_overspent
    ledger.top_up("icu", epsilon=1.0, reason="to go on")
    held.commit({"icu": STEP})
    ledger.verify()


def test_a_commit_never_takes_a_parent_past_its_cap(ledger):
    ledger.open("ward", **PROMISE, parent="icu")
    held = ledger.reserve({"ward": {STEP: MOST}}, run="r")
    ledger.record({"icu": STEP}, reason="forgotten")
    with pytest.raises(BudgetExceeded, match="icu"):
        held.commit({"ward": {STEP: MOST}})
    held.commit({"ward": {STEP: MOST - 1}})


# Steps that are paid for once are taken once.


def test_paid_steps_are_not_taken_a_second_time_in_a_forked_process(ledger):
    accountant = PrivacyAccountant(8.0, delta=1e-5, account=ledger.account("icu"), run="r", block=10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            accountant.step()
            os.write(write, b"taken")
        except BudgetExceeded:
            os.write(write, b"refused")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
    accountant.step()


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, pickle.dumps])
def test_paid_steps_are_not_copied(ledger, twin):
    accountant = PrivacyAccountant(8.0, delta=1e-5, account=ledger.account("icu"), run="r", block=10)
    with pytest.raises(PrivacyError, match="second time"):
        twin(accountant._prepaid)


def test_threads_that_take_paid_steps_pay_for_each(ledger):
    accountant = PrivacyAccountant(8.0, delta=1e-5, account=ledger.account("icu"), run="r", block=3)
    prepaid = accountant._prepaid
    assert prepaid is not None
    threads = [threading.Thread(target=lambda: [prepaid.take(1) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    committed = sum(line.count or 0 for line in ledger.statement("icu").lines if line.kind == "committed")
    assert committed == 80 + prepaid.paid


# The ε of a run is that of all it does to the account's data.


def test_the_epsilon_of_a_run_counts_what_reaches_the_account_from_its_children(ledger):
    ledger.open("ward", **PROMISE, parent="icu")
    both = ledger.reserve({"ward": {STEP: 20}, "icu": {STEP: 5}}, run="both")
    ledger.open("alone", **PROMISE)
    alone = ledger.reserve({"alone": {STEP: 25}}, run="alone")
    assert both.epsilon("icu") == alone.epsilon("alone")


def test_the_epsilon_of_a_run_that_grew_is_not_that_of_a_fixed_plan(ledger):
    held = ledger.reserve({"icu": {STEP: 10}}, run="r")
    fixed = held.epsilon("icu")
    held.extend({"icu": {STEP: 10}})
    assert ledger.balance("icu").reserved == pytest.approx(held.epsilon("icu"))
    assert ledger.resume("r").epsilon("icu") == held.epsilon("icu") > fixed
    ledger.open("planned", **PROMISE)
    assert held.epsilon("icu") > ledger.reserve({"planned": {STEP: 20}}, run="s").epsilon("planned")


# A statement says who else is charged for the same data.


@pytest.mark.parametrize("other", [{"unit": "person"}, {"adjacency": "replace_one"}])
def test_a_statement_names_accounts_of_another_kind_on_its_source(ledger, other):
    assert "sees every charge on its source" in dict(make_page(ledger.statement("icu")).notes)["The source"]
    ledger.open("twin", **PROMISE, **other, source="icu")
    for one, another in (("icu", "twin"), ("twin", "icu")):
        said = dict(make_page(ledger.statement(one)).notes)["The source"]
        assert "every charge on its source" not in said
        assert another in said


def test_a_statement_names_the_parent_that_can_be_charged_without_it(ledger):
    ledger.open("ward", **PROMISE, parent="icu")
    said = dict(make_page(ledger.statement("ward")).notes)["The source"]
    assert "icu" in said
    assert "ward" not in dict(make_page(ledger.statement("icu")).notes)["The source"]


# Forged entries whose digests are right.


def test_an_entry_without_an_account_cannot_fill_an_item_again(ledger):
    held = ledger.reserve({"icu": {STEP: 1}}, run="r")
    held.commit({"icu": STEP})
    item = Forger(ledger).rows[-1].item
    Forger(ledger).add(Draft("leased", run="r", item=item, left=99)).is_bad("leased")
    Forger(ledger).add(Draft("committed", run="r", item=item, left=99)).is_bad("account")


@pytest.mark.parametrize("kind", ["refused", "frozen", "recorded"])
def test_an_entry_that_takes_nothing_cannot_fill_an_item_again(ledger, kind):
    ledger.reserve({"icu": {STEP: 1}}, run="r").commit({"icu": STEP})
    forger = Forger(ledger)
    cost = Terms.from_dict(forger.rows[0].details(), 1).cost(STEP)
    state = AccountState.loads(str(forger.rows[-1].state)).after(kind, 1, cost)
    shown = compact([str(amount) for amount in cost])
    item = forger.rows[-1].item
    draft = Draft(kind, "icu", item=item, left=99, event=ev.dumps(STEP), times=1, cost=shown, state=state.dumps())
    forger.add(draft).is_bad("item")


def test_the_costs_of_an_accountant_that_nobody_knows_are_not_believed(ledger):
    ledger.record({"icu": STEP}, reason="forgotten")
    forger = Forger(ledger)
    free = AccountState.loads(str(forger.rows[0].state)).after("recorded", 1, (0,))

    def cheap(row):
        if row.kind != "recorded":
            return row
        return row._replace(cost='["0"]', state=free.dumps(), code="9.9+99")

    forger.again(change=cheap).is_bad("accountant")


@pytest.mark.parametrize("added", [-4.0, 0.0, float("inf")])
def test_a_top_up_that_adds_nothing_or_everything_is_found(ledger, added):
    forger = Forger(ledger)
    body = {"epsilon": added, "reason": "x"}
    state = AccountState.loads(str(forger.rows[0].state)).after("topped_up", body=body)
    text = '{"epsilon":Infinity,"reason":"x"}' if added == float("inf") else compact(body)
    plain = state if added != float("inf") else AccountState.loads(str(forger.rows[0].state))
    forger.add(Draft("topped_up", "icu", state=plain.dumps(), body=text)).is_bad("cap|balance|read")


def test_a_commit_on_a_frozen_account_is_found(ledger):
    held = ledger.reserve({"icu": {STEP: 2}}, run="r")
    ledger.freeze("icu", reason="audit")
    ledger.unfreeze("icu", reason="done")
    held.commit({"icu": STEP})
    forger = Forger(ledger)

    def still_frozen(row):
        if row.kind != "committed":
            return row
        return row._replace(state=AccountState.loads(str(row.state)).after("frozen").dumps())

    forger.again(drop=lambda row: row.kind == "unfrozen", change=still_frozen).is_bad("frozen")


def test_the_step_that_is_recorded_is_the_step_that_is_paid_for(ledger):
    accountant = PrivacyAccountant(8.0, delta=1e-5, account=ledger.account("icu"), run="r", block=10)
    with pytest.raises(AttributeError):
        accountant.step_event = ev.Gaussian(0.1)
