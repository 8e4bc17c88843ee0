"""Bracketed searches whose answer was itself evaluated and passed: nothing rests on interpolation.

`find_crossing` finds where a falling function stops being positive. `largest_count` and `largest_value` find where a
rising cost passes a budget: the search behind calibration and affordable steps. There each evaluation is a run of the
accountant, so evaluations are what is saved: costs of this field are nearly straight lines in log-log, where a secant
needs about six of them. The value that is returned fits, and the next one (one count, or one tolerance further) was
evaluated and does not.

>>> find_crossing(lambda x: 2.0 - x * x, 0.0, 4.0) >= 2.0**0.5
True
>>> largest_count(lambda count: 0.3 * count, budget=2.0)
6
>>> largest_value(lambda rate: rate**2, budget=0.25, low=1e-6, high=1.0, start=0.1, tolerance=1e-4) <= 0.5
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

COUNT_LIMIT = 2**40

_EVALUATIONS = 200
_LONGEST_STRIDE = 64.0


def find_crossing(excess: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-13) -> float:
    """Return the smallest x found at which the falling function `excess` is no longer positive.

    The function was evaluated there, so excess(x) ≤ 0 is certain. `low` must have a positive excess and `high` must
    not. Illinois steps with a bisection whenever one end stands still for too long, so a function that is flat, steep
    or slightly rough still ends in a verified bracket.
    """
    at_low, at_high = excess(low), excess(high)
    if at_low <= 0:
        return low
    if at_high > 0:
        raise ArithmeticError(f"no crossing between {low} and {high}")
    side = 0
    for step in range(_EVALUATIONS):
        if high - low <= tolerance * max(abs(high), 1e-300):
            break
        middle = _interpolate(low, high, at_low, at_high, halve=step % 4 == 3)
        if not low < middle < high:
            break
        value = excess(middle)
        if value > 0:
            low, at_low = middle, value
            at_high, side = (at_high / 2, 1) if side == 1 else (at_high, 1)
        else:
            high, at_high = middle, value
            at_low, side = (at_low / 2, -1) if side == -1 else (at_low, -1)
    return high


def log_excess(bound: float, target: float) -> float:
    """Return log(bound/target); a bound that is NaN or negative exceeds every target."""
    if bound == 0:
        return -math.inf
    return math.log(bound / target) if bound > 0 else math.inf


def find_first_passing(excess: Callable[[float], float]) -> float:
    """Return the first of 0, 1, 2, 4, … at which the falling function `excess` is not positive; ∞ if none is."""
    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > 1e9:
            return float("inf")
    return high


def largest_count(cost: Callable[[int], float], budget: float, *, start: int = 1) -> int:
    """Return the count up to 2⁴⁰ whose cost is within the budget while the next one's is not; 0 if none is."""
    grid = _Grid(1, COUNT_LIMIT, 0.0)
    found = _search(lambda value: cost(int(value)), budget, grid, max(1, min(start, COUNT_LIMIT)))
    return 0 if found is None else int(found)


def largest_value(
    cost: Callable[[float], float], budget: float, *, low: float, high: float, start: float, tolerance: float
) -> float | None:
    """Return a value that fits the budget while (1 + tolerance) times it does not.

    That is `high` itself where all of the range fits, and None where not even `low` does.
    """
    return _search(cost, budget, _Grid(low, high, tolerance), min(max(start, low), high))


@dataclass(frozen=True)
class _Grid:
    """The values that a search distinguishes: whole numbers (tolerance 0), or steps of a relative tolerance."""

    low: float
    high: float
    tolerance: float

    def up(self, value: float) -> float:
        return min(self.high, value * (1 + self.tolerance) if self.tolerance else value + 1)

    def down(self, value: float) -> float:
        return max(self.low, value / (1 + self.tolerance) if self.tolerance else value - 1)

    def snap(self, value: float) -> float:
        return min(max(value if self.tolerance else round(value), self.low), self.high)

    def are_neighbours(self, lower: float, upper: float) -> bool:
        return upper <= self.up(lower) * (1 + 1e-6 * self.tolerance)


