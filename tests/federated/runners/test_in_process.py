"""The runner charges a cohort before any of it draws noise, in one transaction, and never more than was reserved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpfed.errors import (
    AccountUnavailable,
    AdjacencyMismatch,
    BudgetExceeded,
    InvalidArgument,
    LedgerRolledBack,
    NotReserved,
)
from dpfed.federated.algorithms.protocol import LocalObjective, ModelChange
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.guarantee import Guarantee
from dpfed.plan.cohort import FixedCohort, PoissonCohort
from dpfed.plan.plan import Plan
from dpfed.randomness import SeededSource
from studies import DIMENSION, SIZES, Crash, SilentSource

NAMES = tuple(SIZES)
TASK = Task(1, {"weights": np.zeros(DIMENSION)})


def enrolled(study, **options) -> LocalRunner:
    runner = study.runner(**options)
    runner.enroll(study.plan, np.zeros(DIMENSION))
    return runner


def test_enrolling_reserves_every_round_of_every_client(study):
    enrolled(study)
    (held,) = study.ledger.reservations()
    assert held.reserved == study.plan.charges(study.clients)
    assert (held.committed, held.left) == (0, 3 * study.plan.rounds)


def test_a_plan_over_one_accounts_cap_reserves_nothing_anywhere(study):
    local = dict(study.plan.local)
    local["west"] = replace(local["west"], noise_multiplier=0.01)
    with pytest.raises(BudgetExceeded):
        study.runner().enroll(Plan("study", study.plan.rounds, local), np.zeros(DIMENSION))
    assert study.ledger.reservations() == ()


def test_a_model_that_does_not_fit_is_refused_before_anything_is_reserved(study):
    with pytest.raises(ValueError, match="shapes"):
        study.runner().enroll(study.plan, np.zeros(2))
    assert study.ledger.reservations(open_only=False) == ()


def test_the_whole_cohort_is_charged_before_the_first_client_looks_at_its_data(study):
    seen = []

    def watched(train):
        return lambda *arguments: seen.append(study.committed()) or train(*arguments)

    for client in study.clients:
        client.train = watched(client.train)
    updates = list(enrolled(study).train(TASK, NAMES))
    assert seen == [dict.fromkeys(NAMES, 1)] * 3
    assert [update.client for update in updates] == list(NAMES)


def test_a_crash_between_charge_and_noise_leaves_the_charge(study):
    def train(*_):
        raise Crash

    study.clients[0].train = train
    with pytest.raises(Crash):
        next(enrolled(study).train(TASK, ["north", "west"]))
    assert study.committed() == {"north": 1, "west": 1, "harbour": 0}


def test_no_client_trains_when_its_charge_cannot_be_written(study):
    runner = enrolled(study)
    study.ledger.freeze("account-west", reason="a question of the patients' council")
    with pytest.raises(AccountUnavailable):
        list(runner.train(TASK, ["north", "west"]))
    assert study.diary.trained() == {}
    assert study.committed() == dict.fromkeys(NAMES, 0)


def test_an_exhausted_client_is_not_asked(study):
    runner = enrolled(study)
    for _ in range(study.plan.rounds):
        assert all(isinstance(outcome, Update) for outcome in runner.train(TASK, ["north"]))
    assert list(runner.train(TASK, ["north"])) == [Failure("north", "exhausted")]
    assert study.diary.trained()["north"] == study.committed()["north"] == study.plan.rounds


def test_a_client_that_is_named_twice_trains_once_for_its_one_charge(study):
    assert len(list(enrolled(study).train(TASK, ["north", "north"]))) == 1
    assert study.diary.trained()["north"] == study.committed()["north"] == 1


def test_a_client_that_breaks_down_is_a_failure_and_the_others_go_on(study):
    study.clients[0].train = lambda *_: int("patient 4711")
    failure, update = enrolled(study).train(TASK, ["north", "west"])
    assert (failure.client, failure.reason) == ("north", "failed")
    assert "4711" not in repr(failure)
    assert update.client == "west"


def test_a_failure_is_told_apart_from_an_update():
    assert Failure("west", "exhausted") == Failure("west", "exhausted", ValueError("private"))


def test_an_update_carries_a_head_that_the_ledger_contains(study):
    (update,) = enrolled(study).train(TASK, ["west"])
    study.ledger.require(update.head)


def test_enrolling_again_continues_the_same_reservation(study, again):
    list(enrolled(study).train(TASK, ["north"]))
    runner = enrolled(again())
    assert runner.charged().local == {"north": 1, "west": 0, "harbour": 0}
    (held,) = study.ledger.reservations()
    assert (held.committed, held.left) == (1, 3 * study.plan.rounds - 1)


@pytest.mark.parametrize("times", [0, 1])
def test_a_release_is_in_the_ledger_even_where_nothing_is_due(open_study, times):
    options = {"cohort": FixedCohort(1)}
    study = open_study("user", **options)
    runner = enrolled(study)
    before = study.ledger.head()
    head = runner.charge_release(times, 1)
    assert head == str(study.ledger.head()) != str(before)
    assert (runner.charged().releases, runner.charged().begun) == (times, 1)
    other = enrolled(open_study("user", **options))
    assert (other.charged().releases, other.charged().begun) == (times, 1)
    study.ledger.verify()


def test_a_release_of_a_secret_cohort_is_its_charge_alone(open_study):
    study = open_study("user", cohort=PoissonCohort(0.5, secret=True))
    runner = enrolled(study)
    before = study.ledger.head().sequence
    runner.charge_release(1, 1)
    assert study.ledger.head().sequence == before + 1


def test_more_releases_than_were_reserved_are_refused(open_study):
    runner = enrolled(open_study("user", rounds=2))
    with pytest.raises(NotReserved):
        runner.charge_release(3, 1)


def test_a_head_that_the_ledger_lacks_is_refused(study):
    with pytest.raises(LedgerRolledBack):
        study.runner().enroll(study.plan, np.zeros(DIMENSION), ["999:" + 64 * "a"])


def test_a_run_name_of_another_plan_is_refused(study):
    enrolled(study)
    other = Plan("study", 2, study.plan.local)
    with pytest.raises(InvalidArgument, match="another plan"):
        study.runner().enroll(other, np.zeros(DIMENSION))


def test_a_spent_run_is_not_begun_again_but_may_be_ended(study):
    runner = enrolled(study)
    for _ in range(study.plan.rounds):
        updates = list(runner.train(TASK, NAMES))
    with pytest.raises(InvalidArgument, match="is spent"):
        study.runner().enroll(study.plan, np.zeros(DIMENSION))
    study.runner().enroll(study.plan, np.zeros(DIMENSION), [updates[0].head])


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


def test_nothing_is_drawn_after_the_run_was_finished(study):
    runner = enrolled(study)
    runner.finish("study")
    with pytest.raises(Exception, match=r"taken over|left reserved|resume the run"):
        list(runner.train(TASK, NAMES))
    assert study.diary.trained() == {}


def test_an_account_for_another_unit_is_refused_before_anything_is_reserved(study):
    study.ledger.open("people", epsilon=4.0, delta=1e-5, unit="person")
    study.clients[0].account = "people"
    with pytest.raises(InvalidArgument, match="one person"):
        study.runner().enroll(study.plan, np.zeros(DIMENSION))
    assert study.ledger.reservations(open_only=False) == ()


@pytest.mark.parametrize("account", ["account-north", "study"])
def test_an_account_for_another_adjacency_is_refused_before_anything_is_reserved(open_study, account):
    # Sizes that are the true counts protect nobody who is added or removed: such an account would promise too much.
    study = open_study("hybrid")
    local = {name: replace(part, adjacency="replace_one") for name, part in study.plan.local.items()}
    promise = Guarantee(100.0, 1e-5, "client", "replace_one")
    changed = {"local": local} if account != "study" else {"client_guarantee": promise}
    with pytest.raises(AdjacencyMismatch, match=f"for replace_one, and account {account} for add_remove"):
        study.runner().enroll(replace(study.plan, **changed), np.zeros(DIMENSION))
    assert study.ledger.reservations(open_only=False) == ()


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_a_style_that_protects_anybody_needs_a_ledger(open_study, style):
    study = open_study(style)
    runner = LocalRunner(study.clients, None, study=study.study)
    with pytest.raises(InvalidArgument, match="give the runner a ledger"):
        runner.enroll(study.plan, np.zeros(DIMENSION))


def test_a_runner_serves_one_run_at_a_time(open_study):
    """Two plans would draw by the one and be charged by the other."""
    study = open_study()
    runner = enrolled(study)
    other = Plan("another", 2, study.plan.local)
    with pytest.raises(InvalidArgument, match="a runner of its own"):
        runner.enroll(other, np.zeros(DIMENSION))
    runner.finish("study")
    runner.enroll(other, np.zeros(DIMENSION))


@dataclass(frozen=True)
class Shifting(ModelChange):
    """Clients follow the server's own running mean; a wrong one writes into it."""

    writes: bool = False

    def start(self, weights):
        return {"weights": weights, "running": np.zeros(len(weights))}

    def task(self, state):
        return state

    def objective(self, task, state):
        running = task.vectors["running"]
        if self.writes:
            running += 1e6
        return LocalObjective(task.weights + running, shift=running)

    def step(self, state, mean):
        return {"weights": state["weights"] + mean, "running": state["running"] + mean}


