"""A run may end at any point, by any means, and go on: what was released was charged, and nothing twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

from dpfed.errors import InvalidArgument, LeaseHeld, LedgerRolledBack
from dpfed.federated.client import Client
from dpfed.federated.engine import Federation
from dpfed.federated.runners.local import LocalRunner
from dpfed.federated.update import Failure, Task
from dpfed.randomness import SeededSource
from dpfed.runs import Update

FORK = multiprocessing.get_context("fork")
NAMES = ("north", "west", "harbour")


class Crash(BaseException):
    """Stands for the end of the process: nothing in dpfed catches it."""


class CrashingRunner(LocalRunner):
    """Ends in round 2 when the second client's update is drawn and not yet stored."""

    drawn = None

    def train(self, task: Task, cohort):
        for number, outcome in enumerate(super().train(task, cohort)):
            if task.round == 2 and number == 1:
                type(self).drawn = outcome
                raise Crash
            yield outcome


def crashed(study, source=None) -> Update:
    """The update that was drawn and lost."""
    with pytest.raises(Crash):
        list(study.federation(study.runner(CrashingRunner, source)))
    study.ledger.close()
    return CrashingRunner.drawn


def test_an_uninterrupted_run_charges_every_round_once_and_everyone_contributes(study):
    results = list(study.federation())
    assert [result.round for result in results] == [1, 2, 3, 4]
    assert all(result.contributed == NAMES for result in results)
    assert not any(result.reused + result.exhausted + result.failed for result in results)
    assert study.committed() == study.released() == dict.fromkeys(NAMES, 4)
    assert study.ledger.reservations() == ()
    study.ledger.verify()


def test_the_model_moves_by_the_average_with_public_weights(study):
    federation = study.federation()
    first = next(federation)
    updates = federation.run.updates(1)
    expected = sum(share * updates[name].value for name, share in {"north": 0.6, "west": 0.3, "harbour": 0.1}.items())
    np.testing.assert_allclose(first.weights, expected, rtol=1e-12)
    np.testing.assert_array_equal(federation.weights, first.weights)


def test_a_stopped_run_goes_on_and_costs_what_an_uninterrupted_one_costs(study, again):
    federation = study.federation()
    next(federation), next(federation)
    study.ledger.close()
    other = again()
    assert [result.round for result in other.federation()] == [3, 4]
    assert other.committed() == dict.fromkeys(NAMES, 4)
    other.ledger.verify()


def test_after_a_crash_stored_updates_cost_nothing_and_lost_ones_are_paid_again(study, again):
    crashed(study)
    other = again()
    results = {result.round: result for result in other.federation()}
    assert (results[2].contributed, results[2].reused) == (NAMES, ("north",))
    assert results[3].contributed == NAMES
    assert (results[4].contributed, results[4].exhausted) == (("north",), ("west", "harbour"))
    assert other.committed() == dict.fromkeys(NAMES, 4)  # never more than was reserved
    assert other.released() == {"north": 4, "west": 3, "harbour": 3}
    other.ledger.verify()


def test_an_exhausted_client_contributes_zero_and_the_denominator_stays(study, again):
    crashed(study)
    *_, before, last = again().federation()
    update = study.directory().updates(4)["north"]
    np.testing.assert_allclose(last.weights, before.weights + 0.6 * update.value, rtol=1e-12)


def test_noise_after_a_crash_is_fresh_even_from_the_same_seed(study, again):
    lost = crashed(study, SeededSource(1))
    other = again()
    next(other.federation(other.runner(source=SeededSource(1))))
    redrawn = other.directory().updates(2)[lost.client]
    assert np.all(redrawn.value != lost.value)


def test_a_stored_update_is_used_bit_by_bit(study, again):
    crashed(study)
    kept = study.directory().updates(2)["north"].value.tobytes()
    list(again().federation())
    assert study.directory().updates(2)["north"].value.tobytes() == kept


def test_a_ledger_that_was_rolled_back_is_refused(study, again, tmp_path):
    federation = study.federation()
    next(federation)
    study.ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    other = again()
    next(other.federation())
    other.ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "ledger.db")
    with pytest.raises(LedgerRolledBack):
        again().federation()


def test_a_stored_update_whose_charge_the_ledger_lacks_is_refused(study, again, tmp_path):
    next(study.federation())
    study.ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    other = again()
    crashed(other)  # round 2: north is charged and stored, then the process ends
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "ledger.db")
    with pytest.raises(LedgerRolledBack):
        again().federation()


def test_a_deleted_ledger_is_refused(study, again, tmp_path):
    next(study.federation())
    study.ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(LedgerRolledBack):
        again().federation()


def test_a_failed_client_contributes_zero_and_its_reason_is_written_nowhere(study, tmp_path):
    class Broken(Client):
        def train(self, *arguments):
            raise ValueError("patient 4711 is ill")

    study.clients[1] = Broken("west", study.clients[1].data, "account-west")
    results = list(study.federation())
    assert all(result.failed == ("west",) and result.contributed == ("north", "harbour") for result in results)
    assert study.committed()["west"] == 4  # charged before it broke down
    study.ledger.close()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any(b"4711" in path.read_bytes() for path in written)


