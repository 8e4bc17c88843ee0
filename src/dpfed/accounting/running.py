"""Sums of log-moments that grow with a composition: adding an event is one addition, asking is one short sum.

Moments are kept at a few tilts θ (levels, 1.5 apart). Each level has a fan of real cumulants, from which the best level
and the reach of the tilted loss are read, and lines of complex moments, which a contour inverts. All of them catch up
with the log of events only when they are asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpfed.accounting import contour, moments
from dpfed.accounting.contour import Inversion
from dpfed.accounting.laws import Array
from dpfed.accounting.moments import Pair

_RATIO = 1.5
_LEVELS = range(-34, 26)
# A fan: the levels below and above, and tilts just above for Chernoff bounds on how far the tilted loss reaches.
_FAN = np.array([1 / _RATIO, 1.0, 1.1, 1.2, 1.35, _RATIO])
_COUNTS = tuple(round(32 * 1.25**power) for power in range(20))
# A line's shortest period, the share of δ that its copies may have, and the log of what it may leave out.
_PERIOD = 17.0
_COPIES = 1e-7
_LEFT_OUT = -40.0
# The product of the largest frequency and the tilted spread at which decay can usually be proved.
_CUT_OFF = 17.0

_Objective = Callable[[float, float], float]


class RunningMoments:
    """The moments of one direction of a composition."""

    def __init__(self) -> None:
        self._log: list[tuple[Pair, int]] = []
        self._steps = 0
        self._fans: dict[int, tuple[int, Array]] = {}
        self._lines: dict[int, list[_Line]] = {}
        self._level: int | None = None

    def add(self, pair: Pair, count: int) -> None:
        """Compose `count` more of the pair."""
        self._log.append((pair, count))
        self._steps += count

    def copy(self) -> RunningMoments:
        """Running moments that can go their own way."""
        twin = copy(self)
        twin._log, twin._fans = self._log.copy(), self._fans.copy()
        twin._lines = {level: lines.copy() for level, lines in self._lines.items()}
        return twin

    def chernoff_delta(self, epsilon: float) -> float:
        """The smallest e^{K(θ) − θε} over the levels: an upper bound on the finite part of δ(ε)."""
        level = self._best(lambda tilt, cumulant: cumulant - tilt * epsilon)
        return math.exp(min(0.0, self._cumulant(level) - _tilt(level) * epsilon))

    def inversion_at(self, epsilon: float, delta: float, at_infinity: float) -> Inversion | None:
        """An inversion that suits questions at ε, where δ is about as given."""
        level = self._best(lambda tilt, cumulant: cumulant - tilt * epsilon)
        return self._inversion(level, epsilon, delta, at_infinity)

    def inversion_near(self, delta: float, at_infinity: float) -> tuple[float, Inversion | None]:
        """The ε that RDP promises at δ, and an inversion that suits questions near it."""
        target = -math.log(delta - at_infinity)
        level = self._best(lambda tilt, cumulant: _conversion(tilt, cumulant, target))
        start = max(0.0, _conversion(_tilt(level), self._cumulant(level), target))
        return start, self._inversion(level, start, delta, at_infinity)

    def _inversion(self, level: int, epsilon: float, delta: float, at_infinity: float) -> Inversion | None:
        """An inversion of a line kept near the level, or of a fresh one; none where its decay cannot be proved."""
        for near in (level, level - 1, level + 1):
            needs = self._needs(near, epsilon, delta) if near in self._lines else None
            if needs and (line := self._kept_line(near, needs)):
                return line.inversion(needs.others, at_infinity)
        # Tilts fall as a composition grows: of several events, the next level down will serve for longer.
        level = level - 1 if len(self._log) > 8 and level > _LEVELS[0] else level
        needs = self._needs(level, epsilon, delta)
        fresh = self._fresh_line(level, needs)
        return fresh.inversion(needs.others, at_infinity) if fresh else None

    def _needs(self, level: int, epsilon: float, delta: float) -> _Needs:
        tilt, fan = _tilt(level), self._fan(level)
        others = [(tilt * factor, cumulant) for factor, cumulant in zip(_FAN[2:], fan[2:], strict=True)]
        step = 2 * math.pi * tilt / (_PERIOD - math.log(delta))
        while contour.copies(epsilon, tilt, step, others) > _COPIES * delta and step > tilt / 100:
            step /= _RATIO
        spread = math.sqrt(max(float(fan[3] - 2 * fan[2] + fan[1]), 1e-300)) / (0.1 * tilt)
        return _Needs(step, _CUT_OFF / spread, others)

    def _kept_line(self, level: int, needs: _Needs) -> _Line | None:
        """A line from an earlier question that is fine and long enough, caught up with the log."""
        lines = self._lines[level]
        for index, line in enumerate(lines):
            if line.suits(needs) and (longer := line.caught_up(self._log, self._steps)):
                lines[index] = longer
                return longer
        return None

    def _fresh_line(self, level: int, needs: _Needs) -> _Line | None:
        """The shortest new line whose decay is proved, kept for the next question."""
        for count in _COUNTS:
            line = _Line(_tilt(level), needs.step, count)
            if line.suits(needs) and (whole := line.caught_up(self._log, self._steps)):
                self._lines.setdefault(level, []).append(whole)
                return whole
        return None

    def _best(self, objective: _Objective) -> int:
        """The level at which the objective, a valley in the tilt, is least; the last one is kept while it is near."""
        level = self._first_guess() if self._level is None else self._level
        while True:
            fan, tilt = self._fan(level), _tilt(level)
            low, here, high = (objective(tilt * _FAN[i], float(fan[i])) for i in (0, 1, -1))
            move = -1 if low < min(here, high) else 1 if high < here else 0
            if not move or level + move not in _LEVELS:
                break
            level += move
        self._level = level
        return level

    def _first_guess(self) -> int:
        """The level for δ about 1e-6 if the loss were Gaussian with the variance that the cumulant at 1 suggests."""
        variance = max(float(self._fan(0)[1]), 1e-12)
        level = round(math.log(5.0 / math.sqrt(variance), _RATIO)) if variance < math.inf else _LEVELS[0]
        return min(max(level, _LEVELS[0]), _LEVELS[-1])

    def _cumulant(self, level: int) -> float:
        return float(self._fan(level)[1])

    def _fan(self, level: int) -> Array:
        position, total = self._fans.get(level, (0, np.zeros(len(_FAN))))
        if position < len(self._log):
            total = total + sum(count * _cumulants(pair, level) for pair, count in self._log[position:])
            self._fans[level] = len(self._log), total
        return total


@dataclass(frozen=True)
class _Needs:
    """How fine and how long a line must be, and the Chernoff bounds that limit its copies."""

    step: float
    cut_off: float
    others: list[tuple[float, float]]


@dataclass(frozen=True)
class _Line:
    """The sum of the log-moments of the first `position` entries of a log at θ + i·step·j, j < count."""

    tilt: float
    step: float
    count: int
    position: int = 0
    decay: float = 0.0
    error: float = 0.0
    values: NDArray[np.complex128] = field(default_factory=lambda: np.zeros(1, dtype=complex))

    def suits(self, needs: _Needs) -> bool:
        """Whether the line is as fine and as long as asked."""
        return self.step <= needs.step and (self.count - 1) * self.step >= needs.cut_off

    def caught_up(self, log: list[tuple[Pair, int]], steps: int) -> _Line | None:
        """The line with the rest of the log; none where the decay of the whole cannot be proved."""
        fresh = log[self.position :]
        if not fresh:
            return self
        decay, omega = self.decay, self.step * (self.count - 1)
        for pair, count in fresh:
            if decay > 2 * _LEFT_OUT:
                decay += count * pair.decay(self.tilt, omega, 1.2 * _LEFT_OUT / steps)
        if decay > _LEFT_OUT:
            return None
        parts = [(count, *_moment_line(pair, self.tilt, self.step, self.count)) for pair, count in fresh]
        return replace(
            self,
            position=len(log),
            decay=decay,
            error=self.error + math.fsum(count * error for count, _, error in parts),
            values=self.values + sum(count * values for count, values, _ in parts),
        )

    def inversion(self, others: list[tuple[float, float]], at_infinity: float) -> Inversion:
        """The line ready to be asked for δ."""
        rounding = 2.0**-50 * (1 + float(np.abs(self.values).max()))
        return Inversion(self.tilt, self.step, self.values, self.error + rounding, self.decay, others, at_infinity)


def _tilt(level: int) -> float:
    return float(_RATIO**level)


def _conversion(tilt: float, cumulant: float, target: float) -> float:
    """ε from the cumulant at one tilt (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return (cumulant + target - math.log1p(tilt)) / tilt - math.log1p(1 / tilt)


@lru_cache(maxsize=20_000)
def _cumulants(pair: Pair, level: int) -> Array:
    try:
        return pair.cumulants(_tilt(level) * _FAN)
    except moments.TooManyNodes:
        return np.full(len(_FAN), np.inf)


@lru_cache(maxsize=4096)
def _moment_line(pair: moments.Analytic, tilt: float, step: float, count: int) -> moments.Line:
    return pair.line(tilt, step, count)
