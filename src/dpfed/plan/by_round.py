"""What each round of a plan does and costs where its noise follows a schedule (`plan.schedule` says why that is sound).

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> ward = LocalPlan(size=9, batch_size=9, steps=1, clip_norm=1.0, noise_multiplier=1.0)
>>> plan = Plan("study", rounds=2, local={"ward": ward}, noise_schedule=(2.0, 0.5))
>>> plan.in_round(1).local["ward"].event, plan.in_round(2).local["ward"].event
(Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=0.5))
>>> cover_local(plan, "ward", number=1)
(Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=0.5))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from dpfed import events as ev
from dpfed.accounting.atoms import as_event
from dpfed.errors import InvalidArgument
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.measuring import list_client_charges, list_server_charges
from dpfed.plan.population import Population
from dpfed.plan.ranges import list_range_charges
from dpfed.plan.schedule import Factors, list_covering, multiply, take_costliest

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

Charges = Mapping[ev.Event, int]  # how often each event is charged


def require_schedule(plan: Plan) -> None:
    """Refuse a schedule that has not one factor for each round, or that the plan's noise cannot follow."""
    factors = plan.noise_schedule
    if factors is None:
        return
    if len(factors) != plan.rounds:
        message = f"noise_schedule must have a factor for each of the {plan.rounds} rounds, got {len(factors)}"
        raise InvalidArgument("noise_schedule", f"{message}: give as many as there are rounds")
    if not plan.units:
        message = f"style {plan.style!r} adds no noise that a schedule could change"
        raise InvalidArgument("noise_schedule", f"{message}: leave noise_schedule out, or choose another style")
    has_tree = any(part.tree is not None for part in plan.kinds)
    if has_tree or (plan.client is not None and plan.client.tree is not None):
        message = "a tree is proved for one noise in all its nodes, so a round cannot have noise of its own"
        raise InvalidArgument("noise_schedule", f"{message}: leave noise_schedule out, or the tree")
    for factor in (min(factors), max(factors)):
        make_round(plan, factor)  # noise that no round may have is refused now


def make_round(plan: Plan, factor: float) -> Plan:
    """Return what a round of that factor does, as a plan without a schedule and without promises of its own."""
    return replace(
        plan,
        noise_schedule=None,
        guarantee=None,
        client_guarantee=None,
        local=_scale_all(plan.local, factor),
        client=None if plan.client is None else plan.client.scaled(factor),
    )


def find_round(plan: Plan, number: int) -> Plan:
    """Return what that round does; the plan itself if it has no schedule. The last one is kept for who asks again."""
    if plan.noise_schedule is None:
        return plan
    factor = plan.factor(number)
    known: dict[float, Plan] = plan.__dict__.get("_last_round", {})
    if factor not in known:
        known = {factor: make_round(plan, factor)}
        plan.__dict__["_last_round"] = known  # as a cached property would
    return known[factor]


def find_local_event(plan: Plan, name: str, factor: float) -> ev.Event:
    """Return the event of a participation in a round of that factor, for which a client's account is charged."""
    return _event_of(plan.client if plan.noises_updates and plan.client else plan.local[name], factor)


def find_client_event(plan: Plan, factor: float) -> ev.Event:
    """Return the client event of a round of that factor."""
    if plan.noise_schedule is None or plan.client is None:
        return plan.client_event
    event = _event_of(plan.client, factor)
    return plan.cohort.event(event, len(plan.local)) if plan.server_noises else event


def require_alike(plan: Plan, what: str) -> None:
    """Refuse to speak of one event or one noise for all rounds where each has its own."""
    if plan.noise_schedule is not None:
        message = f"rounds have noise of their own, so there is no one {what} for all"
        raise InvalidArgument("noise_schedule", f"{message}: ask for plan.in_round(number).{what}")


def pays_all(plan: Plan) -> bool:
    """Return whether the study's account pays for every round, and not for as many as one client takes part in."""
    return plan.is_secret or plan.noise_schedule is not None


def list_local(plan: Plan, name: str, factors: Factors) -> dict[ev.Event, int]:
    """Return the charges of a client for so many rounds of each factor."""
    return add_up((find_local_event(plan, name, factor), times) for factor, times in factors.items())