@pytest.mark.parametrize("value", [np.full(3, np.nan), np.zeros(4), np.array([np.inf, 0.0, 0.0])])
def test_an_update_that_does_not_fit_is_refused_at_the_door(study, value):
    class Foreign(LocalRunner):
        def train(self, task, cohort):
            for outcome in super().train(task, cohort):
                yield Update("west", value, outcome.head) if outcome.client == "west" else outcome

    result = next(study.federation(study.runner(Foreign)))
    assert result.failed == ("west",)
    assert np.isfinite(result.weights).all()


def test_when_every_client_breaks_down_the_error_is_raised_and_not_four_empty_rounds(study):
    class Broken(Client):
        def train(self, *arguments):
            raise ZeroDivisionError

    study.clients = [Broken(client.name, client.data, client.account) for client in study.clients]
    with pytest.raises(ZeroDivisionError):
        next(study.federation())
    assert study.committed() == dict.fromkeys(NAMES, 1)


def test_what_was_never_committed_is_returned_when_a_run_is_ended_early(study):
    federation = study.federation()
    next(federation)
    (held,) = study.ledger.reservations()
    assert held.left == 9
    federation.finish()
    assert study.ledger.reservations() == ()
    assert study.committed() == dict.fromkeys(NAMES, 1)


def test_a_finished_run_opened_again_does_nothing(study, again):
    last = list(study.federation())[-1]
    entries = study.ledger.head().sequence
    study.ledger.close()
    other = again()
    federation = other.federation()
    assert list(federation) == []
    np.testing.assert_array_equal(federation.weights, last.weights)
    assert other.ledger.head().sequence == entries


def test_another_plan_in_the_same_directory_is_refused(study):
    next(study.federation())
    with pytest.raises(InvalidArgument, match="another plan"):
        Federation(type(study)(study.folder, rounds=3).plan, np.zeros(3), study.runner(), study.folder / "run")


def test_the_public_record_of_a_round_holds_no_number_but_its_round_and_head(study):
    list(study.federation())
    for record in study.directory().rounds():
        assert set(record) == {"round", "head", "contributed", "reused", "exhausted", "failed"}


def test_nothing_of_the_charges_depends_on_the_number_of_records(study, again):
    before = study.plan.charges(study.clients)
    study.clients = [Client(each.name, (each.data[0][:3],), each.account) for each in study.clients]
    assert study.plan.charges(study.clients) == before
    results = list(study.federation())
    assert len(results) == 4
    assert study.committed() == dict.fromkeys(NAMES, 4)


# kill -9: each child is forked from this warm process, opens everything itself and is killed for real.


def run_and_die(folder, kind, where) -> None:
    study = kind(folder)
    federation = study.federation()
    attribute = {"checkpoint": "write_checkpoint", "record": "append", "update": "write_update"}[where]
    done = []

    def die(*_) -> None:
        done.append(1)
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        original(*_)

    original = getattr(federation.run, attribute)
    setattr(federation.run, attribute, die)
    list(federation)


@pytest.mark.parametrize("where", ["update", "record", "checkpoint"])
def test_kill_9_just_before_a_file_is_written_loses_no_charge_and_no_round(study, again, where):
    study.ledger.close()
    child = FORK.Process(target=run_and_die, args=(study.folder, type(study), where))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    other = again()
    spent, released = other.committed(), other.released()
    assert all(spent[name] >= released[name] for name in NAMES)
    results = list(other.federation())
    assert results[-1].round == 4
    assert [record["round"] for record in other.directory().rounds()] == [1, 2, 3, 4]
    lost = 0 if where in ("record", "checkpoint") else 1
    assert other.committed() == dict.fromkeys(NAMES, 4)
    assert other.released() == {"north": 4, "west": 4 - lost, "harbour": 4 - lost}
    other.ledger.verify()


def run_to_the_end(folder, kind) -> None:
    list(kind(folder).federation())


def test_kill_9_at_random_points_never_releases_more_than_was_charged(study, again, campaign_scale):
    study.ledger.close()
    delays = random.Random(11)  # noqa: S311 - when to kill, nothing secret
    for _ in range(8 * campaign_scale):
        child = FORK.Process(target=run_to_the_end, args=(study.folder, type(study)))
        child.start()
        time.sleep(delays.uniform(0.01, 0.25))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        other = again()
        spent, released = other.committed(), other.released()
        assert all(study.plan.rounds >= spent[name] >= released[name] for name in NAMES)
        other.ledger.verify()
        other.ledger.close()
    last = again()
    list(last.federation())
    assert len(last.directory().rounds()) == 4
    assert all(last.committed()[name] <= 4 for name in NAMES)
    assert last.ledger.reservations() == ()


def test_two_processes_do_not_run_the_same_run(study, again):
    study.ledger.close()
    ready, end = FORK.Event(), FORK.Event()

    def hold() -> None:
        federation = type(study)(study.folder).federation()
        next(federation)
        ready.set()
        end.wait(30)

    child = FORK.Process(target=hold)
    child.start()
    assert ready.wait(30)
    with pytest.raises(LeaseHeld):
        again().federation()
    end.set()
    child.join()


def test_a_failure_is_told_apart_from_an_update():
    assert Failure("west", "exhausted") == Failure("west", "exhausted", ValueError("private"))


def test_rounds_whose_noise_can_be_predicted_are_stamped(study, again):
    next(study.federation(study.runner(source=SeededSource(1))))
    next(again().federation())
    predicted, private = study.directory().rounds()
    assert predicted["noise"] == "NOT PRIVATE"
    assert "noise" not in private
