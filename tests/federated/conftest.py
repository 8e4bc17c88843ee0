"""Three small wards, a ledger on disk and a model whose gradients are easy to reason about."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dpfed.federated.client import Client
from dpfed.federated.engine import Federation
from dpfed.federated.runners.local import LocalRunner
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan import LocalPlan, Plan
from dpfed.randomness import RandomSource
from dpfed.runs import RunDirectory

PROMISE = Guarantee(epsilon=4.0, delta=1e-5)
SIZES = {"north": 60, "west": 30, "harbour": 10}
DIMENSION = 3


class SilentSource(RandomSource):
    """No noise, and every record in every sample: what is left is what the noise was to hide."""

    is_private = False

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def normal(self, shape=()):
        return np.zeros(shape)

    def uniform(self, shape=()):
        return np.zeros(shape)


class Mean:
    """Pulls the weights towards the mean of the records; counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def gradients(self, weights, values):
        self.calls += 1
        return weights - values


@cache
def calibrated(rounds: int) -> Plan:
    local = {"batch_size": 5, "steps": 2, "learning_rate": 0.5, "clip_norm": 1.0}
    parts = {name: LocalPlan(size=size, **local) for name, size in SIZES.items()}
    return Plan("study", rounds, parts).calibrated(PROMISE)


class Study:
    """Everything of a small run but its progress: opened again and again, as a restarted process would."""

    def __init__(self, folder, rounds: int = 4) -> None:
        self.folder = folder
        self.model = Mean()
        self.plan = calibrated(rounds)
        draws = np.random.default_rng(7)
        data = {name: draws.normal(size=(size, DIMENSION)) for name, size in SIZES.items()}
        self.clients = [Client(name, (values,), f"account-{name}") for name, values in data.items()]
        self.ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}")
        for client in self.clients:
            if client.account not in self.ledger:
                self.ledger.open(client.account, epsilon=PROMISE.epsilon, delta=PROMISE.delta)

    def runner(self, kind=LocalRunner, source=None) -> LocalRunner:
        return kind(self.clients, self.model, self.ledger, source)

    def federation(self, runner=None) -> Federation:
        return Federation(self.plan, np.zeros(DIMENSION), runner or self.runner(), self.folder / "run")

    def committed(self) -> dict[str, int]:
        """How many charges of each client are in the ledger."""
        return {
            client.name: sum(
                line.count for line in self.ledger.statement(client.account).lines if line.kind == "committed"
            )
            for client in self.clients
        }

    def released(self) -> dict[str, int]:
        """How many updates of each client are in the run's directory."""
        run = self.directory()
        rounds = range(1, self.plan.rounds + 1)
        return {client.name: sum(client.name in run.updates(number) for number in rounds) for client in self.clients}

    def directory(self) -> RunDirectory:
        run = RunDirectory(self.folder / "run")
        run.begin(self.plan)
        return run


@pytest.fixture
def study(tmp_path):
    made = Study(tmp_path)
    yield made
    made.ledger.close()


@pytest.fixture
def silent():
    return SilentSource()


@pytest.fixture
def again(tmp_path):
    """The same study as a new process would open it."""
    opened = []

    def reopen() -> Study:
        opened.append(Study(tmp_path))
        return opened[-1]

    yield reopen
    for each in opened:
        each.ledger.close()
