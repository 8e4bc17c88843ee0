"""What a round tells: to everyone, and to the owner alone.

Who took part, who failed or was refused and how long it took follow from private data or from a cohort that may be
secret, and a score on records that nobody declared public has no noise. None of it is in ``facts()``, which is what
rounds.jsonl, the terminal, reports and trackers are made of.

>>> result = RoundResult(1, RUNNING, np.zeros(2), cost=(), spent=(), worst_client="ward", head="3:ab")
>>> sorted(result.facts())
['cost', 'head', 'metrics', 'round', 'spent', 'status', 'worst_client']
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpfed.federated.measured import Measured
from dpfed.federated.metrics import Score
from dpfed.federated.state.layout import Vector
from dpfed.guarantee import Guarantee
from dpfed.runs.directory import BUDGET_EXHAUSTED, FINISHED, NOT_PRIVATE, RUNNING, STOPPED
from dpfed.runs.rounds import Participation, RoundRecord, ScoreRecord, StatementRecord

__all__ = ["BUDGET_EXHAUSTED", "FINISHED", "RUNNING", "STOPPED", "Participation", "RoundResult", "plain"]


@dataclass(frozen=True, eq=False)
class RoundResult:
    """A round that is done: the model it led to, and what it and all rounds so far cost, one statement per unit.

    `spent` is ex post; the promise is that of the whole plan. `worst_client` is the site whose records pay most.
    `head` is the ledger's, and None where the number in it would tell how many clients a secret cohort had.
    A result whose noise can be predicted is not private, and stamped so wherever it is shown; so is one of a
    `simulation` in which clients attack. `measured` is what was released about the model, if anything.
    """

    number: int
    status: str
    weights: Vector = field(repr=False)
    cost: tuple[Guarantee, ...]
    spent: tuple[Guarantee, ...]
    worst_client: str | None
    head: str | None
    metrics: tuple[Score, ...] = ()
    is_private: bool = True
    simulation: str = ""
    participation: Participation = field(default_factory=Participation, repr=False)
    seconds: float = field(default=np.nan, repr=False)
    measured: Measured | None = None

    @property
    def shareable_metrics(self) -> tuple[Score, ...]:
        """The scores that everyone may see: those on public data."""
        return tuple(score for score in self.metrics if score.is_shareable)

    def facts(self) -> RoundRecord:
        """Return what everyone may see of the round: its line in rounds.jsonl."""
        facts: RoundRecord = {
            "round": self.number,
            "status": self.status,
            "cost": plain(self.cost),
            "spent": plain(self.spent),
            "worst_client": self.worst_client,
            "metrics": _plain_scores(self.shareable_metrics),
            "head": self.head,
        }
        if self.measured is not None:
            facts["released"] = self.measured.to_record()
        if not self.is_private:
            facts["noise"] = NOT_PRIVATE
        if self.simulation:
            facts["simulation"] = self.simulation
        return facts

    def owner_facts(self) -> dict[str, Any]:
        """Return what only the owner may see of the round: its line in owner.jsonl."""
        own = {"round": self.number, "seconds": self.seconds, "metrics": _plain_scores(self.metrics)}
        return {**self.participation.to_record(), **own}


def _plain_scores(scores: Iterable[Score]) -> dict[str, ScoreRecord]:
    return {
        score.name: {"value": score.value if math.isfinite(score.value) else None, "mark": score.mark}
        for score in scores
    }


def plain(guarantees: Iterable[Guarantee]) -> list[StatementRecord]:
    """Return the guarantees as plain JSON values."""
    return [
        {"epsilon": each.epsilon, "delta": each.delta, "unit": each.unit, "adjacency": each.adjacency}
        for each in guarantees
    ]
