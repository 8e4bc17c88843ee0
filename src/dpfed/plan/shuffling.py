"""A shuffler between clients and server: what it adds to the statement that each client of style `local` keeps alone.

Every client clips and noises its own update, and pays for that in full. A shuffler that mixes these reports and strips
their names hides each among the others, from the server too. That is a second, smaller ε, which rests on the shuffler
and on a declared minimum of honest reports; the first one needs neither.

>>> from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
>>> phones = {f"phone-{i}": LocalPlan(size=8, batch_size=8, steps=1) for i in range(1000)}
>>> noise = ClientPlan(clip_norm=1.0, noise_multiplier=2.0, norm="l1", shuffle_users=900)
>>> plan = Plan("survey", rounds=1, local=phones, style="local", client=noise, weighting="equal")
>>> print(f"{plan.client_epsilon(1e-6):.4f} alone, {find_shuffled(plan, 1e-6).epsilon:.4f} shuffled")
1.0000 alone, 0.1930 shuffled
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfed import events as ev
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.aggregation.rules import Mean
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.by_round import compose, list_releases
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import FixedCohort
from dpfed.plan.measuring import list_client_charges

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan


def require_shuffleable(plan: Plan, client: ClientPlan) -> None:
    """Refuse a shuffler where its gain is not proved, or where a report would not be one among equals."""
    users = client.shuffle_users
    if users is None:
        return
    if not plan.noises_updates:
        message = f"style {plan.style!r} sends updates that are not private by themselves, and shuffling is no noise"
        raise InvalidArgument("shuffle_users", f"{message}: leave shuffle_users out, or choose style 'local'")
    if client.norm != "l1":
        message = "shuffling is proved for reports that are ε₀-DP each, and those with Gaussian noise are not"
        raise InvalidArgument("shuffle_users", f"{message}: choose norm='l1', or leave shuffle_users out")
    most = plan.cohort.size if isinstance(plan.cohort, FixedCohort) else len(plan.local)
    if users > most:
        message = f"shuffle_users must be at most {most}, the largest cohort there can be, got {users}"
        raise InvalidArgument("shuffle_users", f"{message}: with fewer reports the shuffler hands on nothing")
    if plan.weighting != "equal" and len({part.size for part in plan.kinds}) > 1:
        message = "a report without a name cannot be weighted by the declared size of its client"
        raise InvalidArgument("weighting", f"{message}: choose weighting='equal', or leave shuffle_users out")


def find_shuffled(plan: Plan, delta: float) -> Guarantee | None:
    """Return what holds for one client after shuffling, at that δ; None where there is no shuffler.

    Privacy: every participation is charged as `Shuffled` among the declared users, under replace_one, at most as often
    as its own account pays. A cohort amplifies nothing here. Never more than the client's own statement.
    """
    if plan.client is None or plan.client.shuffle_users is None:
        return None
    users = plan.client.shuffle_users
    charges: dict[ev.Event, int] = {
        ev.Shuffled(event, users): times for event, times in list_releases(plan, plan.client_factors).items()
    }
    charges |= list_client_charges(plan)  # which name their client
    amplified = epsilon_of(compose(charges), delta, adjacency=plan.client_adjacency)
    return Guarantee(min(amplified, plan.client_epsilon(delta)), delta, "client", plan.client_adjacency)


def combine_reports(plan: Plan, reports: Sequence[Floats], size: int, **released: Any) -> Floats:
    """Return the aggregate of a round from reports without names.

    A mean is over the expected cohort, and zero where there are none; another rule refuses too few of them. `released`
    is what such rules need.
    """
    if not reports and isinstance(plan.aggregation, Mean):
        return np.zeros(size)
    share = float(1 / plan.cohort.expected(len(plan.local)))
    named = {str(place): report for place, report in enumerate(reports)}
    return plan.aggregation.combined(named, size, dict.fromkeys(named, share), **released)
