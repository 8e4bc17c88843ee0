"""What an attacker can do against a run, from its whole privacy curve instead of one point of it.

An (ε, δ) pair is one point of a run's curve δ(ε), and alone it allows far more to an attacker than the run
does. Each point bounds every attack, so the least of these bounds holds too; over all points it is the exact
trade-off between false alarms and detections (Dong, Roth and Su 2022, Proposition 2.13).

>>> from dpfed.events import Gaussian
>>> round(detection_rate(Gaussian(noise_multiplier=1.0)), 3)    # ε = 4.38 at δ = 1e-5 alone allows 0.797
0.093
"""

from __future__ import annotations

import numpy as np

from dpfed import accounting, checks
from dpfed.checks import ADD_REMOVE
from dpfed.events import Event
from dpfed.guarantee import Guarantee

_COARSE = (0.0, *np.geomspace(1e-3, 64.0, 33).tolist())
_REFINEMENTS = 3
_POINTS = 9


def detection_rate(event: Event, false_alarm_rate: float = 0.01, *, adjacency: str = ADD_REMOVE) -> float:
    """The largest share of members any attacker can catch at that false-alarm rate: an upper bound."""
    alpha, adjacency = checks.rate(false_alarm_rate=false_alarm_rate), checks.adjacency(adjacency)
    epsilons, least = list(_COARSE), 1.0
    for _ in range(1 + _REFINEMENTS):
        bounds = [_bound(event, epsilon, alpha, adjacency) for epsilon in epsilons]
        best = int(np.argmin(bounds))
        least = min(least, bounds[best])
        left, right = epsilons[max(best - 1, 0)], epsilons[min(best + 1, len(epsilons) - 1)]
        epsilons = np.linspace(left, right, _POINTS).tolist()
    return least


def _bound(event: Event, epsilon: float, alpha: float, adjacency: str) -> float:
    delta = accounting.delta(event, epsilon, adjacency=adjacency)
    return Guarantee(epsilon, delta, adjacency=adjacency).detection_rate(alpha) if delta < 1 else 1.0
