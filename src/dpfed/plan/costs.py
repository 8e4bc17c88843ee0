"""What rounds cost: ε of unequal sites, alone and together, of what was spent so far, and the noise that a plan needs.

Sites with the same plan are counted once, so a thousand equal clients cost as much time as one.

>>> small, large = ev.Gaussian(noise_multiplier=2.0), ev.Gaussian(noise_multiplier=9.0)
>>> round(bound_together({"a": small, "b": large, "c": large}, delta=1e-5, sites=1), 3)
1.993
>>> round(bound_together({"a": small, "b": large, "c": large}, delta=1e-5, sites=2), 3)
2.047
>>> from dpfed.plan.plan import LocalPlan, Plan
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> plan = Plan("study", rounds=10, local={"a": ward, "b": ward})
>>> round_of = ward.event
>>> compute_spent(plan, {"record": 1e-5}, {"a": {round_of: 1}, "b": {round_of: 3}}, releases={}).worst_client
'b'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations_with_replacement, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.calibrate import TOLERANCE
from dpfed.accounting.dominance import find_worst
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.accounting.renyi import DEFAULT_ORDERS, epsilon_from_rdp, rdp
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InfeasibleTarget, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import rules
from dpfed.plan.adaptive import find_least_noise
from dpfed.plan.by_round import Charges, add_up, compose, list_costliest, list_for_client, list_local, list_releases
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.measuring import find_beside, list_client_charges, list_server_charges
from dpfed.plan.population import kinds_of
from dpfed.plan.ranges import list_range_charges
from dpfed.plan.schedule import Factors, multiply, reserve_rounds, take_costliest

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

MOST_CHOICES = 300  # of sites that one person may be in, each asked of the exact accountant


class Spent(NamedTuple):
    """The statements about the rounds so far, one per unit, and the site whose records pay most."""

    statements: tuple[Guarantee, ...]
    worst_client: str | None


@lru_cache(maxsize=4096)
def epsilon(event: ev.Event, delta: float, adjacency: str) -> float:
    """Return the exact ε of an event, cached: rounds and clients ask for the same ones again."""
    return epsilon_of(event, delta, adjacency=adjacency)


def find_worst_site(events: Mapping[str, ev.Event], delta: float, adjacency: str = ADD_REMOVE) -> tuple[str, float]:
    """Return the site whose event costs most, and its exact ε."""
    kinds = {id(event): event for event in events.values()}  # many clients share one, and hashing takes its time
    event, found = find_worst(kinds.values(), lambda event: epsilon(event, delta, adjacency))
    return next(name for name, own in events.items() if own is event or own == event), found


def bound_together(events: Mapping[str, ev.Event], delta: float, sites: int, adjacency: str = ADD_REMOVE) -> float:
    """Return an upper bound on the ε of any `sites` of the events together.

    Which sites are worst together depends on their whole curves, so each choice is asked of the accountant, as
    long as there are few. Beyond that, the sum of the largest Rényi divergences at each order bounds them all.
    """
    kinds = Counter(events.values())
    if sites == 1:
        return find_worst_site(events, delta, adjacency)[1]
    choices = list(islice(_list_choices(kinds, sites), MOST_CHOICES + 1))
    if len(choices) > MOST_CHOICES:
        return _worst_by_rdp(kinds, delta, sites, adjacency)
    return max(epsilon_of(ev.Composed(choice), delta, adjacency=adjacency) for choice in choices)


def calibrate_each(
    local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: Factors, sites: int, beside: ev.Event | None = None
) -> dict[str, LocalPlan]:
    """Return the sites' plans, each with its own noise, such that any `sites` together keep the guarantee.

    Each is first given the noise for as many sites like itself; unequal ones may cost a little more together,
    and then all aim a little lower. `beside` is what else each site is charged.
    """
    target = guarantee
    for _ in range(30):
        found = _calibrate_alone(local, target, multiply(rounds, sites), _repeat(beside, sites))
        worst = _worst(found, rounds, guarantee, sites, beside)
        if worst <= guarantee.epsilon:
            return found
        target = replace(target, epsilon=target.epsilon * guarantee.epsilon / worst * (1 - 1e-4))
    raise InfeasibleTarget(
        "guarantee", f"no noise was found at which {sites} sites together keep {guarantee}", ["fewer sites would do"]
    )


def calibrate_alike(
    local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: Factors, sites: int, beside: ev.Event | None = None
) -> dict[str, LocalPlan]:
    """Return the sites' plans with one least noise for all, at which any `sites` together keep the guarantee."""

    def alike(noise_multiplier: float) -> dict[str, LocalPlan]:
        known = {
            part: replace(part, noise_multiplier=noise_multiplier, delta=guarantee.delta, adjacency=guarantee.adjacency)
            for part in dict.fromkeys(local.values())
        }
        return {name: known[part] for name, part in local.items()}

    # As many sites like the worst need enough noise; one of it alone needs at least so much.
    enough = max(part.noise for part in calibrate_each(local, guarantee, rounds, sites, beside).values())
    little = max(part.noise for part in _calibrate_alone(local, guarantee, rounds, beside).values())
    while enough > little * (1 + TOLERANCE):
        middle = math.sqrt(little * enough)
        if _worst(alike(middle), rounds, guarantee, sites, beside) <= guarantee.epsilon:
            enough = middle
        else:
            little = middle
    return alike(enough)


