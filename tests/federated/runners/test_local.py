"""The runner charges a cohort before any of it draws noise, in one transaction, and never more than was reserved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.errors import AccountUnavailable, BudgetExceeded, InvalidArgument, LedgerRolledBack
from dpfed.federated.client import Client
from dpfed.federated.runners.local import LocalRunner
from dpfed.federated.update import Failure, Task
from dpfed.plan import Plan
from dpfed.runs import Update

TASK = Task(1, np.zeros(3))


class Crash(BaseException):
    """Stands for the end of the process: nothing in dpfed catches it."""


def enrolled(study, **options) -> LocalRunner:
    runner = study.runner(**options)
    runner.enroll(study.plan, np.zeros(3))
    return runner


def test_enrolling_reserves_every_round_of_every_client(study):
    enrolled(study)
    (held,) = study.ledger.reservations()
    assert held.reserved == study.plan.charges(study.clients)
    assert (held.committed, held.left) == (0, 3 * study.plan.rounds)


def test_a_plan_over_one_accounts_cap_reserves_nothing_anywhere(study):
    local = dict(study.plan.local)
    local["west"] = replace(local["west"], noise_multiplier=local["west"].noise_multiplier / 2)
    with pytest.raises(BudgetExceeded):
        study.runner().enroll(Plan("study", study.plan.rounds, local), np.zeros(3))
    assert study.ledger.reservations() == ()


def test_a_model_that_does_not_fit_is_refused_before_anything_is_reserved(study):
    with pytest.raises(ValueError, match="shapes"):
        study.runner().enroll(study.plan, np.zeros(2))
    assert study.ledger.reservations(open_only=False) == ()


def test_the_whole_cohort_is_charged_before_the_first_client_looks_at_its_data(study):
    seen = []

    class Watched(Client):
        def train(self, *arguments):
            seen.append(study.committed())
            return super().train(*arguments)

    study.clients = [Watched(client.name, client.data, client.account) for client in study.clients]
    updates = list(enrolled(study).train(TASK, ["north", "west", "harbour"]))
    assert seen == [{"north": 1, "west": 1, "harbour": 1}] * 3
    assert [update.client for update in updates] == ["north", "west", "harbour"]


def test_a_crash_between_charge_and_noise_leaves_the_charge(study):
    class Mortal(Client):
        def train(self, *arguments):
            raise Crash

    study.clients[0] = Mortal("north", study.clients[0].data, "account-north")
    with pytest.raises(Crash):
        next(enrolled(study).train(TASK, ["north", "west"]))
    assert study.committed() == {"north": 1, "west": 1, "harbour": 0}


def test_no_client_trains_when_its_charge_cannot_be_written(study):
    runner = enrolled(study)
    before = study.model.calls
    study.ledger.freeze("account-west", reason="a question of the patients' council")
    with pytest.raises(AccountUnavailable):
        list(runner.train(TASK, ["north", "west"]))
    assert study.model.calls == before
    assert study.committed() == {"north": 0, "west": 0, "harbour": 0}


def test_an_exhausted_client_is_not_asked(study):
    runner = enrolled(study)
    for _ in range(study.plan.rounds):
        assert all(isinstance(outcome, Update) for outcome in runner.train(TASK, ["north"]))
    calls = study.model.calls
    assert list(runner.train(TASK, ["north"])) == [Failure("north", "exhausted")]
    assert study.model.calls == calls
    assert study.committed()["north"] == study.plan.rounds


def test_a_client_that_breaks_down_is_a_failure_and_the_others_go_on(study):
    class Broken(Client):
        def train(self, *arguments):
            raise ValueError("patient 4711")

    study.clients[0] = Broken("north", study.clients[0].data, "account-north")
    failure, update = enrolled(study).train(TASK, ["north", "west"])
    assert (failure.client, failure.reason) == ("north", "failed")
    assert "4711" not in repr(failure)
    assert update.client == "west"


def test_an_update_carries_a_head_that_the_ledger_contains(study):
    (update,) = enrolled(study).train(TASK, ["west"])
    study.ledger.require(update.head)


def test_enrolling_again_continues_the_same_reservation(study, again):
    list(enrolled(study).train(TASK, ["north"]))
    other = again()
    enrolled(other)
    (held,) = other.ledger.reservations()
    assert (held.committed, held.left) == (1, 3 * study.plan.rounds - 1)


def test_a_head_that_the_ledger_lacks_is_refused(study):
    with pytest.raises(LedgerRolledBack):
        study.runner().enroll(study.plan, np.zeros(3), ["999:" + 64 * "a"])


def test_a_run_name_of_another_plan_is_refused(study):
    enrolled(study)
    other = Plan("study", 2, study.plan.local)
    with pytest.raises(InvalidArgument, match="another plan"):
        study.runner().enroll(other, np.zeros(3))


def test_a_spent_run_is_not_begun_again_but_may_be_ended(study):
    runner = enrolled(study)
    for _ in range(study.plan.rounds):
        updates = list(runner.train(TASK, ["north", "west", "harbour"]))
    with pytest.raises(InvalidArgument, match="is spent"):
        study.runner().enroll(study.plan, np.zeros(3))
    study.runner().enroll(study.plan, np.zeros(3), [updates[0].head])


def test_finishing_returns_what_was_never_committed_and_twice_is_once(study):
    runner = enrolled(study)
    list(runner.train(TASK, ["north"]))
    runner.finish("study")
    entries = study.ledger.head().sequence
    runner.finish("study")
    assert study.ledger.head().sequence == entries
    assert study.ledger.reservations() == ()
    assert study.committed()["north"] == 1
    study.ledger.verify()


def test_an_account_for_another_unit_is_refused_before_anything_is_reserved(study):
    study.ledger.open("people", epsilon=4.0, delta=1e-5, unit="person")
    study.clients[0] = Client(study.clients[0].name, study.clients[0].data, "people")
    with pytest.raises(InvalidArgument, match="one person"):
        study.runner().enroll(study.plan, np.zeros(3))
    assert study.ledger.reservations(open_only=False) == ()
