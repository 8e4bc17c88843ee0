"""What an attacker can do against a run, from its whole privacy curve instead of one point of it.

An (ε, δ) pair is one point of a run's curve, and alone it allows far more to an attacker than the run does.
Each point bounds every attack, so the least of these bounds holds too; over all points it is the exact
trade-off between false alarms and detections (Dong, Roth and Su 2022, on primal and dual).

>>> from dpfed.events import Gaussian
>>> round(detection_rate(Gaussian(noise_multiplier=1.0)), 3)    # ε = 4.38 at δ = 1e-5 alone allows 0.796
0.092
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpfed import checks
from dpfed.accounting.composed import Composition
from dpfed.checks import ADD_REMOVE
from dpfed.events import Event
from dpfed.guarantee import Guarantee

# The best point has a δ of the order of what is caught; the first, tiny one is for losses that are bounded.
_SMALLEST = 1e-12
_FIRST, _LAST, _RATIO = 1e-4, 0.99, 2.0
_REFINEMENTS, _POINTS = 3, 7


def detection_rate(event: Event, false_alarm_rate: float = 0.01, *, adjacency: str = ADD_REMOVE) -> float:
    """Return the largest share of members any attacker can catch at that false-alarm rate: an upper bound."""
    alpha = checks.rate(false_alarm_rate=false_alarm_rate)
    curve = Composition(adjacency)
    curve.add(event)

    def bound(delta: float) -> float:
        return Guarantee(curve.epsilon(delta), delta).detection_rate(alpha)

    return min(bound(_SMALLEST), _minimise(bound, _make_grid()))


def _make_grid() -> list[float]:
    steps = np.arange(0.0, np.log(_LAST / _FIRST), np.log(_RATIO))
    return [*(_FIRST * np.exp(steps)).tolist(), _LAST]


def _minimise(bound: Callable[[float], float], deltas: list[float]) -> float:
    """Return the least bound found: on a grid over everything, then on three finer ones around the best so far."""
    least = 1.0
    for _ in range(1 + _REFINEMENTS):
        bounds = [bound(delta) for delta in deltas]
        best = int(np.argmin(bounds))
        least = min(least, bounds[best])
        left, right = deltas[max(best - 1, 0)], deltas[min(best + 1, len(deltas) - 1)]
        deltas = np.linspace(left, right, _POINTS).tolist()
    return least
