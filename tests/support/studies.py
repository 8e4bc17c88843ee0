"""Small federated studies that are opened, killed and opened again, with a diary of every noise that was drawn.

The diary is a file that a killed process leaves whole: each line is written by one call before the noise is drawn. What
it says was drawn must be charged, whether or not it was stored or shown to anybody.
"""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from dpfed import events as ev
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.federated.engine import Federation
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.state import clients, unfinished
from dpfed.ledger.ledger import Ledger
from dpfed.ledger.reservation import Reservation
from dpfed.plan.cohort import All
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import RandomSource, SystemSource
from dpfed.runs import directory as runs
from dpfed.runs import rounds as round_files
from dpfed.runs import tensor_files
from dpfed.runs.directory import RunDirectory

DIMENSION = 3
SIZES = {"north": 60, "west": 30, "harbour": 10}
TRAINED, NOISED, BORN = "trained", "noised", "born"
WRITES = (  # everything that is durable when it returns
    (runs, "write_durably"),
    (unfinished, "write_durably"),
    (unfinished, "write_whole"),
    (tensor_files, "write_durably"),
    (clients, "write_durably"),
    (round_files, "append"),
    (Reservation, "commit"),
    (Reservation, "commit_unseen"),
    (Reservation, "mark"),
)

Say = Callable[..., None]


class Crash(KeyboardInterrupt):
    """Stands for the end of the process: nothing in dpfed takes it for a client's fault."""


class SilentSource(RandomSource):
    """No noise, and everyone in every sample: what is left is what the noise was to hide."""

    is_private = False

    def _key(self) -> bytes:
        return bytes(32)

    def _child(self, name: str) -> RandomSource:
        return self

    def normal(self, shape=()):
        return np.zeros(shape)

    def laplace(self, shape=()):
        return np.zeros(shape)

    def uniform(self, shape=()):
        return np.zeros(shape)

    def coins(self, count):
        return np.zeros(count, dtype=np.uint64)


class WatchedSource(SystemSource):
    """Says when the server's noise is drawn; a count that is drawn beside a sum is of the same release."""

    def __init__(self, say: Say, name: str = "") -> None:
        super().__init__()
        self._say, self._name = say, name

    def _child(self, name: str) -> RandomSource:
        return WatchedSource(self._say, name)

    def normal(self, shape=()):
        if self._name.startswith("noise"):
            self._say(NOISED)
            self._name = ""
        return super().normal(shape)


@dataclass
class Ward:
    """Moves the model half-way to its own value, with noise where its plan has some."""

    name: str
    account: str
    value: float = 1.0
    say: Say = lambda *_: None

    def rehearse(self, local, weights) -> None:
        if weights.shape != (DIMENSION,):
            raise ValueError(f"shapes differ: {weights.shape}")

    def train(self, local, objective, source):
        self.say(TRAINED, self.name)
        noise = 0.0 if local.noise_multiplier is None else 0.01 * source.normal(DIMENSION)
        return (self.value - objective.start) / 2 + noise


