"""Sums of log-moments that grow with a composition: adding an event is one addition, asking is one short sum.

Moments are kept at a few tilts θ (levels, 1.145 apart). Real cumulants come in blocks of eleven levels; from them the
best level and the reach of the tilted loss are read. Levels that are asked have lines of complex moments, which a
contour inverts. All of them catch up with the log of events only when they are asked.

>>> from dpfed.accounting.exact import contour
>>> from dpfed.accounting.exact.pairs import GaussianPair
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
from typing import cast

import numpy as np

from dpfed.accounting.exact.contour import Inversion
from dpfed.accounting.exact.pairs import Analytic, Line, Pair, is_analytic
from dpfed.accounting.exact.privacy_loss import Array, ComplexArray
from dpfed.accounting.exact.sampled_gaussian import TooManyNodes

_RATIO = 1.5 ** (1 / 3)
_LEVELS = range(-102, 78)
# A block of levels whose cumulants are computed together, and how many of them lie below the first guess.
_BLOCK, _BELOW = 11, 6
# Chernoff bounds at so many higher levels limit the copies of a line.
_ABOVE = 3
_MOST_FREQUENCIES = 5000
# The log of the cancellation that a shorter line may cost, and what a long one may.
_FEW_DIGITS, _MOST_DIGITS = 2.5, 10.0
_LONG = 200
# A line: its shortest period, and the logs of the shares of δ that its copies may have and that it may leave out.
_PERIOD = 17.0
_LOG_COPIES = math.log(1e-7)
_LEFT_OUT = -20.0
# The product of the largest frequency and the tilted spread at which decay can usually be proved.
_CUT_OFF = 15.0

_FACTORS = _RATIO ** np.arange(_BLOCK)
# What rounding may hide in the log of a small difference of δ's, and as a share of any exponent.
_HAIR = 1e-6
_UP = 1 + 2.0**-46

_Objective = Callable[[float, float], float]


class RunningMoments:
    """The moments of one direction of a composition.

    `like` is the other direction: a line of the same shape as one of its lines shares the work of the quadrature.
    """

    def __init__(self, like: RunningMoments | None = None) -> None:
        self._like = like
        self._log: list[tuple[Pair, int]] = []
        self._kinds: set[Pair] = set()
        self._variance = 0.0
        self._steepness = math.inf
        self._first: int | None = None
        self._blocks: dict[tuple[int, int], tuple[int, list[float]]] = {}
        self._lines: dict[int, list[_Line]] = {}
        self._level: int | None = None
        self._kept: int | None = None
        self._within: int | None = None

    def add(self, pair: Pair, count: int) -> None:
        """Compose `count` more of the pair."""
        self._log.append((pair, count))
        self._kinds.add(pair)
        self._variance += count * pair.variance
        self._steepness = min(self._steepness, pair.steepness(count))

    def copy(self, like: RunningMoments | None = None) -> RunningMoments:
        """Return an independent copy."""
        twin = copy(self)
        twin._like = like
        twin._log, twin._kinds, twin._blocks = self._log.copy(), self._kinds.copy(), self._blocks.copy()
        twin._lines = {level: lines.copy() for level, lines in self._lines.items()}
        return twin

    def delta_bound(self, epsilon: float) -> float:
        """Return an upper bound on the finite part of δ(ε) from the best level's cumulant."""
        objective = _log_delta(epsilon)
        level = self._find_best(objective)
        return math.exp(min(0.0, objective(_tilt(level), self._cumulant(level))))

    def is_within(self, epsilon: float, delta: float) -> bool:
        """Return whether some level's cumulant proves that the finite part of δ(ε) is at most δ.

        It is for the direction that decides nothing, nearly always, and costs no line.
        """
        objective, target = _log_delta(epsilon), math.log(delta) - _HAIR
        start = self._within
        if start is None:
            # The best tilt, were the loss Gaussian, or that of the direction which decides, whose tail is heavier.
            kept = self._like._kept if self._like else None
            start = max(_level(epsilon / max(self._variance, 1e-12) - 0.5), _LEVELS[0] if kept is None else kept)
        values: dict[int, float] = {}
        # Tilts fall as a composition grows; rare large losses, of which the guess knows nothing, raise them.
        for move in (0, -3, 3) if self._is_varied() else (0, 6, 12, 18):
            values[start + move] = objective(_tilt(start + move), self._cheapest_cumulant(start + move))
            self._within = min(values, key=values.__getitem__)
            if values[self._within] <= target:
                return True
        return False

    def inversion_at(self, epsilon: float, delta: float, at_infinity: float) -> Inversion | None:
        """Return an inversion suited to bounds at ε, where δ is about as given."""
        level = self._find_best(_log_delta(epsilon))
        return self._inversion(level, self._needs(level, epsilon, delta), at_infinity)

    def epsilon_bound(self, delta: float, at_infinity: float) -> float:
        """Return the ε at δ that RDP promises from the best level's cumulant."""
        objective = _conversion(-math.log(delta - at_infinity))
        level = self._find_best(objective)
        return max(0.0, objective(_tilt(level), self._cumulant(level)))

    def inversion_near(self, delta: float, at_infinity: float) -> tuple[float, Inversion | None]:
        """Return the ε that RDP promises at δ, and an inversion suited to bounds near it."""
        objective = _conversion(-math.log(delta - at_infinity))
        level = self._find_kept_level(self._like._kept, objective) if self._like else None
        if level is None:
            level = self._find_kept_level(self._kept, objective)
        is_kept = level is not None
        if level is None:
            level = self._find_best(objective)
            # Tilts fall as a composition grows: of many kinds of events, a lower level will serve for longer.
            level = max(level - (3 if self._is_varied() else 0), _LEVELS[0])
        start = max(0.0, objective(_tilt(level), self._cumulant(level)))
        if start == math.inf:
            return start, None
        needs = self._needs(level, start, delta)
        if needs.count > 60 and not is_kept:
            level, needs = self._choose_shorter(level, needs, start, delta)
        return start, self._inversion(level, needs, at_infinity)

    def _choose_shorter(self, level: int, needs: _Needs, epsilon: float, delta: float) -> tuple[int, _Needs]:
        """Return the level, or a lower one with a shorter line where tails are heavy; that costs some digits."""
        least = needs.left_out
        while level > _LEVELS[0]:
            below = self._needs(level - 1, epsilon, delta)
            most_digits = _MOST_DIGITS if needs.count > _LONG else _FEW_DIGITS
            if below.count > 0.95 * needs.count or least - below.left_out > most_digits:
                break
            level, needs = level - 1, below
        return level, needs

    def _find_kept_level(self, kept: int | None, objective: _Objective) -> int | None:
        """Return the level of an earlier line, unless a better one would gain a factor e² of amplitude or more."""
        if kept is None:
            return None
        values = [objective(_tilt(level), self._cumulant(level)) for level in (kept, kept - 3, kept + 3)]
        return kept if _tilt(kept) * (values[0] - min(values)) < 2 else None

    def _inversion(self, level: int, needs: _Needs, at_infinity: float) -> Inversion | None:
        """Return an inversion of a line kept at the level, or of a fresh one; None if its decay cannot be proved."""
        enlarge = needs.enlarge() if self._is_varied() else needs
        line = (
            self._find_kept_line(level, needs)
            or self._compute_matching_line(level, needs)
            or self._compute_line(level, enlarge)
        )
        self._kept = level if line else None
        return line.inversion(needs.others, at_infinity) if line else None

    def _needs(self, level: int, epsilon: float, delta: float) -> _Needs:
        tilt, log_delta = _tilt(level), math.log(delta)
        others = [(_tilt(above), self._cumulant(above)) for above in range(level + 1, level + 1 + _ABOVE)]
        # The period at which Chernoff bounds leave a share _COPIES of δ to the copies.
        period = (_PERIOD - log_delta) / tilt
        reach = min((k - other * epsilon - log_delta - _LOG_COPIES) / (other - tilt) for other, k in others)
        period = max(period, min(reach, 600 / tilt))
        # Rare large losses widen the spread but prove no decay.
        cut_off = _CUT_OFF / min(self._estimate_spread(level), math.sqrt(max(self._variance, 1e-300)))
        cancelled = max(0.0, self._cumulant(level) - tilt * epsilon - log_delta)
        return _Needs(2 * math.pi / period, cut_off, _LEFT_OUT - cancelled, others)

    def _estimate_spread(self, level: int) -> float:
        """Return about the standard deviation of the tilted loss: the root of K″ by divided differences."""
        (x0, x1, x2), (k0, k1, k2) = zip(
            *((_tilt(near), self._cumulant(near)) for near in (level - 1, level, level + 1)), strict=True
        )
        curvature = 2 * ((k2 - k1) / (x2 - x1) - (k1 - k0) / (x1 - x0)) / (x2 - x0)
        return math.sqrt(max(curvature, 1e-300)) if curvature < math.inf else math.inf

    def _find_kept_line(self, level: int, needs: _Needs) -> _Line | None:
        """Return a kept line that is fine enough, extended by the rest of the log; None if there is none."""
        lines = self._lines.get(level, [])
        for index, line in enumerate(lines):
            if line.step <= needs.step and (longer := self._extend(line, level, needs)):
                lines[index] = longer
                return longer
        return None

    def _compute_matching_line(self, level: int, needs: _Needs) -> _Line | None:
        """Compute a line shaped like one of the other direction's."""
        for shape in self._like._lines.get(level, []) if self._like else []:
            line = _Line(shape.tilt, shape.step, shape.count)
            if shape.step <= needs.step and (longer := self._extend(line, level, needs)):
                return self._keep(level, longer)
        return None

    def _compute_line(self, level: int, needs: _Needs) -> _Line | None:
        """Compute a line that is about as long as the proof of its decay needs."""
        count, power, earlier = needs.count, 0.5, (0, 0.0)
        while count <= _MOST_FREQUENCIES:
            line = _Line(_tilt(level), needs.step, count)
            decay = min(self._decay(line, level, needs.left_out), -1e-9)
            # Log-moments fall about as the square of the frequency at first, more slowly later.
            if earlier[0]:
                gained = math.log(decay / earlier[1])
                power = min(max(math.log(count / earlier[0]) / gained, 0.5), 4.0) if gained else 4.0
            share = (needs.left_out / decay) ** power
            if share <= 1 and (earlier[0] or share > 0.8 or self._is_varied()):
                return self._keep(level, line.extend(self._log, decay))
            earlier, count = (count, decay), math.ceil(count * min(max(1.02 * share, 0.3), 2.0))
        return None

    def _keep(self, level: int, line: _Line | None) -> _Line | None:
        if line:
            self._lines.setdefault(level, []).append(line)
        return line

    def _extend(self, line: _Line, level: int, needs: _Needs) -> _Line | None:
        """Extend the line by the rest of the log; return None if the decay that is needed cannot be proved."""
        decay = self._decay(line, level, needs.left_out)
        return line.extend(self._log, decay) if decay <= needs.left_out else None

    def _decay(self, line: _Line, level: int, enough: float) -> float:
        """Bound log |M(θ+iw)/M(θ)| of the whole log beyond the line, from no more of its events than needed."""
        decay, omega, top = line.decay, line.step * line.count, self._top(level)
        for pair, count in _merge(self._log[line.position :]).items():
            if not is_analytic(pair):
                return 0.0
            if decay > enough:
                decay += count * pair.decay(line.tilt, omega, top)
        return decay

    def _find_best(self, objective: _Objective) -> int:
        """Return the level at which the objective, a valley in the tilt, is least."""
        level = self._guess_level() if self._level is None or self._is_varied() else self._level
        value = objective(_tilt(level), self._cumulant(level))
        for move in (-1, 1):
            while level + move in _LEVELS:
                beyond = objective(_tilt(level + move), self._cumulant(level + move))
                if not beyond < value:
                    break
                level, value = level + move, beyond
        self._level = level
        return level

    def _guess_level(self) -> int:
        """Estimate the level for δ = 1e-5 as if the loss were Gaussian, within what the pairs' steepness allows."""
        variance = min(max(self._variance, 1e-12), 1e12)
        return _level(min(4.5 / math.sqrt(variance), self._steepness))

    def _is_varied(self) -> bool:
        return len(self._kinds) > 4

    def _cumulant(self, level: int) -> float:
        """Return K(θ) at the level."""
        first, place = self._block(level)
        return self._sums(first, _BLOCK)[place]

    def _cheapest_cumulant(self, level: int) -> float:
        """Return K(θ) at the level, from a whole block if the other direction has computed its quadrature."""
        first, place = self._like._block(level) if self._like else (level, 0)
        if self._like and (first, _BLOCK) in self._like._blocks:
            return self._sums(first, _BLOCK)[place]
        return self._sums(level, 1)[0]

    def _sums(self, first: int, size: int) -> list[float]:
        """Return K(θ) at `size` levels from the first, summed over the log."""
        position, values = self._blocks.get((first, size), (0, [0.0] * size))
        if position < len(self._log):
            total = np.array(values)
            fresh = _merge(self._log[position:])
            for pair, count in fresh.items():
                total += count * _cumulants(pair, first, size)
            # Each product and each sum was rounded once.
            total += (len(fresh) * 2.0**-51) * np.abs(total)
            values = total.tolist()
            self._blocks[first, size] = len(self._log), values
        return values

    def _block(self, level: int) -> tuple[int, int]:
        """Return the first level of the block that holds the level, and its place there."""
        if self._first is None:
            self._first = self._guess_level() - _BELOW
        place = (level - self._first) % _BLOCK
        return level - place, place

    def _top(self, level: int) -> float:
        """Return the highest tilt whose cumulant is computed together with that of the level."""
        return float(_tilts(self._block(level)[0], _BLOCK)[-1])


