"""An event tree as a bag of atoms: the one place where counts multiply and order is dropped.

>>> from dpfed.events import Composed, Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(Composed([Gaussian(2.0), Gaussian(2.0)]), 0.1)
>>> atoms(Composed([Repeated(step, 3), step]))
{PoissonSampled(Gaussian(noise_multiplier=1.41421356...), sample_rate=0.1): 4}
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dpfed.errors import UnsupportedEvent
from dpfed.events import (
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Repeated,
    SampledWithoutReplacement,
    Shuffled,
    TreeAggregation,
    dumps,
    require_event,
)


def atoms(event: Event) -> dict[Event, int]:
    """Return how often each atom occurs in the event; an atom is neither repeated nor composed."""
    bag: dict[Event, int] = {}
    _gather(require_event(event), 1, bag)
    return bag


def as_event(bag: Mapping[Event, int]) -> Event:
    """Return one event for a bag of atoms, in a fixed order."""
    ordered = sorted(bag.items(), key=_order) if len(bag) > 1 else bag.items()
    parts = [Repeated(atom, count) if count > 1 else atom for atom, count in ordered]
    return parts[0] if len(parts) == 1 else Composed(tuple(parts))


def _order(item: tuple[Event, int]) -> str:
    return dumps(item[0])


def _gather(event: Event, count: int, bag: dict[Event, int]) -> None:
    match event:
        case Repeated():
            _gather(event.event, count * event.count, bag)
        case Composed():
            for part in event.events:
                _gather(part, count, bag)
        case PoissonSampled():
            for atom, times in _merge_sampling(event).items():
                bag[atom] = bag.get(atom, 0) + count * times
        case SampledWithoutReplacement():
            drawn = _merge_draw(event)
            bag[drawn] = bag.get(drawn, 0) + count
        case _:
            bag[event] = bag.get(event, 0) + count


def _merge_sampling(event: PoissonSampled) -> dict[Event, int]:
    if isinstance(event.event, Gaussian) and event.sample_rate < 1:
        return {event: 1}
    inner = _merge_gaussians(_require_drawable(event.event))
    _refuse_shuffled(inner, "PoissonSampled, which leaves open how many users report")
    if event.sample_rate == 1:
        return inner
    match list(inner.items()):
        case [(PoissonSampled(event=core, sample_rate=rate), 1)]:
            # A unit that must pass two independent draws is in the second sample with the product of the rates.
            return _merge_sampling(PoissonSampled(core, rate * event.sample_rate))
        case _:
            return {PoissonSampled(as_event(inner), event.sample_rate): 1}


def _merge_draw(event: SampledWithoutReplacement) -> Event:
    bag = _merge_gaussians(_require_drawable(event.event))
    _require_one_population(bag, event)
    match list(bag.items()):
        case [(Shuffled(users=event.sample_size), 1)]:
            pass
        case _:
            _refuse_shuffled(
                bag, f"a draw of {event.sample_size}: users must be the size drawn, and one release a draw"
            )
    return SampledWithoutReplacement(as_event(bag), event.sample_size, event.population)


def _require_one_population(bag: Mapping[Event, int], event: SampledWithoutReplacement) -> None:
    """Refuse a draw from another number of units than the draw around it leaves: there is no such run."""
    for atom in bag:
        if isinstance(atom, SampledWithoutReplacement) and atom.population != event.sample_size:
            raise UnsupportedEvent(
                f"a draw of {event.sample_size} units leaves {event.sample_size} to draw from, and {atom} inside of it "
                f"draws from {atom.population}: write population={event.sample_size} there, or leave one draw out"
            )


def _refuse_shuffled(bag: Mapping[Event, int], where: str) -> None:
    for atom in bag:
        if isinstance(atom, Shuffled):
            raise UnsupportedEvent(
                f"no gain from sampling is proved for {atom} inside of {where}; charge it as it is, or write "
                "SampledWithoutReplacement(Shuffled(event, users=m), sample_size=m, population=n)"
            )


def _require_drawable(event: Event) -> dict[Event, int]:
    bag = atoms(event)
    for atom in bag:
        if isinstance(atom, TreeAggregation):
            # A unit is in every step of its pattern or in none, so the steps are no draws of their own.
            raise UnsupportedEvent(
                f"no gain from sampling is proved for a tree of partial sums: charge {atom} as it is"
            )
    return bag


def _merge_gaussians(bag: dict[Event, int]) -> dict[Event, int]:
    """Merge the Gaussians of a bag into one: releases of one draw add up to z⁻² = Σ zᵢ⁻² (Dong, Roth and Su 2022)."""
    gaussians = {atom: times for atom, times in bag.items() if isinstance(atom, Gaussian)}
    if not gaussians or list(gaussians.values()) == [1]:
        return bag
    precision = math.fsum(times / atom.noise_multiplier**2 for atom, times in gaussians.items())
    rest = {atom: times for atom, times in bag.items() if atom not in gaussians}
    # Rounded down: a hair less noise than was drawn.
    return {Gaussian(math.nextafter(1 / math.sqrt(precision), 0.0)): 1, **rest}
