"""All clients in this process, their accounts in one ledger: one transaction charges a whole cohort.

>>> import numpy as np
>>> from dpfed.federated.client import Client
>>> from dpfed.ledger.ledger import Ledger
>>> from dpfed.plan import LocalPlan, Plan
>>> class Mean:
...     def gradients(self, weights, values):
...         return weights - values
>>> ledger = Ledger("sqlite:///ledger.db")
>>> _ = ledger.open("ward-2026", epsilon=4.0, delta=1e-5)
>>> local = LocalPlan(size=8, batch_size=4, steps=3, learning_rate=0.5, clip_norm=1.0, noise_multiplier=9.0)
>>> runner = LocalRunner([Client("ward", (np.ones((8, 2)),), "ward-2026")], Mean(), ledger)
>>> _ = runner.enroll(Plan("study", rounds=2, local={"ward": local}), np.zeros(2))
>>> [type(update).__name__ for update in runner.train(Task(1, np.zeros(2)), ["ward"])]
['Update']
>>> ledger.close()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dpfed.errors import InvalidArgument
from dpfed.events import Event
from dpfed.federated.client import Client, Model
from dpfed.federated.update import Failure, Task
from dpfed.ledger.ledger import Ledger
from dpfed.plan import Plan
from dpfed.randomness import RandomSource, or_system
from dpfed.runs import Update, sequence
from dpfed.structure import Floats


class LocalRunner:
    """Trains clients one after the other in this process."""

    def __init__(
        self, clients: Iterable[Client], model: Model, ledger: Ledger, source: RandomSource | None = None
    ) -> None:
        self.clients = {client.name: client for client in clients}
        self.model = model
        self.ledger = ledger
        self.source = or_system(source)

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise."""
        return self.source.is_private

    def enroll(self, plan: Plan, weights: Floats, heads: Iterable[str] = ()) -> str:
        """The ledger's head once every client's part of the plan is reserved, or found reserved after a crash.

        A ledger that lacks one of the `heads` was rolled back, and is refused.
        """
        charges, known = plan.charges(self.clients.values()), list(heads)
        for client in self.clients.values():
            self._require_records(client)
            client.rehearse(self.model, weights)
        for head in known:
            self.ledger.require(head)
        self._plan = plan
        if self.ledger.has_run(plan.name):
            self._reservation = self.ledger.resume(plan.name)
            self._require_ours(charges, is_new=not known)
        else:
            self._reservation = self.ledger.reserve(charges, run=plan.name, fixed_plan=True)
        return str(self.ledger.head())

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """What each client of the cohort releases, one by one as it is ready, or why it does not.

        Privacy: every charge of the cohort is durable before the first client draws noise. A client that has
        none left is never asked.
        """
        clients = [self.clients[name] for name in cohort]
        able = [client for client in clients if self._left(client) > 0]
        yield from (Failure(client.name, "exhausted") for client in clients if client not in able)
        if able:
            self._reservation.commit({client.account: self._plan.local[client.name].event for client in able})
            head = str(self.ledger.head())
            yield from (self._trained(client, task, head) for client in able)

    def finish(self, run: str) -> None:
        """Returns to the accounts what was never committed."""
        if any(reservation.run == run for reservation in self.ledger.reservations()):
            self.ledger.release(run, reason="the run has ended")

    def _require_records(self, client: Client) -> None:
        unit = self.ledger.account(client.account).unit
        if unit != "record":
            raise InvalidArgument(
                "clients",
                f"clipping each record protects one record, and account {client.account} is for one {unit}: give "
                f"{client.name} an account whose unit is record",
            )

    def _require_ours(self, charges: Mapping[str, Mapping[Event, int]], *, is_new: bool) -> None:
        same = all(self._reservation.events(account) == events for account, events in charges.items())
        if not same or (is_new and not any(map(self._left, self.clients.values()))):
            what = "is spent" if same else "was reserved for another plan"
            where = "give the plan another name, or go on in its own directory"
            raise InvalidArgument("plan", f"run {self._plan.name!r} {what} in this ledger: {where}")

    def _left(self, client: Client) -> int:
        return self._reservation.left(client.account, self._plan.local[client.name].event)

    def _trained(self, client: Client, task: Task, head: str) -> Update | Failure:
        # No entry comes twice, so even a seeded source never gives the same noise again after a crash.
        source = self.source.stream(f"{sequence(head)} {client.name}")
        try:
            local = self._plan.local[client.name]
            return Update(client.name, client.train(local, self.model, task.weights, source), head)
        except Exception as error:  # whatever a client's data does to it, the others go on
            return Failure(client.name, "failed", error)