@pytest.mark.parametrize("place", ["start", "shift"])
def test_a_client_that_trains_in_place_moves_neither_the_others_nor_what_the_server_keeps(open_study, tmp_path, place):
    """Clients without state share one objective, and it may hold the very arrays of the server."""
    kept = []
    for value in (0.0, 0.5):
        folder = tmp_path / f"{value:g}"
        folder.mkdir()
        study = open_study("user", folder=folder, weighting="equal")

        def train(local, objective, source, value=value):
            getattr(objective, place)[:] += value
            return np.zeros(DIMENSION)

        study.clients[0].train = train
        for client in study.clients[1:]:
            client.train = lambda local, objective, source: objective.start + objective.shift
        federation = study.federation(algorithm=Shifting(), source=SilentSource())
        next(federation)
        kept.append((federation.weights.tolist(), federation._checkpoint.state["running"].tolist()))
    assert kept[0] == kept[1] == ([0.0] * DIMENSION, [0.0] * DIMENSION)


def test_an_algorithm_cannot_write_into_what_is_sent(open_study):
    study = open_study("user", weighting="equal")
    federation = study.federation(algorithm=Shifting(writes=True), source=SilentSource())
    assert next(federation).participation.failed == NAMES
    assert federation._checkpoint.state["running"].tolist() == [0.0] * DIMENSION


def test_a_release_on_a_frozen_account_is_refused_even_where_nothing_is_due(open_study):
    study = open_study("user", cohort=FixedCohort(1))
    runner = enrolled(study)
    study.ledger.freeze("study", reason="a question of the patients' council")
    with pytest.raises(AccountUnavailable):
        runner.charge_release(0, 1)
    assert runner.charged().begun == 0


@pytest.mark.parametrize("others", [0, 2])
def test_a_seed_gives_a_client_the_same_noise_whatever_else_is_in_the_ledger(open_study, others):
    study = open_study()
    for number in range(others):
        study.ledger.open(f"other-{number}", epsilon=1.0, delta=1e-5)
    runner = enrolled(study, source=SeededSource(5))
    (first,) = runner.train(TASK, ["north"])
    (second,) = runner.train(TASK, ["north"])
    expected = [SeededSource(5).once(f"charge {number} 1 north").normal(DIMENSION) for number in (1, 2)]
    for update, noise in zip((first, second), expected, strict=True):
        assert update.value.tolist() == (0.01 * noise).tolist()
