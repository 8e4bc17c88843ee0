"""The exact accountant: events in, certified ε and δ out, incrementally.

A composition keeps, for each direction of the worst-case pair, running sums of log-moments on a few lines; an event is
one addition and a question one short sum. The contour answers only where every error is bounded by a thousandth of δ;
where it cannot (few steps, purely discrete losses) the lattice does, and where an event has no pair RDP does.

>>> from dpfed.events import Gaussian, PoissonSampled
>>> run = Composition()
>>> run.add(PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01), 10_000)
>>> round(run.epsilon(delta=1e-5), 4)
6.1877
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting import closed_forms, contour, lattice, moments, rdp
from dpfed.accounting.contour import Inversion
from dpfed.accounting.laws import Array
from dpfed.accounting.laws import delta as single_delta
from dpfed.accounting.moments import Pair
from dpfed.accounting.normal_form import atoms
from dpfed.accounting.roots import crossing
from dpfed.checks import ADD_REMOVE

T = TypeVar("T")

_RATIO = 1.5
_BLOCK = 4
_LEVELS = range(-32, 24)
_COUNTS = (48, 72, 108, 162, 243, 364, 546, 820)
# The line's period covers the tilted loss down to e^−30 of δ; what a contour leaves out must be below e^−40.
_PERIOD = 30.0
_LEFT_OUT = -40.0
_GATE = 1e-3


class Composition:
    """Events that were composed under one adjacency, and what they cost together.

    Privacy: ε is an upper bound for the adaptive composition of the events as a plan fixed in advance. It is not a
    filter: choosing an event after looking at earlier outputs needs accounting/filter.py.
    """

    def __init__(self, adjacency: str = ADD_REMOVE) -> None:
        self.adjacency = checks.adjacency(adjacency)
        self._events: Counter[ev.Event] = Counter()
        self._sides: tuple[_Side, _Side] = (_Side(), _Side())
        self._is_mirrored = True

    @property
    def events(self) -> Mapping[ev.Event, int]:
        """How often each atom was added."""
        return dict(self._events)

    @property
    def is_exact(self) -> bool:
        """Whether every event has a worst-case pair; otherwise ε comes from RDP."""
        return all(moments.pairs(atom, self.adjacency) for atom in self._events)

    def add(self, event: ev.Event, count: int = 1) -> None:
        """Compose `count` more of the event; refused events leave the composition as it was."""
        count = checks.count(count=count)
        bag = atoms(event)
        found = {atom: moments.pairs(atom, self.adjacency) for atom in bag}
        for atom, times in bag.items():
            self._events[atom] += times * count
            self._is_mirrored &= len(found[atom]) < 2
            for index, side in enumerate(self._sides):
                if found[atom]:
                    side.add(found[atom][index % len(found[atom])], times * count)

    def copy(self) -> Composition:
        """A composition that can go its own way."""
        twin = Composition(self.adjacency)
        twin._events = self._events.copy()
        twin._sides = (self._sides[0].copy(), self._sides[1].copy())
        twin._is_mirrored = self._is_mirrored
        return twin

    def epsilon(self, delta: float) -> float:
        """An upper bound on ε at δ."""
        delta = checks.probability(delta=delta)
        if not self._events:
            return 0.0
        if not self.is_exact or delta == 0:
            return self._epsilon_without_pairs(delta)
        exact = max(side.epsilon(delta) for side in self._distinct())
        return min(exact, self._rdp_epsilon(delta)) if self._has_tighter_curve() or exact == math.inf else exact

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """Certified lower and upper bounds on ε at δ; the lower is 0 where only an upper bound is proved."""
        delta = checks.probability(delta=delta)
        if not self._events or not self.is_exact or self._has_tighter_curve():
            return 0.0, self.epsilon(delta)
        if delta == 0:
            return self.epsilon(0.0), self.epsilon(0.0)
        brackets = [side.bracket(delta) for side in self._distinct()]
        return max(low for low, _ in brackets), max(high for _, high in brackets)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ at ε."""
        epsilon = checks.non_negative(epsilon=epsilon)
        if not self._events:
            return 0.0
        if not self.is_exact:
            return rdp.delta_from_rdp(rdp.DEFAULT_ORDERS, self._rdp(), epsilon)
        return max(side.delta(epsilon) for side in self._distinct())

    def _distinct(self) -> tuple[_Side, ...]:
        return self._sides[:1] if self._is_mirrored else self._sides

    def _has_tighter_curve(self) -> bool:
        return any(isinstance(atom, ev.Exponential) for atom in self._events)

    def _rdp(self) -> Array:
        return rdp.total(self._events, rdp.DEFAULT_ORDERS, self.adjacency)

    def _rdp_epsilon(self, delta: float) -> float:
        return rdp.epsilon_from_rdp(rdp.DEFAULT_ORDERS, self._rdp(), delta)

    def _epsilon_without_pairs(self, delta: float) -> float:
        if ev.Unprotected() in self._events:
            return math.inf
        if delta > 0:
            return self._rdp_epsilon(delta)
        return max(side.largest_loss() for side in self._distinct()) if self.is_exact else math.inf