def compose_each(charges: Mapping[str, Charges]) -> dict[str, ev.Event]:
    """Return the event of all charges of each site; no entry for a site without any."""
    # By which object an event is, and not by its value: many clients share one, and hashing takes its time.
    kinds: dict[tuple[int, ...], ev.Event | None] = {}
    keys = {name: (*map(id, bag), *bag.values()) for name, bag in charges.items()}
    for name, key in keys.items():
        if key not in kinds:
            kept = {event: times for event, times in charges[name].items() if times}
            kinds[key] = compose(kept) if kept else None
    return {name: event for name, key in keys.items() if (event := kinds[key]) is not None}


def compute_spent(plan: Plan, deltas: Mapping[str, float], local: Mapping[str, Charges], releases: Charges) -> Spent:
    """Return what these charges of each client, and of the server's releases, cost at each δ."""
    statements: list[Guarantee] = []
    worst_client = None
    if (unit := plan.local_unit) in deltas:
        events = compose_each(local)
        delta, relation = deltas[unit], plan.record_adjacency
        worst_client, found = find_worst_site(events, delta, relation) if events else (None, 0.0)
        sites = min(plan.max_sites_per_person, len(events))
        if sites > 1:
            found = bound_together(events, delta, sites, relation)
        statements.append(Guarantee(found, delta, unit, relation))
    if "client" in deltas:
        delta, relation = deltas["client"], plan.client_adjacency
        if plan.noises_updates:  # each client pays for itself
            events = compose_each(local)
            worst_client, found = find_worst_site(events, delta, relation) if events else (None, 0.0)
        else:
            found = next((epsilon(event, delta, relation) for event in compose_each({"": releases}).values()), 0.0)
        statements.append(Guarantee(found, delta, "client", relation))
    return Spent(tuple(statements), worst_client)


def find_charges_until(plan: Plan, number: int) -> tuple[dict[str, Charges], Charges]:
    """Return the most that clients and the study can have been charged after that round, if nothing was done again."""
    times = min(number, plan.participations)
    factors = take_costliest(plan.record_factors, times)
    if plan.noise_schedule is not None and plan.participations == plan.rounds and not plan.is_secret:
        factors = reserve_rounds(plan.noise_schedule[:number], number, spare=0)  # each pays for its rounds themselves
    names = plan.local if plan.charges_clients else ()
    measured = 0 if plan.measurement is None else sum(each <= number for each in plan.measurement.rounds)
    own = [(event, measured) for event in list_client_charges(plan) if measured]
    own += [(event, 1) for event in list_range_charges(plan)]
    local: dict[str, Charges] = {name: add_up([*list_local(plan, name, factors).items(), *own]) for name in names}
    if plan.client is None:
        return local, {}
    first = None if plan.noise_schedule is None else plan.noise_schedule[:number]
    releases = reserve_rounds(first, min(number, plan.client_charges), spare=0)
    beside = [(event, measured) for event in list_server_charges(plan) if measured]
    return local, add_up([*list_releases(plan, releases).items(), *beside])


def find_statements(plan: Plan, delta: float | None) -> tuple[Guarantee, ...]:
    """Return what the whole plan guarantees: one statement per unit, at that δ or at those that were asked for."""
    costs = {plan.local_unit: plan.record_epsilon, "client": plan.client_epsilon}
    relations = {plan.local_unit: plan.record_adjacency, "client": plan.client_adjacency}
    deltas = {unit: _choose_delta(plan, unit, delta) for unit in plan.units}
    return tuple(Guarantee(costs[unit](at), at, unit, relations[unit]) for unit, at in deltas.items())


