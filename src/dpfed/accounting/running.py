"""Sums of log-moments that grow with a composition: adding an event is one addition, asking is one short sum.

Moments are kept at a few tilts θ (levels, 1.145 apart). Each level has a fan of real cumulants, from which the best
level and the reach of the tilted loss are read, and lines of complex moments, which a contour inverts. All of them
catch up with the log of events only when they are asked.

>>> from dpfed.accounting import contour
>>> from dpfed.accounting.moments import GaussianPair
>>> running = RunningMoments()
>>> running.add(GaussianPair(mu=0.1), 100)
>>> start, inversion = running.inversion_near(delta=1e-5, at_infinity=0.0)
>>> start > 4.377178  # RDP is looser than the inversion
True
>>> round(contour.smallest_epsilon(inversion, 1e-5, start), 6)
4.377178
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from dpfed.accounting.contour import Inversion
from dpfed.accounting.laws import Array, ComplexArray
from dpfed.accounting.moments import Analytic, Line, Pair, is_analytic
from dpfed.accounting.sampled_gaussian import TooManyNodes

_RATIO = 1.5 ** (1 / 3)
_LEVELS = range(-102, 78)
# A fan: the cumulants of levels around one, and of a tilt in between to measure the spread of the tilted loss.
_MOVES = (-3, 0, 0.5, 1, 2, 3)
_FACTORS = tuple(_RATIO**move for move in _MOVES)
_HERE, _BETWEEN, _NEXT = 1, 2, 3
_MOST_FREQUENCIES = 5000
# The log of the cancellation that a line may suffer.
_MOST_DIGITS = 12.0
# A line: its shortest period, and the logs of the shares of δ that its copies may have and that it may leave out.
_PERIOD = 17.0
_LOG_COPIES = math.log(1e-7)
_LEFT_OUT = -20.0
# The product of the largest frequency and the tilted spread at which decay can usually be proved.
_CUT_OFF = 15.0

_Objective = Callable[[float, float], float]


class RunningMoments:
    """The moments of one direction of a composition.

    `like` is the other direction: a line of the same shape as one of its lines shares the work of the quadrature.
    """

    def __init__(self, like: RunningMoments | None = None) -> None:
        self._like = like
        self._log: list[tuple[Pair, int]] = []
        self._kinds: set[Pair] = set()
        self._steps = 0
        self._variance = 0.0
        self._steepness = math.inf
        self._fans: dict[int, tuple[int, Array]] = {}
        self._lines: dict[int, list[_Line]] = {}
        self._level: int | None = None
        self._kept: int | None = None

    def add(self, pair: Pair, count: int) -> None:
        """Compose `count` more of the pair."""
        self._log.append((pair, count))
        self._kinds.add(pair)
        self._steps += count
        self._variance += count * pair.variance
        self._steepness = min(self._steepness, pair.steepness)

    def copy(self, like: RunningMoments | None = None) -> RunningMoments:
        """Running moments that can go their own way."""
        twin = copy(self)
        twin._like = like
        twin._log, twin._kinds, twin._fans = self._log.copy(), self._kinds.copy(), self._fans.copy()
        twin._lines = {level: lines.copy() for level, lines in self._lines.items()}
        return twin

    def delta_bound(self, epsilon: float) -> float:
        """An upper bound on the finite part of δ(ε) from the best level's cumulant."""
        objective = _log_delta(epsilon)
        level = self._best(objective)
        return math.exp(min(0.0, objective(_tilt(level), self._cumulant(level))))

    def inversion_at(self, epsilon: float, delta: float, at_infinity: float) -> Inversion | None:
        """An inversion that suits questions at ε, where δ is about as given."""
        level = self._best(_log_delta(epsilon))
        return self._inversion(level, self._needs(level, epsilon, delta), at_infinity)

    def epsilon_bound(self, delta: float, at_infinity: float) -> float:
        """The ε at δ that RDP promises from the best level's cumulant."""
        objective = _conversion(-math.log(delta - at_infinity))
        level = self._best(objective)
        return max(0.0, objective(_tilt(level), self._cumulant(level)))

    def inversion_near(self, delta: float, at_infinity: float) -> tuple[float, Inversion | None]:
        """The ε that RDP promises at δ, and an inversion that suits questions near it."""
        objective = _conversion(-math.log(delta - at_infinity))
        level = self._kept_level(self._like._kept, objective) if self._like else None
        if level is None:
            level = self._kept_level(self._kept, objective)
        is_kept = level is not None
        if level is None:
            level = self._best(objective)
            # Tilts fall as a composition grows: of many kinds of events, a lower level will serve for longer.
            level = max(level - (3 if self._is_varied() else 0), _LEVELS[0])
        start = max(0.0, objective(_tilt(level), self._cumulant(level)))
        if start == math.inf:
            return start, None
        needs = self._needs(level, start, delta)
        if needs.count > 60 and not is_kept:
            level, needs = self._shorter(level, needs, start, delta)
        return start, self._inversion(level, needs, at_infinity)

    def _shorter(self, level: int, needs: _Needs, epsilon: float, delta: float) -> tuple[int, _Needs]:
        """The level, or one below where heavy tails make lines long: there they are shorter, and cost some digits."""
        while level > _LEVELS[0]:
            below = self._needs(level - 1, epsilon, delta)
            if below.count > 0.95 * needs.count or _LEFT_OUT - below.left_out > _MOST_DIGITS:
                break
            level, needs = level - 1, below
        return level, needs

    def _kept_level(self, kept: int | None, objective: _Objective) -> int | None:
        """The level of an earlier line, while a better one would gain less than a factor e² of amplitude."""
        if kept is None:
            return None
        values = self._values(kept, objective)
        return kept if _tilt(kept) * (values[_HERE] - min(values)) < 2 else None

    def _inversion(self, level: int, needs: _Needs, at_infinity: float) -> Inversion | None:
        """An inversion of a line kept at the level, or of a fresh one; none where its decay cannot be proved."""
        ample = needs.ample() if self._is_varied() else needs
        line = self._kept_line(level, needs) or self._matching_line(level, needs) or self._fresh_line(level, ample)
        self._kept = level if line else None
        return line.inversion(needs.others, at_infinity) if line else None

    def _needs(self, level: int, epsilon: float, delta: float) -> _Needs:
        tilt, log_delta = _tilt(level), math.log(delta)
        fan = self._fan(level).tolist()
        others = [(tilt * factor, cumulant) for factor, cumulant in zip(_FACTORS[_NEXT:], fan[_NEXT:], strict=True)]
        # The period at which Chernoff bounds leave a share _COPIES of δ to the copies, in powers of the ratio.
        period = (_PERIOD - log_delta) / tilt
        reach = min((k - other * epsilon - log_delta - _LOG_COPIES) / (other - tilt) for other, k in others)
        while period < min(reach, 600 / tilt):
            period *= 1.5
        spread = _spread(tilt, fan)
        # Rare large losses widen the spread but prove no decay.
        cut_off = _CUT_OFF / min(spread, math.sqrt(max(self._variance, 1e-300)))
        cancelled = max(0.0, fan[_HERE] - tilt * epsilon - log_delta)
        return _Needs(2 * math.pi / period, cut_off, _LEFT_OUT - cancelled, others)

    def _kept_line(self, level: int, needs: _Needs) -> _Line | None:
        """A line from an earlier question that is fine and long enough, caught up with the log."""
        lines = self._lines.get(level, [])
        for index, line in enumerate(lines):
            if line.suits(needs) and (longer := line.caught_up(self._log, self._steps, needs.left_out)):
                lines[index] = longer
                return longer
        return None

    def _matching_line(self, level: int, needs: _Needs) -> _Line | None:
        """A new line shaped like one of the other direction's."""
        for shape in self._like._lines.get(level, []) if self._like else []:
            if shape.suits(needs, 0.8):
                line = _Line(shape.tilt, shape.step, shape.count).caught_up(self._log, self._steps, needs.left_out)
                if line:
                    self._lines.setdefault(level, []).append(line)
                    return line
        return None

    def _fresh_line(self, level: int, needs: _Needs) -> _Line | None:
        """The shortest new line whose decay is proved, kept for the next question."""
        count = needs.count
        while count <= _MOST_FREQUENCIES:
            line = _Line(_tilt(level), needs.step, count).caught_up(self._log, self._steps, needs.left_out)
            if line:
                self._lines.setdefault(level, []).append(line)
                return line
            count = math.ceil(count * 1.5)
        return None

    def _best(self, objective: _Objective) -> int:
        """The level at which the objective, a valley in the tilt, is least, or nearly so."""
        level = self._first_guess() if self._level is None or self._is_varied() else self._level
        for _ in range(len(_LEVELS)):
            values = self._values(level, objective)
            best = min(range(len(values)), key=values.__getitem__)
            move = round(_MOVES[best])
            # A single level up or down pays only where cumulants are steep.
            is_worth = abs(move) == 3 or (move and _tilt(level) * (values[_HERE] - values[best]) > 0.5)
            if not is_worth or level + move not in _LEVELS:
                break
            level += move
        self._level = level
        return level

    def _values(self, level: int, objective: _Objective) -> list[float]:
        tilt = _tilt(level)
        return [objective(tilt * factor, k) for factor, k in zip(_FACTORS, self._fan(level).tolist(), strict=True)]

    def _first_guess(self) -> int:
        """The level for δ about 1e-5 if the loss were Gaussian of the variance that the pairs suggest, if not steep."""
        variance = min(max(self._variance, 1e-12), 1e12)
        level = round(math.log(min(4.5 / math.sqrt(variance), self._steepness), _RATIO))
        return min(max(level, _LEVELS[0]), _LEVELS[-1])

    def _is_varied(self) -> bool:
        return len(self._kinds) > 4

    def _cumulant(self, level: int) -> float:
        return float(self._fan(level)[_HERE])

    def _fan(self, level: int) -> Array:
        position, total = self._fans.get(level, (0, np.zeros(len(_FACTORS))))
        if position < len(self._log):
            fresh = _gathered(self._log[position:])
            total = total + sum(count * _cumulants(pair, level) for pair, count in fresh.items())
            self._fans[level] = len(self._log), total
        return total