@dataclass
class _Bracket:
    """The largest value found to fit, the smallest found not to, and the last two evaluations for the secant."""

    grid: _Grid
    fits: float = 0.0
    exceeds: float = math.inf
    points: list[tuple[float, float]] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    strides: int = 0

    def add(self, value: float, excess: float) -> None:
        if excess <= 0:
            self.fits = value
        else:
            self.exceeds = value
        self.points = [*self.points[-1:], (math.log(value), excess)]
        if self.is_two_sided():
            self.widths.append(math.log(self.exceeds / self.fits))

    def is_two_sided(self) -> bool:
        return self.fits > 0 and self.exceeds < math.inf

    def is_closed(self) -> bool:
        at_an_end = self.fits == self.grid.high or self.exceeds == self.grid.low
        return at_an_end or self.grid.are_neighbours(self.fits, self.exceeds)

    def next_value(self) -> float:
        return self._inwards() if self.is_two_sided() else self._outwards()

    def _inwards(self) -> float:
        guess = self._secant()
        stalls = len(self.widths) > 3 and self.widths[-1] > self.widths[-4] / 2
        if guess is None or stalls or not self.fits <= guess <= self.exceeds:
            guess = math.sqrt(self.fits * self.exceeds)
        # A guess on top of one end would not close the bracket; one grid step from that end does.
        low, high = self.grid.up(self.fits), self.grid.down(self.exceeds)
        return max(low, min(self.grid.snap(guess), high))

    def _outwards(self) -> float:
        """Return the next value while all were on one side: where the line leads, and further each time it misled."""
        self.strides += 1
        value, guess = self.fits or self.exceeds, self._secant()
        ratio = max(guess / value, value / guess) if guess else math.exp(min(abs(self.points[-1][1]), 50.0))
        ratio = max(min(ratio, _LONGEST_STRIDE) * (1 + self.grid.tolerance / 2), 2.0 ** (self.strides - 3))
        if self.fits:
            return max(self.grid.up(value), self.grid.snap(value * ratio))
        return min(self.grid.down(value), self.grid.snap(value / ratio))

    def _secant(self) -> float | None:
        if len(self.points) < 2:
            return None
        (x0, y0), (x1, y1) = self.points
        rise = y1 - y0
        if not math.isfinite(rise) or rise == 0 or (x1 - x0) / rise <= 0:
            return None
        return math.exp(min(x1 - y1 * (x1 - x0) / rise, 700.0))


def _interpolate(low: float, high: float, at_low: float, at_high: float, *, halve: bool) -> float:
    width = high - low
    if halve or not 0 < at_low - at_high < float("inf"):
        return low + width / 2
    guess = low + width * at_low / (at_low - at_high)
    # A guess on top of one end only shrinks the bracket by a hair; step over the root to close it from both sides.
    margin = 1e-3 * min(guess - low, high - guess) + 1e-14 * abs(high)
    return min(max(guess + (margin if at_low < -at_high else -margin), low), high)


def _search(cost: Callable[[float], float], budget: float, grid: _Grid, start: float) -> float | None:
    bracket, value = _Bracket(grid), grid.snap(start)
    for _ in range(_EVALUATIONS):
        bracket.add(value, _log_ratio(cost(value), budget))
        if bracket.is_closed():
            return bracket.fits or None
        value = bracket.next_value()
    raise ArithmeticError(f"no boundary between {grid.low} and {grid.high} within {_EVALUATIONS} evaluations")


def _log_ratio(cost: float, budget: float) -> float:
    """Return log(cost/budget), positive exactly where the cost is above the budget, be it by one rounding."""
    if not 0 < cost < math.inf:
        return math.inf if cost > 0 else -math.inf
    ratio = math.log(cost) - math.log(budget)
    return min(ratio, 0.0) if cost <= budget else max(ratio, math.ulp(0.0))
