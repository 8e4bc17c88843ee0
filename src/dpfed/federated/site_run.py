"""One run at one site: its plan, executed and charged by the same object, in the site's own ledger.

It is the runner of one process for one client, with two differences: only that client's part of the plan is reserved,
and what the client keeps goes into the file of what it sends.

>>> from dpfed.plan.plan import LocalPlan
>>> local = LocalPlan(size=8, batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=9.0)
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("north-2026", epsilon=4.0, delta=1e-5)
...     charging = OneAccount(ledger, {"north": "north-2026"})
...     charging.reserve(Plan("study", rounds=2, local={"north": local, "south": local}))
...     charging.left("north", number=1)
2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument, MessageRefused
from dpfed.events import Event
from dpfed.federated.algorithms.protocol import State
from dpfed.federated.messages import EXHAUSTED, WEIGHTS, Client, Failure, Task, Update
from dpfed.federated.runners.charging import SharedLedger
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.sent import MEASURED, ROUND, Kept, SentStore
from dpfed.federated.state.layout import Vector
from dpfed.federated.wire import CENTRE
from dpfed.ledger.ledger import Ledger
from dpfed.plan.measuring import count_releases, list_client_charges
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource


class OneAccount(SharedLedger):
    """The charges of one client of a plan: the others have ledgers of their own."""

    def charges(self, plan: Plan) -> dict[str, dict[Event, int]]:
        """Return what the whole plan takes from the client's account."""
        owed = {account: plan.local_charges(name) for name, account in self._accounts.items()}
        return {account: charges for account, charges in owed.items() if charges}


class _SentStates:
    """What the client keeps, read from the file of the round that counts, and held until its value is kept too."""

    def __init__(self, store: SentStore, run: str) -> None:
        self._store = store
        self._run = run
        self.new: State = {}

    def read(self, client: str, round_number: int) -> State:
        """Return what the client kept after that round; nothing before its first one."""
        if not round_number:
            return {}
        kept = self._store.read(self._run, round_number)
        if kept is None or not kept.state:
            raise InvalidArgument("sent", f"what the site kept after round {round_number} is gone: it cannot go on")
        return kept.state

    def write(self, client: str, round_number: int, state: State) -> None:
        """Hold what the client keeps; it is stored with the value that leaves."""
        self.new = dict(state)

    def forget_before(self, client: str, round_number: int) -> None:
        """Leave deleting to the store."""

    def forget_all(self) -> None:
        """Leave deleting to the store."""


