"""What a round tells: to everyone, and to the owner alone.

Who took part, who failed or was turned away and how long it took follow from private data or from a cohort that may be
secret, and a score on records that nobody declared public has no noise. None of it is in ``facts()``, which is what
rounds.jsonl, the terminal, reports and trackers are made of.

>>> result = RoundResult(1, RUNNING, np.zeros(2), cost=(), spent=(), worst_client="ward", head="3:ab")
>>> sorted(result.facts())
['cost', 'head', 'metrics', 'round', 'spent', 'status', 'worst_client']
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dpfed.federated.metrics import Score
from dpfed.federated.weights import Vector
from dpfed.guarantee import Guarantee
from dpfed.runs import BUDGET_EXHAUSTED, FINISHED, NOT_PRIVATE, RUNNING

__all__ = ["BUDGET_EXHAUSTED", "FINISHED", "RUNNING", "Participation", "RoundResult", "plain"]


@dataclass(frozen=True)
class Participation:
    """Who did what in a round: the owner's view. `reused` are updates stored before a crash.

    `errors` are what failed clients raised. Their texts may hold records, so only their types are written down.
    """

    contributed: tuple[str, ...] = ()
    reused: tuple[str, ...] = ()
    exhausted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, BaseException] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class RoundResult:
    """A round that is done: the model it led to, and what it and all rounds so far cost, one statement per unit.

    `spent` is ex post; the promise is that of the whole plan. `worst_client` is the site whose records pay most.
    `head` is the ledger's, and None where the number in it would tell how many clients a secret cohort had.
    A result whose noise can be predicted is not private, and stamped so wherever it is shown.
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
    participation: Participation = field(default_factory=Participation, repr=False)
    seconds: float = field(default=np.nan, repr=False)

    @property
    def shareable_metrics(self) -> tuple[Score, ...]:
        """The scores that everyone may see: those on public data."""
        return tuple(score for score in self.metrics if score.is_shareable)

    def facts(self) -> dict[str, Any]:
        """What everyone may see of the round."""
        return {
            "round": self.number,
            "status": self.status,
            "cost": plain(self.cost),
            "spent": plain(self.spent),
            "worst_client": self.worst_client,
            "metrics": _scores(self.shareable_metrics),
            "head": self.head,
            **({} if self.is_private else {"noise": NOT_PRIVATE}),
        }

    def owner_facts(self) -> dict[str, Any]:
        """What only the owner may see of it."""
        every = _scores(self.metrics)
        errors = {client: type(error).__name__ for client, error in self.participation.errors.items()}
        took_part = {**vars(self.participation), "errors": errors}
        return {"round": self.number, "seconds": self.seconds, "metrics": every, **took_part}


def _scores(scores: Iterable[Score]) -> dict[str, dict[str, Any]]:
    return {
        score.name: {"value": score.value if math.isfinite(score.value) else None, "mark": score.mark}
        for score in scores
    }


def plain(guarantees: Iterable[Guarantee]) -> list[dict[str, Any]]:
    """The guarantees as plain JSON values."""
    return [asdict(guarantee) for guarantee in guarantees]