class _Side:
    """One direction: pairs with their counts, and sums of their moments that catch up when asked."""

    def __init__(self) -> None:
        self._log: list[tuple[Pair, int]] = []
        self._counts: Counter[Pair] = Counter()
        self._blocks: dict[int, tuple[int, Array]] = {}
        self._lines: dict[tuple[int, float, int], _Line] = {}
        self._level = 0

    def add(self, pair: Pair, count: int) -> None:
        self._log.append((pair, count))
        self._counts[pair] += count

    def copy(self) -> _Side:
        twin = _Side()
        twin._log, twin._counts = self._log.copy(), self._counts.copy()
        twin._blocks, twin._level = self._blocks.copy(), self._level
        twin._lines = {key: line.copy() for key, line in self._lines.items()}
        return twin

    def largest_loss(self) -> float:
        if any(pair.law.at_infinity > 0 for pair in self._counts):
            return math.inf
        return math.fsum(count * pair.law.maximum for pair, count in self._counts.items()) * (1 + 2.0**-50)

    def epsilon(self, delta: float) -> float:
        if (mu := self._gaussian()) is not None:
            return closed_forms.gaussian_epsilon(mu, delta)
        if self._count() == 1:
            return self._single(delta)
        found = self._contour(delta)
        return found[1] if found else self._on_lattice(lambda laws: lattice.epsilon_upper(laws, delta), math.inf)

    def bracket(self, delta: float) -> tuple[float, float]:
        if (mu := self._gaussian()) is not None:
            upper = closed_forms.gaussian_epsilon(mu, delta)
            return upper * (1 - 1e-11), upper
        if self._count() == 1:
            upper = self._single(delta)
            return upper * (1 - 1e-11), upper
        found = self._contour(delta)
        if found:
            inversion, upper = found
            return lattice.largest_lower(inversion.lower, delta, upper), upper
        return self._on_lattice(lambda laws: lattice.epsilon_bracket(laws, delta), (0.0, math.inf))

    def delta(self, epsilon: float) -> float:
        if (mu := self._gaussian()) is not None:
            return closed_forms.gaussian_delta(mu, epsilon)
        if self._count() == 1:
            return float(single_delta(self._log[0][0].law, epsilon))
        level = self._best_level(lambda tilt, cumulant: cumulant - tilt * epsilon)
        chernoff = min(1.0, math.exp(min(0.0, self._cumulant(level) - _tilt(level) * epsilon)) + self._at_infinity())
        inversion = self._inversion(level, chernoff) if chernoff > 0 else None
        if inversion and inversion.upper(epsilon) - inversion.lower(epsilon) <= _GATE * inversion.upper(epsilon):
            return min(chernoff, inversion.upper(epsilon))
        return min(chernoff, self._on_lattice(lambda laws: lattice.delta_bracket(laws, epsilon)[1], 1.0))

    def _on_lattice(self, ask: Callable[[lattice.Counted], T], otherwise: T) -> T:
        try:
            return ask([(pair.law, count) for pair, count in self._counts.items()])
        except ArithmeticError:
            return otherwise

    def _count(self) -> int:
        return sum(self._counts.values())

    def _at_infinity(self) -> float:
        return -math.expm1(math.fsum(n * math.log1p(-pair.law.at_infinity) for pair, n in self._counts.items()))

    def _gaussian(self) -> float | None:
        """The μ of a composition of Gaussians alone."""
        if not all(isinstance(pair, moments.GaussianPair) for pair in self._counts):
            return None
        return math.sqrt(math.fsum(n * pair.mu**2 for pair, n in self._counts.items())) * (1 + 2.0**-51)

    def _single(self, delta: float) -> float:
        law = self._log[0][0].law

        def excess(epsilon: float) -> float:
            value = float(single_delta(law, epsilon))
            return math.log(value / delta) if value > 0 else -math.inf

        if excess(0.0) <= 0:
            return 0.0
        high = 1.0
        while excess(high) > 0:
            high *= 2
            if high > 1e9:
                return math.inf
        return crossing(excess, 0.0, high)

    def _contour(self, delta: float) -> tuple[Inversion, float] | None:
        """The inversion that answers at δ and its ε, or nothing where its errors would be too large."""
        target = -math.log(delta)
        if not all(moments.is_analytic(pair) for pair in self._counts) or self._at_infinity() >= delta:
            return None
        level = self._best_level(lambda tilt, cumulant: _conversion(tilt, cumulant, target))
        start = _conversion(_tilt(level), self._cumulant(level), target)
        inversion = self._inversion(level, delta)
        if inversion is None:
            return None
        epsilon = contour.smallest_epsilon(inversion, delta, max(start, 0.0))
        if not epsilon < math.inf or inversion.upper(epsilon) - inversion.lower(epsilon) > _GATE * delta:
            return None
        return inversion, min(epsilon, start) if start > 0 else epsilon

    def _inversion(self, level: int, delta: float) -> Inversion | None:
        period = (_PERIOD - math.log(delta)) / _tilt(level)
        step = 2 * math.pi / period
        for count in _COUNTS:
            key = (level, step, count)
            line = self._lines.setdefault(key, _Line(_tilt(level), step, count))
            try:
                line.catch_up(self._log)
            except ArithmeticError:
                return None
            if line.decay <= _LEFT_OUT:
                others = [(_tilt(other), self._cumulant(other)) for other in range(level + 1, level + 5)]
                return line.inversion(others, self._at_infinity())
            del self._lines[key]
        return None

    def _best_level(self, objective: Callable[[float, float], float]) -> int:
        """The level at which the objective, a valley in the tilt, is least."""
        level = self._level
        value = objective(_tilt(level), self._cumulant(level))
        for direction in (1, -1):
            while level + direction in _LEVELS:
                there = objective(_tilt(level + direction), self._cumulant(level + direction))
                if not there < value:
                    break
                level, value = level + direction, there
        self._level = level
        return level

    def _cumulant(self, level: int) -> float:
        block = level // _BLOCK
        position, total = self._blocks.get(block, (0, np.zeros(_BLOCK)))
        if position < len(self._log):
            total = total + sum(count * _cumulants(pair, block) for pair, count in self._log[position:])
            self._blocks[block] = len(self._log), total
        return float(total[level - block * _BLOCK])


