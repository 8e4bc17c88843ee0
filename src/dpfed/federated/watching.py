"""Quarantine in a round: whose updates count, and what is remembered of the clients after it.

>>> select_counted({"a": Standing(is_aside=True)}, {"a": 1, "b": 2})
{'b': 2}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from dpfed.aggregation.quarantine import Standing, Standings
from dpfed.arrays import Floats
from dpfed.federated.results import Participation
from dpfed.plan.plan import Plan
from dpfed.plan.robust import count_aside

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Judged:
    """Who took part, with every decision on quarantine, and the clients' standings after the round."""

    participation: Participation
    standings: Standings | None = None


def select_counted(standings: Standings, updates: Mapping[str, T]) -> dict[str, T]:
    """Return the updates of clients that are not in quarantine."""
    return {name: update for name, update in updates.items() if not standings.get(name, Standing()).is_aside}


def judge(
    plan: Plan,
    number: int,
    standings: Standings,
    updates: Mapping[str, Floats],
    aggregate: Floats,
    participation: Participation,
) -> Judged:
    """Return the participation with the decisions of the round, and the standings after it; none without quarantine."""
    if plan.quarantine is None:
        return Judged(participation)
    refused = {name: reason for name, reason in participation.refused.items() if name not in updates}
    after, decisions = plan.quarantine.judge(number, standings, updates, refused, aggregate, most=count_aside(plan))
    entries = tuple(asdict(decision) for decision in decisions)
    return Judged(replace(participation, quarantine=entries), after)
