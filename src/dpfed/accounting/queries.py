"""The questions asked of an event: ε at δ, δ at ε, with a certificate or by another notion of privacy.

>>> from dpfed.events import Gaussian, PoissonSampled, Repeated
>>> run = Repeated(PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01), 10_000)
>>> round(epsilon(run, delta=1e-5), 4)
6.1877
"""

from __future__ import annotations

from dpfed.accounting.composed import Composition
from dpfed.accounting.notions import epsilon_by_notion
from dpfed.checks import ADD_REMOVE
from dpfed.events import Event


def epsilon(event: Event, delta: float, *, adjacency: str = ADD_REMOVE, notion: str = "exact") -> float:
    """Return an upper bound on the ε of the event at δ; ∞ where there is none."""
    if notion != "exact":
        return epsilon_by_notion(event, delta, notion, adjacency)
    return _compose(event, adjacency).epsilon(delta)


def epsilon_bounds(event: Event, delta: float, *, adjacency: str = ADD_REMOVE) -> tuple[float, float]:
    """Return certified bounds on the ε of the event at δ; the lower one is 0 where only an upper one is proved."""
    return _compose(event, adjacency).epsilon_bounds(delta)


def delta(event: Event, epsilon: float, *, adjacency: str = ADD_REMOVE) -> float:
    """Return an upper bound on the δ of the event at ε."""
    return _compose(event, adjacency).delta(epsilon)


def _compose(event: Event, adjacency: str) -> Composition:
    composition = Composition(adjacency)
    composition.add(event)
    return composition