@dataclass
class Diary:
    """What the processes of a study did, in order."""

    path: Path

    def say(self, *words: str) -> None:
        """One line, whole even if the process is killed at once."""
        line = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(line, " ".join(words).encode() + b"\n")
        os.close(line)

    def lines(self) -> list[list[str]]:
        return [line.split(" ", 1) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def trained(self) -> Counter[str]:
        """How often each client drew noise, or would have."""
        return Counter(words[1] for words in self.lines() if words[0] == TRAINED)

    def noised(self) -> int:
        """How often the server drew noise."""
        return sum(words[0] == NOISED for words in self.lines())

    def participations(self) -> Counter[str]:
        """How many of the server's draws each client was in."""
        found: Counter[str] = Counter()
        under_way: list[str] = []
        for what, *name in self.lines():
            if what == TRAINED:
                under_way += name
            else:
                found.update(under_way if what == NOISED else ())
                under_way = []
        return found


@dataclass
class Study:
    """Everything of a small run but its progress: opened again and again, as a restarted process would."""

    folder: Path
    style: str = "sample"
    options: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=lambda: dict(SIZES))

    def __post_init__(self) -> None:
        self.diary = Diary(self.folder / "diary")
        self.diary.say(BORN)
        self.plan = a_plan(self.style, self.sizes, **self.options)
        self.clients = [Ward(name, f"account-{name}", place, self.diary.say) for place, name in enumerate(self.sizes)]
        self.study = "study" if self.plan.server_noises else None
        self.ledger = Ledger(f"sqlite:///{self.folder / 'ledger.db'}")
        if self.plan.charges_clients:
            kind = ("client", REPLACE_ONE) if self.plan.noises_updates else ("record", ADD_REMOVE)
            for client in self.clients:
                self._open(client.account, *kind)
        if self.study:
            self._open(self.study, "client", self.plan.client_adjacency)

    def runner(self, kind=LocalRunner, source=None) -> LocalRunner:
        ledger = self.ledger if self.plan.units else None
        return kind(self.clients, ledger, study=self.study, source=source)

    def federation(self, runner=None, **options) -> Federation:
        options.setdefault("source", WatchedSource(self.diary.say))
        return Federation(self.plan, np.zeros(DIMENSION), runner or self.runner(), self.folder / "run", **options)

    def committed(self) -> dict[str, int]:
        """How many charges of each client are in the ledger."""
        charges = committed(self.ledger)
        return {client.name: sum(charges.get(client.account, {}).values()) for client in self.clients}

    def committed_releases(self) -> int:
        """How many charges of the study are in the ledger."""
        return sum(committed(self.ledger).get("study", {}).values())

    def directory(self) -> RunDirectory:
        return RunDirectory(self.folder / "run")

    def require_nothing_free(self) -> None:
        """Every noise that was ever drawn was charged, within what was reserved, in a sound ledger."""
        self.ledger.verify()
        if self.plan.charges_clients:
            drawn, charged = self.diary.trained(), self.committed()
            assert all(drawn[name] <= charged[name] <= self.plan.record_charges for name in charged), (drawn, charged)
        if self.study:
            charged, largest = self.committed_releases(), max(self.diary.participations().values(), default=0)
            is_secret = self.plan.is_secret
            is_by_draw = is_secret or self.plan.client.tree is not None  # the first noise of a tree is for all of it
            assert (self.diary.noised() if is_by_draw else largest) <= charged <= self.plan.client_charges

    def require_done(self) -> None:
        """All rounds are done once, and the model is a number."""
        federation = self.federation()
        assert list(federation) == []
        assert federation.round == self.plan.rounds
        assert np.isfinite(federation.weights).all()
        assert [record["round"] for record in self.directory().rounds()] == list(range(1, self.plan.rounds + 1))
        assert self.ledger.reservations() == ()

    def _open(self, account: str, unit: str, adjacency: str) -> None:
        if account not in self.ledger:
            self.ledger.open(account, epsilon=1000.0, delta=1e-5, unit=unit, adjacency=adjacency)


def a_plan(style: str, sizes, rounds: int = 4, noise_multiplier: float = 5.0, **options) -> Plan:
    """A plan with its noise given."""
    noise = {"clip_norm": 1.0, "noise_multiplier": noise_multiplier} if style in ("sample", "hybrid") else {}
    local = {
        name: LocalPlan(size=size, batch_size=5, steps=2, learning_rate=0.5, **noise) for name, size in sizes.items()
    }
    options.setdefault("cohort", All())
    if style in ("user", "hybrid", "local"):
        options.setdefault("client", ClientPlan(clip_norm=1.0, noise_multiplier=noise_multiplier))
    return Plan("study", rounds, local, style=style, **options)


def committed(ledger: Ledger) -> dict[str, dict[ev.Event, int]]:
    """What is charged to each account, from the ledger's exported rows alone."""
    stream = io.StringIO()
    ledger.export(stream)
    found: dict[str, dict[ev.Event, int]] = {}
    for row in map(json.loads, stream.getvalue().splitlines()):
        if row["kind"] == "committed":
            charges, event = found.setdefault(row["account"], {}), ev.loads(row["event"])
            charges[event] = charges.get(event, 0) + row["times"]
    return found


@contextmanager
def crash_at(number: int, *, is_after: bool) -> Iterator[None]:
    """Ends the process at the n-th durable write, before or after it."""
    passed = 0

    def around(call):
        def wrapped(*arguments, **options):
            nonlocal passed
            passed += 1
            is_now = passed == number
            if is_now and not is_after:
                raise Crash
            found = call(*arguments, **options)
            if is_now:
                raise Crash
            return found

        return wrapped

    with ExitStack() as patches:
        for owner, name in WRITES:
            patches.enter_context(mock.patch.object(owner, name, around(getattr(owner, name))))
        yield
