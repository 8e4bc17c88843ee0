"""All clients in this process, trained one after the other; their charges are `SharedLedger`'s.

>>> from dpfed.plan.plan import LocalPlan
>>> class Ward:
...     name, account = "ward", "ward-2026"
...     def rehearse(self, local, weights): ...
...     def train(self, local, objective, source):
...         return source.normal(2)
>>> local = LocalPlan(size=8, batch_size=4, steps=3, clip_norm=1.0, noise_multiplier=9.0)
>>> with Ledger("sqlite:///ledger.db") as ledger:
...     _ = ledger.open("ward-2026", epsilon=4.0, delta=1e-5)
...     runner = LocalRunner([Ward()], ledger)
...     _ = runner.enroll(Plan("study", rounds=2, local={"ward": local}), np.zeros(2))
...     [type(outcome).__name__ for outcome in runner.train(Task(1, {"weights": np.zeros(2)}), ["ward"])]
...     runner.charged().local
['Update']
{'ward': 1}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpfed.arrays import Floats
from dpfed.clipping import clip_per_example
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.protocol import FederatedAlgorithm, State
from dpfed.federated.deadline import INTERRUPTS, Late, within
from dpfed.federated.messages import EXHAUSTED, FAILED, Charged, Client, Failure, Task, Update
from dpfed.federated.runners.charging import SharedLedger
from dpfed.federated.runners.factory import ClientFactory
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.state.layout import Vector
from dpfed.ledger.ledger import Ledger
from dpfed.mechanisms.counts import Counts
from dpfed.plan import measuring
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, or_system
from dpfed.training.objective import LocalObjective

Found = TypeVar("Found")


class LocalRunner:
    """A runner that trains clients one after the other in this process.

    `study` is the account that pays for server noise. Without a ledger only a plan that protects nobody can be run. A
    client that takes longer than the plan's `client_timeout` has failed. Clients of a population are given as a
    `ClientFactory`; one that cannot be made has failed too.
    """

    def __init__(
        self,
        clients: Iterable[Client] | ClientFactory,
        ledger: Ledger | None = None,
        *,
        study: str | None = None,
        source: RandomSource | None = None,
    ) -> None:
        self._factory = clients if isinstance(clients, ClientFactory) else None
        self.clients = {} if isinstance(clients, ClientFactory) else {client.name: client for client in clients}
        self.charging = SharedLedger(ledger, {name: client.account for name, client in self.clients.items()}, study)
        self.source = or_system(source)
        self._run: str | None = None
        self._states: ClientStates | None = None
        self._read: dict[str, State] = {}
        self._common: tuple[Task, LocalObjective] | None = None

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise."""
        return self.source.is_private

    def enroll(
        self,
        plan: Plan,
        weights: Vector,
        heads: Iterable[str] = (),
        *,
        algorithm: FederatedAlgorithm | None = None,
        folder: Path | None = None,
        counted: Iterable[tuple[str, int]] | None = None,
    ) -> str:
        """Return the ledger's head once the plan is reserved in every account, or found reserved after a crash.

        A ledger that lacks one of the `heads` was rolled back, and is refused. Without an `algorithm` clients follow
        the one that the plan names. What it keeps at clients is in the `folder`: for a resumed run that of the clients
        and rounds `counted` must be there, unchanged; for a new one what is there is of another past.
        """
        if self._run not in (None, plan.name):
            message = f"this runner charges run {self._run!r}: give {plan.name!r} a runner of its own"
            raise InvalidArgument("runner", message)
        self._algorithm = registry.of_plan(plan) if algorithm is None else registry.bind(algorithm, plan)
        self._common = None
        shown = weights.copy()  # torch writes also into what numpy says cannot be written into
        registry.require_fitting_steps(self._algorithm, self.clients.values())
        if self._factory is not None:
            registry.require_fitting_steps(self._algorithm, self._factory.examples)
            self._factory.rehearse(plan, shown)
        self.charging.charges(plan)  # clients that are not the plan's are refused first
        for client in self.clients.values():
            client.rehearse(plan.local[client.name], shown)
        measuring.require_counting(plan, self.clients)
        self._plan, self._run = plan, plan.name
        if counted is not None:  # what was changed is refused before the ledger hears of it
            self._open_states(folder, counted)
        self.charging.reserve(plan, heads)
        if counted is None:  # a new run has no key before it is reserved
            self._open_states(folder, None)
        return self.charging.head

    def key(self, plan: Plan, heads: Iterable[str] = ()) -> bytes:
        """Return the digest of the entry by which the run was reserved: no file and no head shows it.

        A ledger that lacks one of the `heads` was rolled back, and is refused; so is one that has no such run.
        """
        return self.charging.key(plan, heads)

    def seals_files(self, plan: Plan) -> bool:
        """Return whether the ledger says that the files of the run have digests and seals."""
        return self.charging.seals_files(plan)

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each client's update as it is ready, or why there is none.

        Privacy: every charge of the cohort is durable before the first client draws noise. A client that has
        none left is never asked. Where the cohort is secret, an account that cannot be charged stops the run whether
        or not its client was drawn. In style `local` a client that fails sends noise around zero, so that nobody but
        the owner, who is told of the failure, sees it.
        """
        names = list(dict.fromkeys(cohort))  # one charge, one update
        left = {name: self.charging.left(name, task.round) for name in names}
        able = [name for name in names if left[name] > 0]
        self._read = {}
        yield from (Failure(name, EXHAUSTED) for name in names if left[name] < 1)
        self.charging.commit_local(able, task.round)
        if able:
            head = self.charging.head
            for outcome in self._train_all(able, task, head):
                yield from self._finish_update(outcome, task, head)

    def measure(self, task: Task, clients: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each client's counts of the plan's measurement, or why there are none.

        Privacy: every charge is durable before the first client draws noise. A client that fails, or takes too long,
        has counted nothing, and sends noise around zero where clients add noise; its owner is told.
        """
        names = list(dict.fromkeys(clients))
        able = [name for name in names if self.charging.left_measured(name) > 0]
        yield from (Failure(name, EXHAUSTED) for name in names if name not in able)
        self.charging.commit_measured(able)
        head = self.charging.head
        for name in able:
            counted = self._measure_one(name, task)
            if isinstance(counted, Failure):
                yield counted
                counted = np.zeros(0, dtype=np.int64)
            source = self.source.once(f"measure {self.charging.charged().measured.get(name, 0)} {task.round} {name}")
            yield Update(name, task.round, measuring.release_client(self._plan, counted, source).astype(float), head)

    def charge_measurement(self) -> str:
        """Commit one measurement to the study's account, and return the ledger's head."""
        return self.charging.commit_measured_release()

    def _measure_one(self, name: str, task: Task) -> Counts | Failure:
        """Return a client's counts, which have no noise yet, or its failure."""

        def count(client: Any = self.clients[name]) -> Counts:
            cells, rows = client.find_cells(self._plan.measurement, task.weights.copy())
            return measuring.count_client(self._plan, np.asarray(cells), rows)

        return self._run_client(name, count)

    def charge_release(self, times: int, number: int) -> str:
        """Commit that many client events of the round to the study's account, and return the ledger's head."""
        return self.charging.commit_release(times, number)

    def charged(self) -> Charged:
        """Return what is committed so far."""
        return self.charging.charged()

    def finish(self, run: str) -> None:
        """Return to the accounts what was never committed, and forget what clients kept."""
        self.charging.release(run)
        if self._states is not None:
            self._states.forget_all()
        self._run = None

    def _train_all(self, names: Sequence[str], task: Task, head: str) -> Iterator[Update | Failure]:
        """Yield the change of each client's model, which has not left it yet."""
        for name in names:
            yield self._train_one(name, task, head)

    def _train_one(self, name: str, task: Task, head: str, client: Client | None = None) -> Update | Failure:
        """Return what the client makes of the task, or why it does not; it is made first unless it is given."""
        source, local = self._source_of(name, task), self._plan.in_round(task.round).local[name]

        def train() -> Update:
            objective = self._make_objective(name, task)
            found = self._make_client(name, task) if client is None else client
            return Update(name, task.round, np.asarray(found.train(local, objective.copied(), source)), head)

        return self._run_client(name, train)

    def _run_client(self, name: str, work: Callable[[], Found]) -> Found | Failure:
        """Return what the client's work gives within the time that it may take, or its failure."""
        try:
            return within(self._plan.client_timeout, work)
        except Late:
            return self._report_late(name)
        except INTERRUPTS:
            raise
        except BaseException as error:  # whatever a client's data does to it, the others go on
            return Failure(name, FAILED, error)

    def _make_client(self, name: str, task: Task) -> Client:
        """Return the client of that name; one of a population is made, which may fail as its training may."""
        if self._factory is None:
            return self.clients[name]
        made = self._factory.client(name, self._plan, task.weights.copy())
        registry.require_fitting_steps(self._algorithm, [made])
        return made

    def _make_objective(self, name: str, task: Task) -> LocalObjective:
        if self._states is not None:
            return self._algorithm.objective(task.of(name), self._read_state(name, task))
        if self._common is None or self._common[0] is not task:  # the same for all who keep nothing
            self._common = task, self._algorithm.objective(task, {})
        return self._common[1]

    def _finish_update(self, trained: Update | Failure, task: Task, head: str) -> Iterator[Update | Failure]:
        """Yield what leaves a client, from the change of its model, or why nothing does; what it keeps is stored first.

        Where clients noise their updates, both: a failure, and the noise around zero that leaves in its place.
        """
        left = (
            trained if isinstance(trained, Failure) else self._try(trained.client, lambda: self._leave(trained, task))
        )
        if self._plan.noises_updates:
            if isinstance(left, Failure):
                yield left
                left = Update(left.client, task.round, np.zeros(0), head)
            left = self._add_noise(left, task)
        if isinstance(left, Update) and self._states is not None:
            sent, states = left, self._states
            left = self._try(sent.client, lambda: self._keep(sent, task, states))
        yield left

    def _leave(self, trained: Update, task: Task) -> Update:
        """Return the one vector that leaves the client, which has no noise yet in style `local`."""
        state, own = self._read_state(trained.client, task), task.of(trained.client)
        left = np.asarray(self._algorithm.leaves(trained.value, own, state))
        return trained if left is trained.value else replace(trained, value=left)

    def _add_noise(self, left: Update, task: Task) -> Update:
        """Return the client's update as it may leave in style `local`: clipped, and noised from a stream of its own.

        Privacy: ``plan.in_round(number).client_release``, whose event is committed before the client trains.
        """
        source = self._source_of(left.client, task).once("release")
        release = self._plan.in_round(task.round).client_release
        return replace(left, value=release.release(left.value, task.weights.size, source))

    def _keep(self, left: Update, task: Task, states: ClientStates) -> Update:
        """Store what the client keeps, made of what left it, and return that."""
        state, own = self._read_state(left.client, task), task.of(left.client)
        states.write(left.client, task.round, self._compute_state(left.value, own, state))
        return left

    def _try(self, client: str, work: Callable[[], Update]) -> Update | Failure:
        """Return what the client's work gives, or its failure: whatever its data does to it, the others go on."""
        try:
            return work()
        except INTERRUPTS:
            raise
        except BaseException as error:  # of what the client sent, whatever that is
            return Failure(client, FAILED, error)

    def _compute_state(self, left: Floats, task: Task, state: State) -> State:
        """Return what a client keeps, from what the server will use of the vector that left it."""
        kept = self._algorithm.keeps(_find_used(left, task), task, state)
        if not all(np.isfinite(array).all() for array in kept.values()):
            raise PrivacyError("what a client keeps is no longer finite: plan with smaller steps")
        return kept

    def _read_state(self, client: str, task: Task) -> State:
        """Return what a client kept after its last update that was used; what it kept before that one is removed."""
        if self._states is not None and client not in self._read:
            last = task.counted.get(client, 0)
            self._read[client] = self._states.read(client, last)
            if last:  # it has none before its first
                self._states.forget_before(client, last)
        return self._read.get(client, {})

    def _open_states(self, folder: Path | None, counted: Iterable[tuple[str, int]] | None) -> None:
        self._states = None
        if not self._algorithm.keeps_state:
            return
        if folder is None:
            name = self._plan.algorithm.name
            raise InvalidArgument("folder", f"{name} keeps state at clients: give the folder in which it is stored")
        self._states = ClientStates(folder, self.key(self._plan))
        if counted is None:
            self._states.forget_all()
        for client, round_number in counted or ():
            self._states.read(client, round_number)

    def _report_late(self, client: str) -> Failure:
        message = f"{client} took longer than client_timeout, which is {self._plan.client_timeout:g} s"
        return Failure(client, FAILED, TimeoutError(f"{message}: raise it if training needs longer"))

    def _source_of(self, name: str, task: Task) -> RandomSource:
        # No charge comes twice, so even a seeded source never gives the same noise again after a crash. It is the
        # client's own number: what others were charged in the same ledger changes nothing.
        return self.source.once(f"charge {self.charging.times(name)} {task.round} {name}")


def _find_used(left: Floats, task: Task) -> Floats:
    """Return what the server makes of the vector: clipped to its clip norm, around the last release if its rule is."""
    if task.clip_norm is None:
        return left
    centre = 0.0 if task.centre is None else np.asarray(task.centre, dtype=float)
    return np.asarray(centre + clip_per_example((left - centre)[None], task.clip_norm)[0])