def list_releases(plan: Plan, factors: Factors) -> dict[ev.Event, int]:
    """Return the charges of the study for so many rounds of each factor."""
    return add_up((find_client_event(plan, factor), times) for factor, times in factors.items())


def list_costliest(plan: Plan, name: str, times: int) -> dict[ev.Event, int]:
    """Return the most that so many charges of that client can be: those of least noise that are reserved."""
    return list_local(plan, name, take_costliest(plan.record_factors, times))


def list_client_all(plan: Plan, name: str) -> dict[ev.Event, int]:
    """Return the most that the whole run takes from that client's account: its rounds, and ranges and figures."""
    beside = [*list_client_charges(plan).items(), *list_range_charges(plan).items()]
    return add_up([*list_costliest(plan, name, plan.record_charges).items(), *beside])


def list_for_client(plan: Plan, sites: int = 1) -> dict[ev.Event, int]:
    """Return all charges for one client: those of the study or, in style `local`, of so many clients' own accounts."""
    factors = plan.client_factors if sites == 1 else multiply(plan.record_factors, sites)
    beside = list_client_charges(plan) if plan.noises_updates else list_server_charges(plan)
    return add_up([*list_releases(plan, factors).items(), *((event, sites * times) for event, times in beside.items())])


def cover_local(plan: Plan, name: str, number: int) -> tuple[ev.Event, ...]:
    """Return the events with which a client may pay for the round: its own, then less noise; only what is reserved."""
    covering = list_covering(plan.record_factors, plan.factor(number))
    return tuple(dict.fromkeys(find_local_event(plan, name, factor) for factor in covering))


def cover_release(plan: Plan, number: int) -> tuple[ev.Event, ...]:
    """Return the events with which the study may pay for the round: its own, then less noise; only what is reserved."""
    covering = list_covering(plan.client_factors, plan.factor(number))
    return tuple(dict.fromkeys(find_client_event(plan, factor) for factor in covering))


def count_left(plan: Plan, name: str, number: int, spent: Charges) -> int:
    """Return how many charges a client has left with which it may pay for the round, after what it spent."""
    if plan.noise_schedule is None:
        return plan.record_charges - sum(spent.values())
    reserved = plan.local_charges(name)
    return sum(reserved[event] - spent.get(event, 0) for event in cover_local(plan, name, number))


def allows_attempt(plan: Plan, number: int, begun: int) -> bool:
    """Return whether a client that was in all attempts begun so far could still pay for that round.

    With a schedule it can as long as no more than the spare rounds were done again (`plan.schedule`).
    """
    if plan.noise_schedule is None:
        return begun < plan.record_charges
    return begun + 1 - number <= plan.spare_rounds


def choose_payment(covering: Sequence[ev.Event], left: Charges) -> ev.Event:
    """Return the first of the events that is left to pay with; if none is, the first, which a ledger refuses."""
    if len(covering) == 1:
        return covering[0]
    return next((event for event in covering if left.get(event, 0) > 0), covering[0])


def add_up(charges: Iterable[tuple[ev.Event, int]]) -> dict[ev.Event, int]:
    """Return how often there is each event, whatever the order; factors a rounding apart may have the same one."""
    total: dict[ev.Event, int] = {}
    for event, times in charges:
        total[event] = total.get(event, 0) + times
    return total


def compose(charges: Charges) -> ev.Event:
    """Return one event for all charges."""
    if len(charges) != 1:
        return as_event(charges)
    ((event, times),) = charges.items()
    return ev.Repeated(event, times)


@lru_cache(maxsize=4096)
def _event_of(part: LocalPlan | ClientPlan, factor: float) -> ev.Event:
    return part.scaled(factor).event


def _scale_all(local: Mapping[str, LocalPlan], factor: float) -> Mapping[str, LocalPlan]:
    if isinstance(local, Population):
        return local  # in no style that has populations do clients add noise
    known = {id(part): part.scaled(factor) for part in {id(part): part for part in local.values()}.values()}
    return {name: known[id(part)] for name, part in local.items()}
