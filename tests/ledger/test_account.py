"""Managers and accountants that are charged to an account of a ledger: before their noise, across restarts."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from dpfed import PrivacyAccountant, PrivacyManager
from dpfed.errors import (
    AccountUnavailable,
    AdjacencyMismatch,
    BudgetExceeded,
    InvalidArgument,
    LeaseHeld,
    LeaseLost,
    LedgerError,
)
from dpfed.events import Gaussian
from dpfed.ledger.ledger import Ledger
from dpfed.manager.budget import PrivacyBudget
from dpfed.mechanisms.gaussian import GaussianMechanism

GRADIENT = np.ones(3)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as opened:
        opened.open("clients", epsilon=1.0, delta=1e-5, unit="client")
        opened.open("records", epsilon=8.0, delta=1e-5)
        yield opened


def a_manager(ledger, run="study", account="clients", rounds=5, **others):
    return PrivacyManager(1.0, 1e-5, 1.0, rounds, account=ledger.account(account), run=run, **others)


def committed(ledger, account):
    return sum(line.count for line in ledger.statement(account).lines if line.kind == "committed")


def test_a_manager_reserves_all_rounds_when_it_is_made(ledger):
    manager = a_manager(ledger)
    (held,) = ledger.reservations()
    assert held.reserved == {"clients": {manager.event: 5}}
    assert ledger.balance("clients").spent == 0


def test_a_round_is_on_disk_before_its_noise_is_drawn(ledger, monkeypatch):
    manager, seen = a_manager(ledger), []
    draw = GaussianMechanism.add_noise
    monkeypatch.setattr(
        GaussianMechanism, "add_noise", lambda self, v: (seen.append(committed(ledger, "clients")), draw(self, v))[1]
    )
    manager.apply_privacy(GRADIENT)
    manager.apply_privacy(GRADIENT)
    assert seen == [1, 2]


def test_no_noise_is_drawn_when_the_ledger_refuses(ledger, monkeypatch):
    manager = a_manager(ledger)
    ledger.freeze("clients", reason="audit")
    monkeypatch.setattr(GaussianMechanism, "add_noise", lambda self, v: pytest.fail("noise without a charge"))
    with pytest.raises(AccountUnavailable, match="frozen"):
        manager.apply_privacy(GRADIENT)
    assert manager.privacy_budget.rounds_used == 0


@pytest.mark.filterwarnings("ignore::dpfed.manager.budget.PrivacyBudgetWarning")
def test_the_same_run_goes_on_after_a_restart_and_ends_in_time(ledger):
    for _ in range(2):
        a_manager(ledger).apply_privacy(GRADIENT)
    manager = a_manager(ledger)
    assert manager.privacy_budget.rounds_used == 2
    for _ in range(3):
        manager.apply_privacy(GRADIENT)
    with pytest.raises(BudgetExceeded):
        manager.apply_privacy(GRADIENT)
    with pytest.raises(BudgetExceeded):
        a_manager(ledger).apply_privacy(GRADIENT)
    assert committed(ledger, "clients") == 5


def test_a_manager_whose_run_was_taken_over_adds_no_noise(ledger):
    old, new = a_manager(ledger), a_manager(ledger)
    with pytest.raises(LeaseLost):
        old.apply_privacy(GRADIENT)
    new.apply_privacy(GRADIENT)
    assert committed(ledger, "clients") == 1


def test_another_process_cannot_join_a_run_that_is_alive(ledger):
    manager = a_manager(ledger)
    child = os.fork()
    if child == 0:
        try:
            a_manager(ledger)
        except LeaseHeld:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    manager.apply_privacy(GRADIENT)


def test_another_plan_under_the_same_run_is_refused(ledger):
    a_manager(ledger)
    with pytest.raises(InvalidArgument, match="another plan"):
        a_manager(ledger, rounds=6)


def test_a_mistaken_run_does_not_cost_its_holder_the_lease(ledger):
    manager = a_manager(ledger)
    with pytest.raises(InvalidArgument, match="another plan"):
        a_manager(ledger, rounds=6)
    manager.apply_privacy(GRADIENT)
    assert committed(ledger, "clients") == 1


def test_rounds_that_were_never_used_are_returned(ledger):
    manager = a_manager(ledger)
    manager.apply_privacy(GRADIENT)
    manager.release()
    assert not ledger.reservations()
    with pytest.raises(LedgerError):
        manager.apply_privacy(GRADIENT)


def test_a_manager_that_does_not_fit_is_refused_when_it_is_made(ledger):
    ledger.open("small", epsilon=0.5, delta=1e-5, unit="client")
    with pytest.raises(BudgetExceeded, match=r"would fit|noise multiplier"):
        a_manager(ledger, account="small")


def test_the_unit_and_adjacency_of_the_account_must_be_those_of_the_charge(ledger):
    with pytest.raises(InvalidArgument, match="never added up"):
        a_manager(ledger, account="records")
    a_manager(ledger, account="records", per_example=True)
    ledger.open("swaps", epsilon=1.0, delta=1e-5, unit="client", adjacency="replace_one")
    with pytest.raises(AdjacencyMismatch):
        a_manager(ledger, run="other", account="swaps")
    with pytest.raises(AdjacencyMismatch):
        PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("swaps"), run="other")


@pytest.mark.parametrize("given", [{"run": "study"}, {"account": True}])
def test_account_and_run_go_together(ledger, given):
    if "account" in given:
        given = {"account": ledger.account("clients")}
    with pytest.raises(InvalidArgument, match="run"):
        PrivacyBudget(1.0, 1e-5, 5, **given)


def test_an_accountant_pays_for_a_block_before_its_first_step(ledger):
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"), run="sgd", block=100)
    assert accountant.steps == 0
    assert committed(ledger, "records") == 100


def test_what_is_committed_is_never_less_than_what_was_stepped(ledger):
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"), run="sgd", block=30)
    for steps in (1, 29, 30, 7, 100, 3):
        accountant.step(steps)
        assert paid(ledger, "records") >= accountant.steps + steps  # the next such chunk is paid as well
    assert recorded(ledger, "records") == 100 - 23  # more at once than was ever paid ahead


def paid(ledger, account):
    return committed(ledger, account) + recorded(ledger, account)


def recorded(ledger, account):
    return sum(line.count for line in ledger.statement(account).lines if line.kind == "recorded")


def test_an_accountant_stops_when_the_account_is_used_up(ledger):
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"), run="sgd", block=1000)
    while not accountant.is_budget_exceeded():
        accountant.step(500)
    assert committed(ledger, "records") == accountant.steps + accountant._prepaid.paid
    assert not ledger.balance("records").is_overspent
    assert accountant.get_epsilon() <= 8.0
    assert recorded(ledger, "records") == 0


def test_steps_taken_all_the_same_are_recorded_after_the_fact_and_refused(ledger):
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"), run="sgd", block=1000)
    while not accountant.is_budget_exceeded():
        accountant.step(500)
    left = accountant._prepaid.paid
    with pytest.raises(BudgetExceeded, match="after the fact"):
        accountant.step(500)
    assert recorded(ledger, "records") == 500 - left
    assert ledger.balance("records").is_overspent
    ledger.verify()


def test_what_compose_records_is_charged_after_the_fact(ledger):
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"), run="sgd")
    accountant.compose(Gaussian(4.0), 2)
    (line,) = [line for line in ledger.statement("records").lines if line.kind == "recorded"]
    assert (line.event, line.count, line.run) == (Gaussian(4.0), 2, "sgd")


def test_a_restored_accountant_pays_again_and_never_too_little(ledger):
    icu = ledger.account("records")
    accountant = PrivacyAccountant(1.0, 0.01, 1e-5, account=icu, run="sgd", block=50)
    accountant.step(40)
    restored = PrivacyAccountant.from_state_dict(accountant.state_dict(), account=icu, run="sgd", block=50)
    restored.step(50)
    assert restored.steps == 90
    assert committed(ledger, "records") >= 90
    with pytest.raises(LeaseLost):
        accountant.step(50)


def test_an_accountant_with_an_account_needs_a_run_and_a_step(ledger):
    with pytest.raises(InvalidArgument, match="run"):
        PrivacyAccountant(1.0, 0.01, 1e-5, account=ledger.account("records"))
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        PrivacyAccountant(delta=1e-5, account=ledger.account("records"), run="sgd")


def test_an_account_without_room_refuses_the_accountant(ledger):
    ledger.open("tiny", epsilon=0.01, delta=1e-5)
    with pytest.raises(BudgetExceeded), warnings.catch_warnings():
        PrivacyAccountant(0.5, 0.5, 1e-5, account=ledger.account("tiny"), run="sgd")
    assert ledger.balance("tiny").spent == 0
