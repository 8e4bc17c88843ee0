"""The mean of numbers from −1 to 1 at larger ε: the piecewise mechanism, and its hybrid with Duchi's sign.

Wang et al. 2019 send a float, uniform on a window or on the rest. Here a report is a cell of a grid of about 2³² ones,
drawn by whole numbers: the window's chance and every cell's are exact, and so is ε. The variance is that of the paper
but for some 2⁻³⁰ of it.

>>> mechanism = HybridMean(epsilon=2.0)
>>> round(mechanism.variance(users=1000, value=0.0), 6), round(mechanism.variance(users=1000, value=1.0), 6)
(0.001042, 0.001042)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from dpfed.ldp import coins
from dpfed.ldp.coins import ONE
from dpfed.ldp.estimates import Floats
from dpfed.ldp.mean import DuchiMean, MeanMechanism
from dpfed.ldp.oracle import Reports, refuse_reports, require_reports
from dpfed.randomness import RandomSource

GRID = 1 << 31  # steps between the values −1 and 1
HYBRID_FROM = 0.60935  # the ε up to which the hybrid is Duchi's mechanism alone

_CHOICE = np.dtype([("is_piecewise", "?"), ("cell", "<u4")])


@dataclass(frozen=True)
class PiecewiseMean(MeanMechanism):
    """Send a cell of a grid, all cells of a window around the number e^ε times as likely as all others.

    The number is rounded to one of 2³¹ + 1 points by a coin; from each begins a window of `window` = 2³¹e^{−ε/2}
    cells, of 2³¹ + `window` in all. That is the piecewise mechanism of Wang et al. 2019 on a grid.

    Privacy: ln(p·2³¹/((1 − p)·window))-DP, where p is the chance of the window, rounded down to 2⁻⁵³ (replace-one,
    local model). Cells are drawn as whole numbers, exactly uniform on either side, whatever the rounding before did;
    the event is PureDP(ε, adjacency="replace_one").
    """

    window: int = field(init=False, default=0)
    _own: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "window", max(round(GRID / coins.exp(self.epsilon / 2)), 1))
        object.__setattr__(self, "_own", coins.window_threshold(self.epsilon, self.window, GRID))
        object.__setattr__(self, "epsilon", coins.window_epsilon(self._own, self.window, GRID))

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report: the number of a cell."""
        return np.dtype(np.uint32)

    @property
    def cells(self) -> int:
        """The number of cells."""
        return GRID + self.window

    @property
    def largest(self) -> float:
        """The size of the largest decoded report, C = (e^{ε/2} + 1)/(e^{ε/2} − 1) on a fine grid."""
        return float((self.cells - 1) * self._unit / 2)

    @property
    def _own_chance(self) -> Fraction:
        return Fraction(self._own, ONE)

    @property
    def _gap(self) -> Fraction:
        """How much likelier a cell is for the numbers whose window it is in, times the cells of a window."""
        return self._own_chance - (1 - self._own_chance) * self.window / GRID

    @property
    def _unit(self) -> Fraction:
        """What a cell's width stands for, so that decoded reports are unbiased."""
        return Fraction(2, GRID) / self._gap

    def draw(self, numbers: Floats, source: RandomSource) -> Reports:
        """Return a cell for each number."""
        places = (numbers + 1) * (GRID // 2)
        begins = np.floor(places)
        begins += coins.flip_each(source, (places - begins) * ONE)
        inside = begins + coins.below(source, self.window, numbers.size)
        outside = coins.below(source, GRID, numbers.size).astype(np.float64)
        outside += self.window * (outside >= begins)
        is_inside = coins.flip(source, self._own, numbers.size)
        return np.where(is_inside, inside, outside).astype(np.uint32)

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if all are cells of the grid."""
        array = require_reports(reports, self.report_type)
        if array.max(initial=0) >= self.cells:
            raise refuse_reports("cells that the grid does not have")
        return array

    def decode(self, reports: Reports) -> Floats:
        """Return an unbiased estimate of each user's number."""
        return (np.asarray(reports, dtype=np.float64) - (self.cells - 1) / 2) * float(self._unit)

    def noise(self, value: Any) -> Any:
        """Return the variance of one decoded report of that number; rounding to the grid adds less than 2⁻⁵⁰."""
        other = (1 - self._own_chance) / GRID
        spread = other * _spread(self.cells) + (self._own_chance / self.window - other) * _spread(self.window)
        return float(self._unit**2 * spread) + float(1 / self._gap - 1) * value**2


@dataclass(frozen=True)
class HybridMean(MeanMechanism):
    """Send a report of the piecewise mechanism with chance 1 − e^{−ε/2}, else of Duchi's, and say of which.

    Its variance is the same for every number, if ε is above 0.61; below, Duchi's mechanism is the better one for all
    that matters, and taken always.

    Privacy: which of the two is drawn does not depend on the number, so a report has the larger ε of both (replace-one,
    local model); the event is PureDP(ε, adjacency="replace_one").
    """

    _duchi: DuchiMean = field(init=False, repr=False)
    _piecewise: PiecewiseMean = field(init=False, repr=False)
    _share: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = self.epsilon
        object.__setattr__(self, "_duchi", DuchiMean(asked))
        object.__setattr__(self, "_piecewise", PiecewiseMean(asked))
        share = coins.chance_down(coins.exp(asked / 2) - 1) if asked > HYBRID_FROM else 0
        object.__setattr__(self, "_share", share)
        object.__setattr__(self, "epsilon", max(self._duchi.epsilon, self._piecewise.epsilon))

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report: of which mechanism it is, and its cell, for Duchi's 1 for plus."""
        return _CHOICE

    def draw(self, numbers: Floats, source: RandomSource) -> Reports:
        """Return a report of one of the two mechanisms for each number."""
        reports = np.empty(numbers.size, dtype=_CHOICE)
        reports["is_piecewise"] = chosen = coins.flip(source, self._share, numbers.size)
        reports["cell"][chosen] = self._piecewise.draw(numbers[chosen], source)
        reports["cell"][~chosen] = self._duchi.draw(numbers[~chosen], source) > 0
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if each is one of its mechanism."""
        array = require_reports(reports, _CHOICE)
        if np.any(array["cell"] >= np.where(array["is_piecewise"], self._piecewise.cells, 2)):
            raise refuse_reports("cells that the mechanism they name does not have")
        return array

    def decode(self, reports: Reports) -> Floats:
        """Return an unbiased estimate of each user's number."""
        signs = 2.0 * reports["cell"] - 1
        cells = self._piecewise.decode(reports["cell"])
        return np.where(reports["is_piecewise"], cells, self._duchi.decode(signs))

    def noise(self, value: Any) -> Any:
        """Return the variance of one decoded report of that number."""
        share = self._share / ONE
        return share * self._piecewise.noise(value) + (1 - share) * self._duchi.noise(value)


def _spread(cells: int) -> Fraction:
    """Return the sum of squared distances of so many neighbouring cells from their middle."""
    return Fraction(cells * (cells**2 - 1), 12)