class _Line:
    """The sum of log-moments of a growing composition on one line."""

    def __init__(self, tilt: float, step: float, count: int) -> None:
        self._tilt, self._step, self._count = tilt, step, count
        self._moments = np.zeros(count, dtype=complex)
        self._error = 0.0
        self._position = 0
        self.decay = 0.0

    def copy(self) -> _Line:
        twin = _Line(self._tilt, self._step, self._count)
        twin._moments, twin._error = self._moments, self._error
        twin._position, twin.decay = self._position, self.decay
        return twin

    def catch_up(self, log: list[tuple[Pair, int]]) -> None:
        """Prove the decay first: where it cannot be proved the line is of no use and is not computed."""
        fresh = log[self._position :]
        steps = sum(count for _, count in log)
        for pair, count in fresh:
            if self.decay > 2 * _LEFT_OUT:
                self.decay += count * _decay(pair, self._tilt, self._step * (self._count - 1), 1.2 * _LEFT_OUT / steps)
        if self.decay > _LEFT_OUT:
            return
        for pair, count in fresh:
            values, error = _line(pair, self._tilt, self._step, self._count)
            self._moments = self._moments + count * values
            self._error += count * error
        self._position = len(log)

    def inversion(self, others: list[tuple[float, float]], at_infinity: float) -> Inversion:
        rounding = 2.0**-50 * (1 + float(np.abs(self._moments).max()))
        return Inversion(
            self._tilt, self._step, self._moments, self._error + rounding, self.decay, others, at_infinity
        )


def _tilt(level: int) -> float:
    return float(_RATIO**level)


def _conversion(tilt: float, cumulant: float, target: float) -> float:
    """ε from the cumulant at one tilt (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return (cumulant + target - math.log1p(tilt)) / tilt - math.log1p(1 / tilt)


@lru_cache(maxsize=20_000)
def _cumulants(pair: Pair, block: int) -> Array:
    try:
        return pair.cumulants(np.array([_tilt(level) for level in range(block * _BLOCK, (block + 1) * _BLOCK)]))
    except ArithmeticError:
        return np.full(_BLOCK, np.inf)


@lru_cache(maxsize=4096)
def _line(pair: moments.Analytic, tilt: float, step: float, count: int) -> moments.Line:
    return pair.line(tilt, step, count)


@lru_cache(maxsize=4096)
def _decay(pair: moments.Analytic, tilt: float, omega: float, enough: float) -> float:
    return pair.decay(tilt, omega, enough)