@dataclass(frozen=True)
class _Needs:
    """How fine and long a line must be, how far its moments must fall, and Chernoff bounds that limit its copies."""

    step: float
    cut_off: float
    left_out: float
    others: list[tuple[float, float]]

    def ample(self) -> _Needs:
        """Needs that a composition does not soon outgrow; a longer line also proves its decay from fewer events."""
        return replace(self, step=self.step / 1.5, cut_off=self.cut_off * 1.6)

    @property
    def count(self) -> int:
        """How many frequencies that takes."""
        return math.ceil(self.cut_off / self.step) + 1


@dataclass(frozen=True)
class _Line:
    """The sum of the log-moments of the first `position` entries of a log at θ + i·step·j, j < count."""

    tilt: float
    step: float
    count: int
    position: int = 0
    decay: float = 0.0
    error: float = 0.0
    values: ComplexArray = field(default_factory=lambda: np.zeros(1, dtype=complex))

    def suits(self, needs: _Needs, share: float = 1.0) -> bool:
        """Whether the line is as fine as asked and at least that share as long."""
        return self.step <= needs.step and (self.count - 1) * self.step >= share * needs.cut_off

    def caught_up(self, log: list[tuple[Pair, int]], steps: int, left_out: float) -> _Line | None:
        """The line with the rest of the log; none where so much decay of the whole cannot be proved."""
        fresh = _gathered(log[self.position :])
        if not fresh:
            return self if self.decay <= left_out else None
        decay, omega = self.decay, self.step * (self.count - 1)
        for pair, count in fresh.items():
            if not is_analytic(pair):
                return None
            if decay > left_out:
                decay += count * pair.decay(self.tilt, omega, 1.1 * left_out / steps)
        if decay > left_out:
            return None
        try:
            parts = [(count, *_moment_line(pair, self.tilt, self.step, self.count)) for pair, count in fresh.items()]
        except TooManyNodes:
            return None
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


