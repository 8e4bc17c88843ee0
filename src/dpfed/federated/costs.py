"""What the rounds so far have cost, one statement per unit: from the charges that are in the ledger.

>>> from dpfed.plan import LocalPlan
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> plan = Plan("study", rounds=10, local={"a": ward, "b": ward})
>>> spent(plan, {"record": 1e-5}, {"a": 1, "b": 3}, 0).worst_client
'b'
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from dpfed import events as ev
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.guarantee import Guarantee
from dpfed.plan import Plan
from dpfed.plan_costs import charged, worst_together


class Spent(NamedTuple):
    """The statements, and the site whose records pay most."""

    statements: tuple[Guarantee, ...]
    worst_client: str | None


def spent(plan: Plan, deltas: Mapping[str, float], local: Mapping[str, int], releases: int) -> Spent:
    """The ε of so many charges of each client's local event and of the server's release, at each unit's δ."""
    statements: list[Guarantee] = []
    worst = None
    if (unit := plan.local_unit) in deltas:
        events = charged(plan.local, local)
        delta, relation = deltas[unit], plan.record_adjacency
        alone = {event: _epsilon(event, delta, relation) for event in set(events.values())}
        worst = max(events, key=lambda name: alone[events[name]], default=None)
        found = max(alone.values(), default=0.0)
        sites = min(plan.max_sites_per_person, len(events))
        if sites > 1:
            found = worst_together(events, delta, sites, relation)
        statements.append(Guarantee(found, delta, unit, relation))
    if "client" in deltas:
        found = (
            _epsilon(ev.Repeated(plan.client_event, releases), deltas["client"], plan.client_adjacency)
            if releases
            else 0.0
        )
        statements.append(Guarantee(found, deltas["client"], "client", plan.client_adjacency))
    return Spent(tuple(statements), worst)


@lru_cache(maxsize=4096)
def _epsilon(event: ev.Event, delta: float, adjacency: str) -> float:
    return epsilon_of(event, delta, adjacency=adjacency)
