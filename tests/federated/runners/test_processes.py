"""Processes of their own change neither what is charged nor what comes out, and none of them outlives its round."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from studies import SIZES, a_plan

TASK = Task(1, {"weights": np.zeros(3)})


@dataclass
class Doing:
    """A client that does what it is told, where it is told."""

    name: str
    act: Callable
    account: str = ""

    def rehearse(self, local, weights) -> None:
        """Nothing."""

    def train(self, local, objective, source):
        return np.asarray(self.act(source), dtype=float) * np.ones(3)


def asked(*acts, **options):
    """What the clients c0, c1, … make of a round in which each does its act."""
    return {outcome.client: outcome for outcome in asking(*acts, **options)}


def asking(*acts, **options):
    clients = [Doing(f"c{number}", act) for number, act in enumerate(acts)]
    runner = PoolRunner(clients, **options)
    runner.enroll(a_plan("none", {client.name: 10 for client in clients}), np.zeros(3))
    return runner.train(TASK, [client.name for client in clients])


def wait_until(is_so: Callable[[], bool]) -> None:
    """For a minute at most."""
    for _ in range(6_000):
        if is_so():
            return
        time.sleep(0.01)
    raise TimeoutError


def is_alive(process: int) -> bool:
    """Whether it runs; one that has ended may still wait for somebody to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def sleeping(note: Path) -> Callable:
    """Writes the number of its process down and sleeps."""

    def act(source):
        note.with_suffix(".part").write_text(str(os.getpid()))
        note.with_suffix(".part").rename(note)
        time.sleep(600)

    return act


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_a_run_ends_with_the_same_bits_as_one_in_this_process(tmp_path, style):
    def last_weights(kind, folder):
        draws, model = np.random.default_rng(5), TorchModel(Logistic, "cross_entropy")
        noise = {"clip_norm": 1.0, "noise_multiplier": 2.0} if style != "user" else {}
        local = LocalPlan(size=20, batch_size=8, steps=3, **noise)
        clients = [
            TorchClient(f"c{number}", (draws.normal(size=(20, 30)), draws.integers(2, size=20)), f"a{number}", model)
            for number in range(4)
        ]
        server = {} if style == "sample" else {"client": ClientPlan(clip_norm=1.0, noise_multiplier=2.0)}
        plan = Plan("study", 2, {client.name: local for client in clients}, style=style, **server)
        with Ledger(folder / "ledger.db") as ledger:
            for client in clients:
                ledger.open(client.account, epsilon=1000.0, delta=1e-5)
            ledger.open("study", epsilon=1000.0, delta=1e-5, unit="client")
            runner = kind(clients, ledger, study=None if style == "sample" else "study", source=SeededSource(7))
            federation = Federation(
                plan, model.first_weights, runner, folder / "run", layout=model.layout, source=SeededSource(8)
            )
            return list(federation)[-1].weights.tobytes()

    for kind in (LocalRunner, PoolRunner):
        (tmp_path / kind.__name__).mkdir()
    found = [last_weights(kind, tmp_path / kind.__name__) for kind in (LocalRunner, PoolRunner)]
    assert found[0] == found[1]


def test_the_order_in_which_updates_come_does_not_change_the_mean(tmp_path):
    class Backwards(LocalRunner):
        def _train_all(self, clients, task, head):
            return super()._train_all(clients[::-1], task, head)

    values = np.random.default_rng(3).normal(size=100) * np.geomspace(1e-8, 1e8, 100)
    clients = [Doing(f"c{number}", lambda _, value=value: value) for number, value in enumerate(values)]
    plan = a_plan("none", {client.name: 10 for client in clients}, rounds=1)
    found = [
        next(Federation(plan, np.zeros(3), kind(clients), tmp_path / kind.__name__)).weights.tobytes()
        for kind in (LocalRunner, Backwards)
    ]
    assert found[0] == found[1]


def test_no_two_processes_draw_the_same_noise():
    drawn = [outcome.value[0] for _ in range(2) for outcome in asked(*[lambda source: source.normal()] * 4).values()]
    assert len(set(drawn)) == 8