def find_site_epsilon(plan: Plan, client: str, delta: float) -> float:
    """Return the exact ε of all that is charged for one record or person of that client, rounded up."""
    if plan.noises_updates:
        return find_client_epsilon(plan, delta)
    if not plan.noises_steps:
        return plan.local[client].epsilon(delta, plan.record_factors)  # which has no noise, and says so
    return epsilon(compose(plan.local_charges(client)), delta, plan.record_adjacency)


def find_record_epsilon(plan: Plan, delta: float) -> float:
    """Return the ε of all rounds for one record or person, in the worst site or sites that somebody may be in."""
    if plan.noises_updates:  # which have the same noise at all sites
        together = list_for_client(plan, plan.max_sites_per_person)
        return epsilon_of(compose(together), delta, adjacency=plan.client_adjacency)
    return bound_together(record_events(plan), delta, plan.max_sites_per_person, plan.record_adjacency)


def find_client_epsilon(plan: Plan, delta: float) -> float:
    """Return the ε of all rounds for one client, rounded up."""
    return epsilon_of(compose(list_for_client(plan)), delta, adjacency=plan.client_adjacency)


def find_worst_client(plan: Plan, delta: float | None) -> str:
    """Return the client whose records pay most for the whole plan."""
    _require_records(plan)
    return find_worst_site(record_events(plan), _choose_delta(plan, plan.local_unit, delta), plan.record_adjacency)[0]


def find_binding_client(plan: Plan, delta: float | None) -> str:
    """Return the client that needs the most noise: at equal noise its records would pay most."""
    _require_records(plan)
    noise = max((part.noise_multiplier or 0.0 for part in plan.kinds), default=0.0) or 1.0
    alike = {
        name: replace(part, noise_multiplier=noise, adaptive=None, delta=None) for name, part in plan.local.items()
    }
    at = _choose_delta(plan, plan.local_unit, delta)
    return find_worst_client(replace(plan, local=alike, guarantee=None, client_guarantee=None), at)


def record_events(plan: Plan) -> dict[str, ev.Event]:
    """Return the event of all charges to each client's account."""
    return compose_each({name: plan.local_charges(name) for name in plan.local})


def calibrate(plan: Plan, guarantees: Iterable[Guarantee], noise: str) -> Plan:
    """Return the plan with the least noise at which all rounds together keep the guarantees, one per unit."""
    asked = rules.by_unit(plan, guarantees, noise)
    changed = plan
    if (promise := asked.get(plan.local_unit)) is not None:
        parts = _calibrate_records(plan, promise, noise, plan.record_factors, find_beside(plan, promise.unit))
        changed = replace(changed, local=parts, guarantee=promise)
    if plan.client is not None and (promise := asked.get("client")) is not None:
        beside = find_beside(plan, "client")
        client = _calibrate_updates(changed, plan.client, promise, plan.client_factors, beside)
        return replace(changed, client=client, client_guarantee=promise)
    return changed


def calibrate_rounds(plan: Plan, guarantees: Iterable[Guarantee], noise: str) -> Plan:
    """Return the plan with the least noise at which each round alone keeps each guarantee, and with the totals.

    That is the one of least noise, where it follows a schedule.
    """
    asked = rules.by_unit(plan, guarantees, noise)
    if plan.client is not None and plan.client.tree is not None and "client" in asked:
        message = "the rounds of a tree are one event together, so no round has an ε of its own"
        raise InvalidArgument("guarantees", f"{message}: ask for the ε of the whole run")
    kept = {promise.unit: promise for promise in plan.guarantees if promise.unit not in asked}
    changed = replace(plan, guarantee=kept.get(plan.local_unit), client_guarantee=kept.get("client"))
    costliest = take_costliest(plan.record_factors, 1)
    if (promise := asked.get(plan.local_unit)) is not None:
        alone = replace(promise, delta=_choose_round_delta(plan, promise))
        parts = _calibrate_records(changed, alone, noise, costliest)
        changed = replace(changed, local=parts)
        changed = replace(changed, guarantee=replace(promise, epsilon=changed.record_epsilon(promise.delta)))
    if plan.client is not None and (promise := asked.get("client")) is not None:
        alone = replace(promise, delta=_choose_round_delta(plan, promise))
        changed = replace(changed, client=_calibrate_updates(changed, plan.client, alone, costliest))
        whole = epsilon_of(compose(list_for_client(changed)), promise.delta, adjacency=promise.adjacency)
        changed = replace(changed, client_guarantee=replace(promise, epsilon=whole))
    return changed