@dataclass(frozen=True)
class _Needs:
    """The demands on a line: its step and length, how far its moments must fall, Chernoff bounds on its copies."""

    step: float
    cut_off: float
    left_out: float
    others: list[tuple[float, float]]

    def enlarge(self) -> _Needs:
        """Return larger needs, which last longer; a longer line also proves its decay from fewer events."""
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
    additions: int = 0

    def extend(self, log: list[tuple[Pair, int]], decay: float) -> _Line | None:
        """Extend the line by the rest of the log, which must be analytic, with the decay that is proved."""
        error, values, fresh = self.error, self.values, _merge(log[self.position :])
        try:
            for pair, count in fresh.items():
                more, its_error = _moment_line(cast("Analytic", pair), self.tilt, self.step, self.count)
                error += count * float(its_error)
                values = values + count * more
        except TooManyNodes:
            return None
        additions = self.additions + len(fresh)
        return _Line(self.tilt, self.step, self.count, len(log), decay, error, values, additions)

    def inversion(self, others: list[tuple[float, float]], at_infinity: float) -> Inversion:
        """Return the inversion of the line."""
        # Each addition rounded a product and a sum.
        rounding = 2.0**-51 * (1 + self.additions) * (1 + float(np.abs(self.values).max()))
        return Inversion(self.tilt, self.step, self.values, self.error + rounding, self.decay, others, at_infinity)