def test_the_whole_cohort_is_charged_before_a_process_starts(study):
    study.clients = [
        Doing(name, lambda _: sum(study.committed().values()), f"account-{name}") for name in study.plan.local
    ]
    runner = study.runner(PoolRunner)
    runner.enroll(study.plan, np.zeros(3))
    assert [update.value.tolist() for update in runner.train(TASK, list(SIZES))] == [[3.0] * 3] * 3
    assert study.committed() == dict.fromkeys(SIZES, 1)


def test_a_process_that_dies_is_a_failure_of_its_client_alone():
    outcomes = asked(lambda _: 1.0, lambda _: os.kill(os.getpid(), signal.SIGKILL), lambda _: 3.0, workers=1)
    assert outcomes["c1"] == Failure("c1", "failed")
    assert "code -9" in str(outcomes["c1"].error)
    assert [outcomes[name].value[0] for name in ("c0", "c2")] == [1.0, 3.0]


def test_a_client_that_breaks_down_is_a_failure_with_its_reason_for_the_owner():
    def breaks(source):
        raise ValueError("patient 4711")

    failure = asked(breaks)["c0"]
    assert (type(failure.error).__name__, str(failure.error)) == ("ValueError", "patient 4711")
    assert "4711" not in repr(failure)


def test_an_update_that_cannot_be_sent_is_a_failure_of_its_client_alone():
    class Texts(Doing):
        def train(self, *arguments):
            return np.array(["no number"], dtype=np.dtypes.StringDType())

    runner = PoolRunner([Texts("texts", None), Doing("c1", lambda _: 1.0)])
    runner.enroll(a_plan("none", {"texts": 10, "c1": 10}), np.zeros(3))
    outcomes = {outcome.client: outcome for outcome in runner.train(TASK, ["texts", "c1"])}
    assert outcomes["texts"] == Failure("texts", "failed")
    assert outcomes["c1"].value[0] == 1.0


def test_an_update_of_the_wrong_form_comes_as_it_is():
    class Odd(Doing):
        def train(self, *arguments):
            return self.act(None)

    odd = {"whole": np.arange(3), "table": np.ones((2, 2), dtype=np.float32), "objects": np.array([None])}
    runner = PoolRunner([Odd(name, lambda _, value=value: value) for name, value in odd.items()])
    runner.enroll(a_plan("none", dict.fromkeys(odd, 10)), np.zeros(3))
    found = {outcome.client: outcome for outcome in runner.train(TASK, odd)}
    assert isinstance(found["objects"], Failure)
    for name in ("whole", "table"):
        assert (found[name].value.dtype, found[name].value.shape) == (odd[name].dtype, odd[name].shape)
        assert (found[name].value == odd[name]).all()


def test_each_process_has_one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert asked(lambda _: torch.get_num_threads())["c0"].value[0] == 1
    finally:
        torch.set_num_threads(before)


def test_as_many_clients_train_at_a_time_as_there_are_workers(tmp_path):
    met = [tmp_path / "first", tmp_path / "second"]

    def meets(own, other):
        def act(source):
            own.touch()
            wait_until(other.exists)

        return act

    assert all(isinstance(each, Update) for each in asked(meets(*met), meets(*met[::-1]), workers=2).values())
    assert [each.client for each in asking(*[lambda _: 0.0] * 5, workers=1)] == [f"c{number}" for number in range(5)]
    with pytest.raises(InvalidArgument, match="workers"):
        PoolRunner([], workers=0)


def test_processes_end_when_nobody_asks_for_their_updates(tmp_path):
    note = tmp_path / "note"
    outcomes = asking(sleeping(note), lambda _: wait_until(note.exists), workers=2)
    assert next(outcomes).client == "c1"
    sleeper = int(note.read_text())
    assert is_alive(sleeper)
    outcomes.close()
    assert not is_alive(sleeper)


def test_processes_end_with_a_parent_that_is_killed(tmp_path):
    notes = [tmp_path / f"note-{number}" for number in range(3)]
    parent = os.fork()
    if not parent:
        list(asking(*map(sleeping, notes), workers=3))
        os._exit(0)
    wait_until(lambda: all(note.exists() for note in notes))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for note in notes:
        wait_until(lambda note=note: not is_alive(int(note.read_text())))


def test_an_interrupt_is_left_to_the_caller():
    assert asked(lambda _: os.kill(os.getpid(), signal.SIGINT) or 5.0)["c0"].value[0] == 5.0
