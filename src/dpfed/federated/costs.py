"""What the rounds so far have cost, one statement per unit: from the charges that are in the ledger.

>>> from dpfed.plan import LocalPlan
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> plan = Plan("study", rounds=10, local={"a": ward, "b": ward})
>>> spent(plan, {"record": 1e-5}, {"a": 1, "b": 3}, 0).worst_client
'b'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dpfed import events as ev
from dpfed import plan_costs
from dpfed.guarantee import Guarantee
from dpfed.plan import Plan


class Spent(NamedTuple):
    """The statements, and the site whose records pay most."""

    statements: tuple[Guarantee, ...]
    worst_client: str | None


def spent(plan: Plan, deltas: Mapping[str, float], local: Mapping[str, int], releases: int) -> Spent:
    """The ε of so many charges of each client's local event and of the server's release, at each unit's δ."""
    statements: list[Guarantee] = []
    worst = None
    if (unit := plan.local_unit) in deltas:
        events = plan_costs.charged(plan.local, local)
        delta, relation = deltas[unit], plan.record_adjacency
        worst, found = plan_costs.worst(events, delta, relation) if events else (None, 0.0)
        sites = min(plan.max_sites_per_person, len(events))
        if sites > 1:
            found = plan_costs.worst_together(events, delta, sites, relation)
        statements.append(Guarantee(found, delta, unit, relation))
    if "client" in deltas:
        found = (
            plan_costs.epsilon(ev.Repeated(plan.client_event, releases), deltas["client"], plan.client_adjacency)
            if releases
            else 0.0
        )
        statements.append(Guarantee(found, deltas["client"], "client", plan.client_adjacency))
    return Spent(tuple(statements), worst)