def _merge(entries: list[tuple[Pair, int]]) -> dict[Pair, int]:
    """Merge entries of equal pairs, so that steps taken one by one cost no more than all at once."""
    counts: dict[Pair, int] = {}
    for pair, count in entries:
        counts[pair] = counts.get(pair, 0) + count
    return counts


def _tilt(level: int) -> float:
    return float(_RATIO**level)


def _level(tilt: float) -> int:
    """Return the level nearest to the tilt."""
    return min(max(round(math.log(min(max(tilt, 1e-9), 1e9), _RATIO)), _LEVELS[0]), _LEVELS[-1])


def _log_delta(epsilon: float) -> _Objective:
    """Return log δ at ε from the cumulant at one tilt (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return lambda tilt, cumulant: cumulant * _UP - tilt * (epsilon + math.log1p(1 / tilt)) - math.log1p(tilt)


def _conversion(target: float) -> _Objective:
    """Return ε at δ = e^−target from the cumulant at one tilt (the same proposition)."""
    return lambda tilt, cumulant: ((cumulant + target) * _UP - math.log1p(tilt)) / tilt - math.log1p(1 / tilt)


def _tilts(first: int, size: int) -> Array:
    """Return the tilts of a block of levels."""
    return _tilt(first) * _FACTORS[:size]


@lru_cache(maxsize=20_000)
def _cumulants(pair: Pair, first: int, size: int) -> Array:
    """Return the cumulants of a block of levels; ∞ where a quadrature would cost too much."""
    try:
        return pair.cumulants(_tilts(first, size))
    except TooManyNodes:
        if size == 1:
            return np.full(1, np.inf)
        return np.concatenate([_cumulants(pair, level, 1) for level in range(first, first + size)])


@lru_cache(maxsize=4096)
def _moment_line(pair: Analytic, tilt: float, step: float, count: int) -> Line:
    return pair.line(tilt, step, count)
