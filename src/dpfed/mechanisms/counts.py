"""Counts over cells to which one unit adds at most 1 in all, on a public grid, with integer noise.

A histogram, a confusion matrix and binned scores are such counts. A record is in one cell. The rows of a person share
the weight 1, and a whole client's counts are scaled to it: shares that are rounded *towards zero* to the grid before
anything is added up, so that no unit ever adds more than 1. On the grid sums are whole numbers, and so is the noise.

>>> add_records(np.array([0, 2, 2, 1]), size=3)
array([1, 1, 2])
>>> add_persons(np.array([0, 1, 1, 2]), rows=np.array([3, 1]), size=3, grid=100)  # one of three rows, two, the only one
array([ 33,  66, 100])
>>> scale_to_one(np.array([30, 10, 0]), unit=1, grid=100)
array([75, 25,  0])
>>> NoisyCounts.from_epsilon(0.5, grid=100).event
DiscreteLaplace(scale=200.0, sensitivity=100)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.mechanisms.discrete import DiscreteLaplaceMechanism
from dpfed.randomness import RandomSource
from dpfed.rounding import round_up

Counts = NDArray[np.int64]
GRID = 240  # steps of a weight of 1 that is shared: 2, 3, 4, 5, 6, 8, 10, 12 … rows share it without loss


def add_records(cells: NDArray[Any], size: int) -> Counts:
    """Return how many records are in each of `size` cells; one with a number that is no cell is in none.

    Privacy: adding or removing a record moves one number by 1.
    """
    inside = cells[(cells >= 0) & (cells < size)].astype(np.int64)
    return np.bincount(inside, minlength=size).astype(np.int64)


def add_persons(cells: NDArray[Any], rows: NDArray[Any], size: int, grid: int) -> Counts:
    """Return the sum over persons of their shares of cells, in steps of the grid; `rows` are each one's rows.

    Privacy: the shares of a person are rounded towards zero one by one, so adding or removing a person moves the sum
    by at most `grid` in L1.
    """
    owner = np.repeat(np.arange(len(rows)), rows)
    inside = (cells >= 0) & (cells < size)
    pairs, shares = np.unique(np.stack([owner[inside], cells[inside]]).astype(np.int64), axis=1, return_counts=True)
    steps = grid * shares.astype(np.int64) // rows.astype(np.int64)[pairs[0]]
    total = np.zeros(size, dtype=np.int64)
    np.add.at(total, pairs[1], steps)
    return total


def scale_to_one(sums: NDArray[Any], unit: int, grid: int) -> Counts:
    """Return a client's counts, of which `unit` is the weight 1, scaled to an L1 norm of at most 1 on the grid.

    Counts that are smaller than that are not made larger. Noise may have made some of them negative.

    Privacy: each number is rounded towards zero, so that the result has an L1 norm of at most `grid`, whatever the
    client holds: adding or removing the client moves a sum of them by no more.
    """
    values = [int(value) for value in np.asarray(sums).tolist()]
    whole = max(sum(map(abs, values)), int(unit))
    return np.array([(grid * abs(value) // whole) * (1 if value > 0 else -1) for value in values], dtype=np.int64)


@dataclass(frozen=True)
class NoisyCounts:
    """Discrete Laplace noise of `scale` grid steps on every number of a sum to which a unit adds at most `grid`.

    Privacy: the L1 sensitivity is `grid` under add/remove, and the event DiscreteLaplace(scale, grid) is for one
    number that moves by all of it. No other way to move by that much in all, over however many numbers, is easier to
    detect: a step of 1 in any number is binary randomized response at 1/scale, and so `grid` steps are at most its
    `grid`-fold group privacy (Dong, Roth and Su 2022, Theorem 2.14). Along one number it is exactly that: every test
    by a threshold is a best one for each single step, and best ones are thresholds. Under replace_one the
    accountant doubles the shift.
    """

    scale: float
    grid: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", checks.positive(scale=self.scale))
        object.__setattr__(self, "grid", checks.count(grid=self.grid))

    @classmethod
    def from_epsilon(
        cls, epsilon: float, grid: int = 1, *, adjacency: str = ADD_REMOVE, releases: int = 1
    ) -> NoisyCounts:
        """Return the noise at which so many releases cost one unit ε in all, at δ = 0."""
        shift = 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1
        whole = Fraction(checks.count(grid=grid) * checks.count(releases=releases) * shift)
        return cls(round_up(whole / Fraction(checks.positive(epsilon=epsilon))), grid)

    @property
    def event(self) -> ev.Event:
        """The event of one release."""
        return ev.DiscreteLaplace(self.scale, self.grid)

    @property
    def variance(self) -> float:
        """The variance of the noise of one number, of which 1 is the weight of a unit: a public constant."""
        ratio = float(np.exp(-1 / self.scale))
        return 2 * ratio / (1 - ratio) ** 2 / self.grid**2

    def release(self, sums: NDArray[Any], source: RandomSource) -> Counts:
        """Return the sums with noise; the event must be charged before."""
        return np.asarray(DiscreteLaplaceMechanism(self.scale, self.grid, source).add_noise(np.asarray(sums)))
