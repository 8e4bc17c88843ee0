"""How fast a characteristic function must fall: the proof behind the frequencies that a contour leaves out.

φ(w) = E[e^{iwL}] of a loss L = l(x) with a smooth, monotone l. Take an interval A of x of mass m whose losses span R.

- *Near.* For w ≤ π/R the cosine of w·(difference of two losses in A) falls in w, so for all w in [w₀, π/R]
  1 − |φ(w)|² = E[1 − cos w(L − L′)] ≥ m² − |φ_A(w₀)|², where φ_A is the part of φ that comes from A.
- *Far.* Integration by parts over A gives |φ(w)| ≤ 1 − m + V/w at every w, where V is the end values plus the total
  variation over A of the density of the loss.

Near bounds of different intervals are chained from Ω upwards until a far bound covers the rest. Both are sums over a
grid of x; each is given 10 % of slack for the grid. That slack is checked against dense grids (tests/accounting/
test_decay.py), not proved.

>>> x = np.arange(-5, 5, 1 / POINTS_PER_SIGMA)
>>> mass = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
>>> log_decay(mass, loss=x, omega=2.0, enough=-0.1)  # a Gaussian's log |φ(2)| is −2
-0.1
>>> log_decay(mass, loss=x, omega=0.1, enough=-0.1)  # and its log |φ(0.1)| is −0.005
0.0
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
class _Ends:
    """The first and last points of many intervals, and the cells from one before the first to one after the last."""

    first: Indices
    last: Indices
    cells: Indices


@dataclass(frozen=True)
class _Intervals:
    """Many intervals of the grid at once: their ends, masses, loss spans and variations."""

    ends: _Ends
    mass: Array
    reach: Array
    variation: Array

    def near(self, mass: Array, loss: Array, omega: float) -> Array:
        """The least 1 − |φ(w)|² that each interval proves from Ω to its reach."""
        part = _between(mass * np.exp((1j * omega) * loss), self.ends)
        return np.asarray(_SLACK * (self.mass**2 - (part.real**2 + part.imag**2)))

    def far(self, enough: float) -> float:
        """The frequency from which integration by parts proves log |φ| ≤ enough for good."""
        spare = float(((_SLACK * self.mass + math.expm1(enough)) / self.variation).max())
        return 1 / (_SLACK * spare) if spare > 0 else math.inf


def log_decay(mass: Array, loss: Array, omega: float, enough: float) -> float:
    """`enough` where log |φ(w)| ≤ enough is proved for all w ≥ Ω, and 0 where it is not.

    `mass` holds the probabilities of the points of an even grid of x, `loss` their losses.
    """
    intervals = _intervals(mass, loss)
    far, needed = intervals.far(enough), -math.expm1(2 * enough)
    for _ in range(_MOST_LINKS):
        if far <= omega:
            return enough
        reach = float(intervals.reach[intervals.near(mass, loss, omega) > needed].max(initial=0.0))
        if reach <= omega:
            break
        omega = reach
    return 0.0


def _intervals(mass: Array, loss: Array) -> _Intervals:
    ends = _ends(len(mass))
    density = mass[1:] / np.maximum(np.abs(loss[1:] - loss[:-1]), 1e-290)
    changes = np.zeros(len(mass))
    changes[:-2] = np.abs(density[1:] - density[:-1])
    return _Intervals(
        ends=ends,
        mass=_between(mass, ends),
        reach=math.pi / np.maximum(np.abs(loss[ends.last] - loss[ends.first]), 1e-290),
        # One cell more at either end, so that a density which grows outwards is not missed. Changes are added up
        # afresh for each interval: where the loss is flat its density is so large that in running totals all else
        # would vanish.
        variation=density[ends.cells].reshape(-1, 2).sum(axis=1) + np.add.reduceat(changes, ends.cells)[::2],
    )


def _between(values: Numbers, ends: _Ends) -> Numbers:
    """The trapezoidal sum of the values from each first to each last point."""
    total = np.cumsum(values) - values / 2
    return np.asarray(total[ends.last] - total[ends.first])


@lru_cache(maxsize=512)
def _ends(count: int) -> _Ends:
    """The ends of intervals of every width that slide inside a grid of that many points."""
    starts, stops = [], []
    for width in _WIDTHS:
        start = np.arange(1, max(2, count - 1 - width), max(1, width // _SLIDES))
        starts.append(start)
        stops.append(np.minimum(start + width, count - 2))
    first, last = np.concatenate(starts), np.concatenate(stops)
    return _Ends(first, last, np.stack((first - 1, last), axis=1).ravel())
