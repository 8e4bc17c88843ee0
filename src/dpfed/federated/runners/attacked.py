"""Clients that attack, for a simulation: a runner around another, which changes what some clients send.

The last clients of the plan are the faulty ones. They know the honest updates of the round, as an attacker may. All
that such a run writes is marked SIMULATION: its models are for no use but to see what a rule bears.

>>> choose_faulty(["a", "b", "c", "d"], {"sign_flip": 2, "nan": 1})
{'b': 'sign_flip', 'c': 'sign_flip', 'd': 'nan'}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpfed.aggregation.adversaries import ATTACKS
from dpfed.errors import InvalidArgument
from dpfed.federated.messages import Charged, Failure, Runner, Task, Update
from dpfed.federated.state.layout import Vector
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, or_system


def choose_faulty(names: Sequence[str], attacks: Mapping[str, int]) -> dict[str, str]:
    """Return which client attacks how: the last ones of the plan."""
    faulty = [attack for attack, count in attacks.items() for _ in range(count)]
    if len(faulty) >= len(names):
        message = f"attack_sim makes {len(faulty)} of {len(names)} clients attack, and one at least must be honest"
        raise InvalidArgument("attack_sim", f"{message}: give smaller numbers")
    return dict(zip(names[len(names) - len(faulty) :], faulty, strict=True))


class AttackedRunner:
    """A runner whose `faulty` clients send what their attack says in place of their update; the rest is the inner's."""

    def __init__(
        self, inner: Runner, faulty: Mapping[str, str], simulation: str, source: RandomSource | None = None
    ) -> None:
        self._inner = inner
        self._faulty = {name: attack for name, attack in faulty.items() if attack in ATTACKS}
        self.simulation = simulation
        self._source = or_system(source)

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise."""
        return self._inner.is_private

    def enroll(self, plan: Plan, weights: Vector, heads: Iterable[str] = (), **options: Any) -> str:
        """Reserve the plan."""
        return self._inner.enroll(plan, weights, heads, **options)

    def key(self, plan: Plan, heads: Iterable[str] = ()) -> bytes:
        """Return what the ledger seals the run's files with."""
        return self._inner.key(plan, heads)

    def seals_files(self, plan: Plan) -> bool:
        """Return whether the run's files have seals."""
        return self._inner.seals_files(plan)

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield the honest updates as they are, and those of the faulty clients as their attacks make them."""
        outcomes = list(self._inner.train(task, cohort))
        honest = [each.value for each in outcomes if isinstance(each, Update) and each.client not in self._faulty]
        sent = self._attack(task, np.array(honest), outcomes) if honest else {}
        for outcome in outcomes:
            is_changed = isinstance(outcome, Update) and outcome.client in sent
            yield replace(outcome, value=sent[outcome.client]) if is_changed else outcome

    def measure(self, task: Task, clients: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield what the clients count: faulty ones count as the others do."""
        return self._inner.measure(task, clients)

    def charge_measurement(self) -> str:
        """Commit a measurement to the study's account."""
        return self._inner.charge_measurement()

    def charge_release(self, times: int, number: int) -> str:
        """Commit the server's release."""
        return self._inner.charge_release(times, number)

    def charged(self) -> Charged:
        """Return what is committed so far."""
        return self._inner.charged()

    def finish(self, run: str) -> None:
        """Return what was never committed."""
        self._inner.finish(run)

    def _attack(self, task: Task, honest: Any, outcomes: Iterable[Update | Failure]) -> dict[str, Any]:
        by_attack: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.client in self._faulty:
                by_attack.setdefault(self._faulty[outcome.client], []).append(outcome.client)
        sent: dict[str, Any] = {}
        for attack, names in by_attack.items():
            source = self._source.once(f"attack {task.round} {attack}")
            sent |= dict(zip(names, ATTACKS[attack](honest, len(names), source), strict=True))
        return sent