def find_round_cost(plan: Plan, promise: Guarantee) -> tuple[float, float]:
    """Return ε of the costliest charge alone, in the worst site or sites that somebody may be in, and at which δ."""
    delta = _choose_round_delta(plan, promise)
    if promise.unit == "client":
        (event,) = list_releases(plan, take_costliest(plan.client_factors, 1))
        return epsilon(event, delta, plan.client_adjacency), delta
    events = compose_each({name: list_costliest(plan, name, 1) for name in plan.local})
    return bound_together(events, delta, plan.max_sites_per_person, plan.record_adjacency), delta


def _choose_round_delta(plan: Plan, promise: Guarantee) -> float:
    """Return the δ of one round: 0 if all noise is Laplace's, which needs none, else that of the promise."""
    is_client = promise.unit == "client" and plan.client is not None
    norms = {plan.client.norm} if is_client and plan.client is not None else {part.norm for part in plan.kinds}
    return 0.0 if norms == {"l1"} else promise.delta


def _calibrate_records(
    plan: Plan, promise: Guarantee, noise: str, rounds: Factors, beside: ev.Event | None = None
) -> dict[str, LocalPlan]:
    search = calibrate_alike if noise == "shared" else calibrate_each
    return search(plan.local, promise, rounds, plan.max_sites_per_person, beside)


def _calibrate_updates(
    plan: Plan, client: ClientPlan, guarantee: Guarantee, rounds: Factors, beside: ev.Event | None = None
) -> ClientPlan:
    population = len(plan.local)

    def run(noised_sum: ev.Event, times: int) -> ev.Event:
        if client.tree and isinstance(noised_sum, ev.Gaussian):
            event: ev.Event = client.tree.event(noised_sum.noise_multiplier, plan.rounds, plan.participations)
        else:
            event = plan.cohort.event(noised_sum, population) if plan.server_noises else noised_sum
        return ev.Repeated(event, times)

    least = find_least_noise(guarantee, run, rounds, client.adaptive, client.norm, beside)
    return replace(client, noise_multiplier=least)


def _choose_delta(plan: Plan, unit: str, delta: float | None) -> float:
    if delta is not None:
        return checks.probability(delta=delta)
    promise = plan.client_guarantee if unit == "client" else plan.guarantee
    if promise is None:
        message = f"delta is missing: the plan has no guarantee for a {unit} that names one"
        raise InvalidArgument("delta", f"{message}; give delta, such as 1e-5")
    return promise.delta


def _require_records(plan: Plan) -> None:
    if not plan.noises_steps:
        message = f"style {plan.style} protects no {plan.local_unit}, so no site's records pay most"
        raise InvalidArgument("style", f"{message}: choose style 'sample' or 'hybrid'")


def _worst(
    local: Mapping[str, LocalPlan], rounds: Factors, guarantee: Guarantee, sites: int, beside: ev.Event | None
) -> float:
    more = [] if beside is None else [(beside, 1)]
    known = {part: add_up([*_list_charges(part, rounds).items(), *more]) for part in kinds_of(local)}
    events = compose_each({name: known[part] for name, part in local.items()})
    return bound_together(events, guarantee.delta, sites, guarantee.adjacency)


def _list_charges(part: LocalPlan, rounds: Factors) -> Charges:
    return add_up((part.scaled(factor).event, times) for factor, times in rounds.items())


def _repeat(event: ev.Event | None, times: int) -> ev.Event | None:
    return None if event is None else ev.Repeated(event, times)


def _calibrate_alone(
    local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: Factors, beside: ev.Event | None
) -> dict[str, LocalPlan]:
    found = {part: part.calibrated(guarantee, rounds, beside) for part in dict.fromkeys(local.values())}
    return {name: found[part] for name, part in local.items()}


def _list_choices(kinds: Mapping[ev.Event, int], sites: int) -> Iterable[tuple[ev.Event, ...]]:
    for choice in combinations_with_replacement(kinds, sites):
        if all(times <= kinds[event] for event, times in Counter(choice).items()):
            yield choice


def _worst_by_rdp(kinds: Mapping[ev.Event, int], delta: float, sites: int, adjacency: str) -> float:
    curves = [
        rdp(event, DEFAULT_ORDERS, adjacency=adjacency)
        for event, times in kinds.items()
        for _ in range(min(times, sites))
    ]
    largest = np.sort(np.array(curves), axis=0)[-sites:]
    return epsilon_from_rdp(DEFAULT_ORDERS, largest.sum(axis=0) * (1 + math.ldexp(1.0, -48)), delta)