class SiteRun(LocalRunner):
    """A run at a site. `run` is its name in the site's ledger and store.

    Privacy: `answer` commits in the site's ledger before the client trains, and stores what leaves, with what stays,
    before it returns it; the same round of the same model is answered from the store, at no charge. Where nobody is
    charged, what leaves is raw: as many values as the plan has rounds and spare rounds, whichever models are sent, and
    in all runs no more than the site's policy says.
    """

    def __init__(
        self, run: str, plan: Plan, client: Client, ledger: Ledger, store: SentStore, source: RandomSource | None
    ) -> None:
        super().__init__([client], ledger, source=source)
        self.charging = OneAccount(ledger, {client.name: client.account})
        self.run = run
        self.plan = plan
        self._name = client.name
        self._store = store
        self._held: _SentStates | None = None

    def open(self, weights: Vector, heads: Iterable[str]) -> None:
        """Reserve the client's part of the plan, or find it reserved; a ledger that lacks a head is refused."""
        self.enroll(self.plan, weights, heads)
        start = self._algorithm.start(np.asarray(weights, dtype=float))
        self._expected = {name: np.shape(vector) for name, vector in self._algorithm.task(start).items()}

    @property
    def counts(self) -> list[int]:
        """How often each event of the client's part was committed, in the plan's own order."""
        charged = self.charged()
        found = dict(charged.by_client.get(self._name, {}))
        found |= dict.fromkeys(list_client_charges(self.plan), charged.measured.get(self._name, 0))
        return [found.get(event, 0) for event in self.plan.local_charges(self._name)]

    def make_task(self, number: int, vectors: Mapping[str, Floats], clip_norm: float | None, counted: int) -> Task:
        """Return the task of a round; refuse one of another form, or with numbers that no model has."""
        if not 1 <= number <= self.plan.rounds:
            raise MessageRefused(f"the plan has {self.plan.rounds} rounds, and round {number} was asked for")
        _require_vectors(vectors, self._expected | self._expect_centre(vectors))
        sent = {name: vector for name, vector in vectors.items() if name != CENTRE}
        return Task(number, sent, clip_norm, {self._name: counted} if counted else {}, vectors.get(CENTRE))

    def _expect_centre(self, vectors: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
        """Return the shape of the last release, which a rule clips around after its first round."""
        has_centre = self.plan.aggregation.needs_centre and CENTRE in vectors
        return {CENTRE: self._expected[WEIGHTS]} if has_centre else {}

    def make_measurement(self, number: int, vectors: Mapping[str, Floats]) -> Task:
        """Return the task to measure a model after a round; refuse a round after which the plan measures nothing."""
        if self.plan.measurement is None or number not in self.plan.measurement.rounds:
            raise MessageRefused(f"the plan measures nothing after round {number}")
        _require_vectors(vectors, {WEIGHTS: self._expected[WEIGHTS]})
        return Task(number, vectors)

    def find_kept(self, number: int, plan: str, model: str, kind: str = ROUND) -> Floats | None:
        """Return what left in that round of that plan and model; None if nothing did."""
        kept = self._store.read(self.run, number, kind)
        return kept.value if kept is not None and (kept.plan, kept.model) == (plan, model) else None

    def answer(self, task: Task, plan: str, model: str) -> Floats | Failure:
        """Return what leaves the client, charged before and stored; or why nothing does."""
        if not self._may_send(ROUND, self.plan.rounds + self.plan.spare_rounds):
            return Failure(self._name, EXHAUSTED)
        sent = self._find_sent(self.train(task, [self._name]))
        if isinstance(sent, Update):
            state = {} if self._held is None else self._held.new
            self._store.keep(self.run, task.round, Kept(plan, model, sent.value, state, sent.head))
        return sent.value if isinstance(sent, Update) else sent

    def count(self, task: Task, plan: str, model: str) -> Floats | Failure:
        """Return the counts that leave the client, charged before and stored; or why none do."""
        if not self._may_send(MEASURED, count_releases(self.plan)):
            return Failure(self._name, EXHAUSTED)
        sent = self._find_sent(self.measure(task, [self._name]))
        if isinstance(sent, Update):
            self._store.keep(self.run, task.round, Kept(plan, model, sent.value, head=sent.head), MEASURED)
        return sent.value if isinstance(sent, Update) else sent

    def _find_sent(self, outcomes: Iterable[Update | Failure]) -> Update | Failure:
        """Return what leaves, also where a failure came with it; all is done by then."""
        found = list(outcomes)
        sent = (outcome for outcome in found if isinstance(outcome, Update))
        return next(sent, found[0] if found else Failure(self._name, EXHAUSTED))

    def _may_send(self, kind: str, most: int) -> bool:
        """Return whether one more value may be made; where nobody is charged, the site counts them itself."""
        return not self.is_raw() or self._store.take_raw(self.run, kind, most)

    def is_raw(self) -> bool:
        """Return whether what leaves the client has no noise."""
        return not self.plan.charges_clients

    def _open_states(self, folder: Path | None, counted: Iterable[tuple[str, int]] | None) -> None:
        self._held = _SentStates(self._store, self.run) if self._algorithm.keeps_state else None
        self._states = self._held  # type: ignore[assignment]


def _require_vectors(vectors: Mapping[str, Floats], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse vectors of another form, or with numbers that no model has."""
    if {name: np.shape(vector) for name, vector in vectors.items()} != expected:
        raise MessageRefused("the task has other vectors than the plan's algorithm sends")
    with np.errstate(over="ignore"):
        if not all(np.isfinite(vector.astype(np.float32)).all() for vector in vectors.values()):
            raise MessageRefused("the task has numbers that no model has")
