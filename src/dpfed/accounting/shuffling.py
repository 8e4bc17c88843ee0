"""What a shuffler adds to reports that are private by themselves: ε₀ of a report, and the closed form of ε.

The ε of `events.Shuffled` comes from the worst-case pair of distributions (`exact/shuffled.py`). The closed form is for
comparison with papers: it is three to five times as large, and says nothing outside of its range.

>>> from dpfed.accounting import epsilon
>>> reports = ev.Shuffled(ev.PureDP(1.0, adjacency="replace_one"), users=10_000)
>>> round(epsilon(reports, delta=1e-6, adjacency="replace_one"), 4)
0.053
>>> round(closed_form_epsilon(1.0, users=10_000, delta=1e-6), 4)
0.214
>>> closed_form_epsilon(4.0, users=10_000, delta=1e-6)  # out of its range: that of a report alone
4.0
"""

from __future__ import annotations

import math

from dpfed import checks
from dpfed import events as ev
from dpfed.errors import UnsupportedEvent

_UP = 1 + 2.0**-48


def local_epsilon(event: ev.Event) -> float:
    """Return the ε₀ of one user's report when its value is replaced by another, rounded up.

    Laplace noise is b times the change that adding or removing makes, and replacing makes twice that: ε₀ = 2/b.
    """
    match event:
        case ev.RandomizedResponse() | ev.PureDP() | ev.Exponential():
            return event.epsilon
        case ev.Laplace():
            return 2 / event.noise_multiplier * _UP
        case ev.DiscreteLaplace():
            return 2 * event.sensitivity / event.scale * _UP
        case ev.Repeated():
            return event.count * local_epsilon(event.event) * _UP
        case ev.Composed():
            return math.fsum(map(local_epsilon, event.events)) * _UP
        case _:
            raise UnsupportedEvent(f"{event!r} is not ε₀-DP for the value of one user: use Laplace noise")


def closed_form_epsilon(epsilon: float, users: int, delta: float) -> float:
    """Return the ε of ε₀-DP reports after shuffling, by the closed form; ε₀ outside of its range.

    Privacy: Feldman, McMillan and Talwar (2021), Theorem 3.1, for ε₀ ≤ log(n/(16 log(4/δ))). The theorem allows a
    little more; the authors' own code asks for this.
    """
    epsilon, users = checks.non_negative(epsilon=epsilon), checks.count(users=users)
    log = math.log(4 / checks.positive_probability(delta=delta))
    if epsilon > math.log(users / (16 * log)):
        return epsilon
    spread = 8 * math.sqrt(math.exp(epsilon) * log / users) + 8 * math.exp(epsilon) / users
    return min(epsilon, math.log1p(math.tanh(epsilon / 2) * spread) * _UP)
