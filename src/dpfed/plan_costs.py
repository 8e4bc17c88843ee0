"""What a run costs the records of unequal sites: the worst one, the worst few together, and the noise each needs.

Sites with the same plan are counted once, so a thousand equal clients cost as much time as one.

>>> small, large = ev.Gaussian(noise_multiplier=2.0), ev.Gaussian(noise_multiplier=9.0)
>>> round(worst_together({"a": small, "b": large, "c": large}, delta=1e-5, sites=1), 3)
1.993
>>> round(worst_together({"a": small, "b": large, "c": large}, delta=1e-5, sites=2), 3)
2.047
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations_with_replacement, islice

import numpy as np

from dpfed import events as ev
from dpfed.accounting.calibrate import TOLERANCE
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.accounting.renyi import DEFAULT_ORDERS, epsilon_from_rdp, rdp
from dpfed.accounting.worst import worst_of
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InfeasibleTarget
from dpfed.guarantee import Guarantee
from dpfed.local_plan import LocalPlan

MOST_CHOICES = 300  # of sites that one person may be in, each asked of the exact accountant


@lru_cache(maxsize=4096)
def epsilon(event: ev.Event, delta: float, adjacency: str) -> float:
    """The exact ε of an event, remembered: rounds and clients ask for the same ones again."""
    return epsilon_of(event, delta, adjacency=adjacency)


def worst(events: Mapping[str, ev.Event], delta: float, adjacency: str = ADD_REMOVE) -> tuple[str, float]:
    """The site whose event costs most, and its exact ε."""
    kinds = {id(event): event for event in events.values()}  # many clients share one, and hashing takes its time
    event, found = worst_of(kinds.values(), lambda event: epsilon(event, delta, adjacency))
    return next(name for name, own in events.items() if own is event or own == event), found


def worst_together(events: Mapping[str, ev.Event], delta: float, sites: int, adjacency: str = ADD_REMOVE) -> float:
    """An upper bound on the ε of any `sites` of the events together.

    Which sites are worst together depends on their whole curves, so each choice is asked of the accountant, as
    long as there are few. Beyond that, the sum of the largest Rényi divergences at each order bounds them all.
    """
    kinds = Counter(events.values())
    if sites == 1:
        return worst(events, delta, adjacency)[1]
    choices = list(islice(_choices(kinds, sites), MOST_CHOICES + 1))
    if len(choices) > MOST_CHOICES:
        return _worst_by_rdp(kinds, delta, sites, adjacency)
    return max(epsilon_of(ev.Composed(choice), delta, adjacency=adjacency) for choice in choices)


def calibrated_local(
    local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: int, sites: int
) -> dict[str, LocalPlan]:
    """The sites' plans, each with its own noise, such that any `sites` of them together keep the guarantee.

    Each is first given the noise for as many sites like itself; unequal ones may cost a little more together,
    and then all aim a little lower.
    """
    target = guarantee
    for _ in range(30):
        found = _alone(local, target, rounds * sites)
        worst = _worst(found, rounds, guarantee, sites)
        if worst <= guarantee.epsilon:
            return found
        target = replace(target, epsilon=target.epsilon * guarantee.epsilon / worst * (1 - 1e-4))
    raise InfeasibleTarget(
        "guarantee", f"no noise was found at which {sites} sites together keep {guarantee}", ["fewer sites would do"]
    )


def calibrated_alike(
    local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: int, sites: int
) -> dict[str, LocalPlan]:
    """The sites' plans with one noise for all, the least at which any `sites` of them together keep the guarantee."""

    def alike(noise_multiplier: float) -> dict[str, LocalPlan]:
        known = {
            part: replace(part, noise_multiplier=noise_multiplier, delta=guarantee.delta, adjacency=guarantee.adjacency)
            for part in dict.fromkeys(local.values())
        }
        return {name: known[part] for name, part in local.items()}

    # As many sites like the worst need enough noise; one of it alone needs at least so much.
    enough = max(part.noise for part in calibrated_local(local, guarantee, rounds, sites).values())
    little = max(part.noise for part in _alone(local, guarantee, rounds).values())
    while enough > little * (1 + TOLERANCE):
        middle = math.sqrt(little * enough)
        if _worst(alike(middle), rounds, guarantee, sites) <= guarantee.epsilon:
            enough = middle
        else:
            little = middle
    return alike(enough)


def charged(local: Mapping[str, LocalPlan], rounds: Mapping[str, int]) -> dict[str, ev.Event]:
    """What so many rounds of each site do to its records; nothing for a site with none."""
    pairs = {name: (local[name], times) for name, times in rounds.items() if times}
    known = {pair: ev.Repeated(pair[0].event, pair[1]) for pair in dict.fromkeys(pairs.values())}
    return {name: known[pair] for name, pair in pairs.items()}


def _worst(local: Mapping[str, LocalPlan], rounds: int, guarantee: Guarantee, sites: int) -> float:
    return worst_together(charged(local, dict.fromkeys(local, rounds)), guarantee.delta, sites, guarantee.adjacency)


def _alone(local: Mapping[str, LocalPlan], guarantee: Guarantee, rounds: int) -> dict[str, LocalPlan]:
    found = {part: part.calibrated(guarantee, rounds) for part in dict.fromkeys(local.values())}
    return {name: found[part] for name, part in local.items()}


def _choices(kinds: Mapping[ev.Event, int], sites: int) -> Iterable[tuple[ev.Event, ...]]:
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
