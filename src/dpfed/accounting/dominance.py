"""The costliest of many events without asking for the cost of each: one event that dominates a group is asked instead.

A thousand clients of different declared sizes are a thousand events, and each question is milliseconds. Events of one
shape are in order in each of their numbers: less noise, a larger sampling rate and more repetitions cost more. So the
least noise with the largest rate and count bounds a group, and only groups that may hold the worst are split.

>>> steps = [ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 20 / size), 100) for size in range(100, 1100)]
>>> asked = []
>>> def cost(event):
...     asked.append(event)
...     return event.count * event.event.sample_rate
>>> find_worst(steps, cost) == (steps[0], 20.0), len(asked) < 50
(True, True)
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from dpfed import events as ev
from dpfed.events import Event

BRANCHES = 8  # where all cost the same, groups are asked for in vain: one question in eight


def find_worst(events: Iterable[Event], cost: Callable[[Event], float]) -> tuple[Event, float]:
    """Return the event that costs most, with its cost: at least that of every other.

    `cost` must not fall where an event is replaced by one that dominates it.
    """
    tickets = count()
    groups: list[tuple[float, int, list[Event]]] = []
    group = sorted(dict.fromkeys(events), key=_numbers)
    while True:
        for part in _split(group):
            heapq.heappush(groups, (-_bound(part, cost), next(tickets), part))
        bound, _, group = heapq.heappop(groups)
        if len(group) == 1:
            return group[0], -bound


def find_dominating(first: Event, second: Event) -> Event | None:
    """Return an event that costs at least as much as either, under any adjacency; None where their shapes differ.

    Privacy: by post-processing for noise, by joint convexity for rates, and because dominating pairs compose (Zhu,
    Dong and Wang 2022, Theorems 10 and 11).
    """
    match first, second:
        case _ if first == second:
            return first
        case ev.Gaussian(), ev.Gaussian():
            return ev.Gaussian(min(first.noise_multiplier, second.noise_multiplier))
        case ev.Laplace(), ev.Laplace():
            return ev.Laplace(min(first.noise_multiplier, second.noise_multiplier))
        case ev.PoissonSampled(), ev.PoissonSampled():
            inner = find_dominating(first.event, second.event)
            return inner and ev.PoissonSampled(inner, max(first.sample_rate, second.sample_rate))
        case ev.Repeated(), ev.Repeated():
            inner = find_dominating(first.event, second.event)
            return inner and ev.Repeated(inner, max(first.count, second.count))
        case ev.Composed(), ev.Composed() if len(first.events) == len(second.events):
            parts = [find_dominating(one, other) for one, other in zip(first.events, second.events, strict=True)]
            return ev.Composed(tuple(part for part in parts if part)) if all(parts) else None
        case _:
            return None


def _bound(group: Sequence[Event], cost: Callable[[Event], float]) -> float:
    event: Event | None = group[0]
    for more in group[1:]:
        event = event and find_dominating(event, more)
    return cost(event) if event else math.inf


def _split(group: Sequence[Event]) -> Iterator[list[Event]]:
    size = -(-len(group) // BRANCHES)
    return (list(group[start : start + size]) for start in range(0, len(group), size))


def _numbers(event: Event) -> tuple[float, ...]:
    """Return the event's numbers from the outside in, as a sort key that puts similar events together."""
    inner = (event.event,) if hasattr(event, "event") else getattr(event, "events", ())
    own = [getattr(event, name) for name in ("count", "sample_rate", "noise_multiplier") if hasattr(event, name)]
    return (*own, *(number for part in inner for number in _numbers(part)))
