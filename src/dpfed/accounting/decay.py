"""How fast a characteristic function must fall: the proof behind the frequencies that a contour leaves out.

φ(w) = E[e^{iwL}] of a loss L = l(x) with a smooth, monotone l. Take an interval A of x of mass m whose losses span R.

- *Near.* For w ≤ π/R the cosine of w·(difference of two losses in A) falls in w, so for all w in [w₀, π/R]
  1 − |φ(w)|² = E[1 − cos w(L − L′)] ≥ m² − |φ_A(w₀)|², where φ_A is the part of φ that comes from A.
- *Far.* Integration by parts over A gives |φ(w)| ≤ 1 − m + V/w at every w, where V is the end values plus the total
  variation over A of the density of the loss.

Near bounds of different intervals are chained from Ω upwards until a far bound covers the rest. Both are sums over a
grid of x; each is given 10 % of slack for the grid.

>>> x = np.arange(-5, 5, 1 / POINTS_PER_SIGMA)
>>> mass = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
>>> -2.0 <= log_decay(mass, loss=x, omega=2.0, enough=-0.1) <= -0.1  # of a Gaussian, for which it is −2
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfed.accounting.laws import Array, ComplexArray

Indices = NDArray[np.int64]
Numbers = TypeVar("Numbers", Array, ComplexArray)

# The grid that the intervals suit, their widths in grid points and the share of a width by which they slide.
POINTS_PER_SIGMA = 8
_WIDTHS = (6, 10, 15, 22, 34)
_SLIDES = 4
_MOST_LINKS = 16
_SLACK = 0.9


@dataclass(frozen=True)
class _Intervals:
    """Many intervals of the grid at once: their ends, masses, loss spans and variations."""

    low: Indices
    high: Indices
    mass: Array
    reach: Array
    variation: Array

    def near(self, mass: Array, loss: Array, omega: float) -> Array:
        """The least 1 − |φ(w)|² that each interval proves from Ω to its reach."""
        part = _between(mass * np.exp(1j * omega * loss), self.low, self.high)
        return np.asarray(_SLACK * (self.mass**2 - (part.real**2 + part.imag**2)))

    def far(self, omega: float) -> float:
        """The smallest bound on log |φ(w)| for all w ≥ Ω by integration by parts."""
        bound = 1 - float((_SLACK * self.mass - self.variation / (_SLACK * omega)).max())
        return math.log(bound) if bound < 1 else 0.0


def log_decay(mass: Array, loss: Array, omega: float, enough: float) -> float:
    """An upper bound on log |φ(w)| for all w ≥ Ω: below `enough`, or 0 where so much cannot be proved.

    `mass` holds the probabilities of the points of an even grid of x, `loss` their losses.
    """
    intervals = _intervals(mass, loss)
    needed = -math.expm1(2 * enough)
    worst = -math.inf
    for _ in range(_MOST_LINKS):
        far = intervals.far(omega)
        if far <= enough:
            return max(far, worst)
        proved = intervals.near(mass, loss, omega)
        reach = np.where(proved > needed, intervals.reach, 0.0)
        best = int(np.argmax(reach))
        if reach[best] <= omega:
            return 0.0
        worst = max(worst, 0.5 * math.log1p(-min(float(proved[best]), 1 - 1e-9)))
        omega = float(reach[best])
    return 0.0


def _intervals(mass: Array, loss: Array) -> _Intervals:
    first, last = _ends(len(mass))
    density = mass[1:] / np.maximum(np.abs(loss[1:] - loss[:-1]), 1e-290)
    return _Intervals(
        low=first,
        high=last,
        mass=_between(mass, first, last),
        reach=math.pi / np.maximum(np.abs(loss[last] - loss[first]), 1e-290),
        # One cell more at either end, so that a density which grows outwards is not missed.
        variation=density[first - 1] + density[last] + _summed(np.abs(np.diff(density)), first - 1, last),
    )


def _between(values: Numbers, first: Indices, last: Indices) -> Numbers:
    """The trapezoidal sum of the values from each first to each last point."""
    total = np.cumsum(values)
    return np.asarray(total[last] - total[first] + (values[first] - values[last]) / 2)


def _summed(values: Array, first: Indices, end: Indices) -> Array:
    """The sum of the values from each first to before each end, added up afresh for each.

    Not by differences of running totals: where the loss is flat its density is so large that all else would vanish.
    """
    bounds = np.stack((first, end), axis=1).ravel()
    return np.asarray(np.add.reduceat(np.append(values, 0.0), bounds)[::2])


@lru_cache(maxsize=512)
def _ends(count: int) -> tuple[Indices, Indices]:
    """The first and last points of intervals of every width that slide inside a grid of that many points."""
    first, last = [], []
    for width in _WIDTHS:
        start = np.arange(1, max(2, count - 1 - width), max(1, width // _SLIDES))
        first.append(start)
        last.append(np.minimum(start + width, count - 2))
    return np.concatenate(first), np.concatenate(last)
