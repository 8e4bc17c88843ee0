"""What passes between the engine and its clients: plain values, and the three verbs of a runner.

>>> Failure("ward", "exhausted")
Failure(client='ward', reason='exhausted')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dpfed.plan import Plan
from dpfed.runs import Update
from dpfed.structure import Floats


@dataclass(frozen=True)
class Task:
    """What a round asks of every client: the weights to start from."""

    round: int
    weights: Floats


@dataclass(frozen=True)
class Failure:
    """A client that contributes nothing this round; `error` stays with the owner and is never written down."""

    client: str
    reason: str
    error: Exception | None = field(default=None, compare=False, repr=False)


class Runner(Protocol):
    """Where clients live: in this process, or behind a network."""

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise: false for a seeded source, whose rounds are stamped so."""

    def enroll(self, plan: Plan, weights: Floats, heads: Iterable[str] = ()) -> str:
        """The ledger's head once the plan is reserved; a ledger that lacks one of the heads is refused."""

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """What each client releases or why it does not; charges are durable before noise is drawn."""

    def finish(self, run: str) -> None:
        """Returns what was never committed."""