def _gathered(entries: list[tuple[Pair, int]]) -> dict[Pair, int]:
    """The entries with equal pairs as one, so that steps taken one by one cost no more than all at once."""
    counts: dict[Pair, int] = {}
    for pair, count in entries:
        counts[pair] = counts.get(pair, 0) + count
    return counts


def _spread(tilt: float, fan: list[float]) -> float:
    """About the standard deviation of the tilted loss: the root of K″ by divided differences."""
    near, far = (_FACTORS[_BETWEEN] - 1) * tilt, (_FACTORS[_NEXT] - 1) * tilt
    slopes = (fan[_BETWEEN] - fan[_HERE]) / near, (fan[_NEXT] - fan[_BETWEEN]) / (far - near)
    curvature = 2 * (slopes[1] - slopes[0]) / far
    return math.sqrt(max(curvature, 1e-300)) if curvature < math.inf else math.inf


def _tilt(level: int) -> float:
    return float(_RATIO**level)


def _log_delta(epsilon: float) -> _Objective:
    """log δ at ε from the cumulant at one tilt (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return lambda tilt, cumulant: cumulant - tilt * (epsilon + math.log1p(1 / tilt)) - math.log1p(tilt)


def _conversion(target: float) -> _Objective:
    """ε at δ = e^−target from the cumulant at one tilt (the same proposition)."""
    return lambda tilt, cumulant: (cumulant + target - math.log1p(tilt)) / tilt - math.log1p(1 / tilt)


@lru_cache(maxsize=20_000)
def _cumulants(pair: Pair, level: int) -> Array:
    try:
        return pair.cumulants(_tilt(level) * np.array(_FACTORS))
    except TooManyNodes:
        return np.full(len(_FACTORS), np.inf)


@lru_cache(maxsize=4096)
def _moment_line(pair: Analytic, tilt: float, step: float, count: int) -> Line:
    return pair.line(tilt, step, count)
