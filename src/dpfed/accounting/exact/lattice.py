"""The rigorous path for any composition: losses on a lattice, composed by one tilted Fourier transform.

Upper bounds keep both masses of every cell by splitting them between the cell's ends, so that the lattice pair
dominates the true one. Lower bounds merge each cell into one outcome, which is post-processing, and round its loss
down. Tilting by e^{θL} puts the mass where δ is decided, so relative accuracy survives at δ = 1e-15; what the window,
the cut-off tails and rounding may hide is bounded and added (or taken off).

>>> from dpfed.accounting.exact.privacy_loss import ComplexArray, GaussianLaw
>>> low, high = epsilon_bracket([(GaussianLaw(0.1), 100)], 1e-5)
>>> low <= 4.3771780957 <= high
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import fft

from dpfed.accounting.exact.privacy_loss import Array, ComplexArray, DiscreteLaw, LaplaceLaw, Law, cumulants, split
from dpfed.accounting.search import find_crossing, find_first_passing, log_excess

Counted = Sequence[tuple[Law, int]]

_UNIT = 2.0**-53
_MOST_CELLS = 1 << 21
_MOST_LAW_CELLS = 1 << 19
_TILTS = np.concatenate(([0.0], np.geomspace(2.0**-12, 2.0**13, 101)))
# The relative error of ε that the cells may add; the share of δ that cut-off tails may take; the log of the tilted
# mass that may lie outside the window.
_RESOLUTION = 5e-7
_CUT = 1e-8
_OUTSIDE = -34.0
# A law of fewer cells than that is left where it lies.
_FINE = 16
# The share of the largest weight below which one is mostly rounding.
_SEEN = 1e-8
# How many lattices δ at ε may take, and the factor of δ that the shape of one does not notice.
_LATTICES, _NEAR = 4, 0.2
# The log of the cancellation that a lower tilt may cost.
_MOST_DIGITS = 8.0


class TooLarge(ArithmeticError):
    """Raised when a composition does not fit a lattice of at most two million cells."""


@dataclass(frozen=True)
class _Shape:
    """The lattice for a composition by coarse Chernoff bounds: the tilt that decides δ, the window and the width."""

    tilt: float
    low: float
    high: float
    width: float
    tail: float
    log_mass: float


@dataclass(frozen=True)
class _Cells:
    """P-masses at the losses offset + (first + k)·width, and the P-mass of infinite loss."""

    first: int
    masses: Array
    offset: float
    at_infinity: float

    def losses(self, width: float) -> Array:
        return self.offset + (self.first + np.arange(len(self.masses))) * width


_Cut = Callable[[Law, float, float, float], _Cells]


@dataclass(frozen=True)
class _Composed:
    """The composition, tilted: the P-mass of loss l is weights·exp(log_mass − θ·l)."""

    losses: Array
    weights: Array
    tilt: float
    log_mass: float
    at_infinity: float
    slack: float

    def finite_delta(self, epsilon: float) -> float:
        """Return Σ_{ε < l < ∞} (1 − e^{ε−l}) P(l), up to where e^{−θ(l−ε)} leaves nothing."""
        start, stop = np.searchsorted(self.losses, (epsilon, epsilon + 45 / self.tilt), side="right")
        gap = self.losses[start:stop] - epsilon
        terms = self.weights[start:stop] * np.exp(-self.tilt * gap) * -np.expm1(-gap)
        return float(terms.sum()) * self.scale(epsilon)

    def scale(self, epsilon: float) -> float:
        return math.exp(min(700.0, self.log_mass - self.tilt * epsilon))

    def upper(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε)."""
        return self.finite_delta(epsilon) + self.slack * self.scale(epsilon) + self.at_infinity

    def lower(self, epsilon: float) -> float:
        """Return a lower bound on δ(ε)."""
        return self.finite_delta(epsilon) - self.slack * self.scale(epsilon) + self.at_infinity


def epsilon_upper(counted: Counted, delta: float) -> float:
    """Return a certified upper bound on the ε of the composition at δ."""
    return _epsilon(_compose(counted, _shape(counted, delta), _round_up_onto_lattice).upper, delta)


def epsilon_bracket(counted: Counted, delta: float) -> tuple[float, float]:
    """Return certified lower and upper bounds on the ε of the composition at δ."""
    shape = _shape(counted, delta)
    upper = _epsilon(_compose(counted, shape, _round_up_onto_lattice).upper, delta)
    below = _compose(counted, shape, _round_down_onto_lattice).lower
    return largest_lower(below, delta, upper), upper


def delta_upper(counted: Counted, epsilon: float, known: float, enough: float = 0.0) -> float:
    """Return a certified upper bound on the δ of the composition at ε, where δ ≤ `known` is proved already.

    A lattice is shaped for the δ that it is to answer. One for a δ far too large is too coarse, so what it finds shapes
    the next one, until δ is near what was known or no more than `enough`; each of them is an upper bound.
    """
    for _ in range(_LATTICES):
        shape = _shape(counted, max(known, 1e-300))
        before, known = known, min(known, _compose(counted, shape, _round_up_onto_lattice).upper(epsilon))
        if known > before * _NEAR or known <= enough:
            break
    return known


def read_distribution(counted: Counted, delta: float) -> tuple[Array, Array, float]:
    """Return the composed losses, how likely each is under P, and the mass at infinity: rounded up, for looking at.

    The tilt is mild, one over the spread of the loss, so that the bulk is seen; far tails are lost in rounding.
    """
    shape = _shape(counted, delta)
    total = _total_cumulants(counted, shape.tail)
    spread = math.sqrt(max(2 * float(total[1] - total[0]) / float(_TILTS[1]), 1e-12))
    best = int(np.argmin(np.abs(_TILTS[1:-1] - 1 / spread))) + 1
    raised = total if shape.width == _common_unit(counted) else total + _bound_rise(shape.width, len(counted))
    low, high = _window(raised, best)
    mild = replace(shape, tilt=float(_TILTS[best]), low=low, high=high, log_mass=float(raised[best]) + 1.0)
    found = _compose(counted, mild, _round_up_onto_lattice)
    seen = found.weights > _SEEN * found.weights.max()
    losses = found.losses[seen]
    return losses, found.weights[seen] * np.exp(found.log_mass - found.tilt * losses), found.at_infinity


def compose_law(counted: Counted, tail: float) -> DiscreteLaw:
    """Return a law that dominates the whole composition, by direct convolution; for releases that share one draw."""
    reach = max(max(map(abs, law.span(tail))) for law, _ in counted)
    width = reach / 1000 or 1.0
    losses, masses, missing = np.zeros(1), np.ones(1), 0.0
    for law, count in counted:
        part = _round_up_onto_lattice(law, width, tail, 0.0)
        for _ in range(count):
            masses = np.convolve(masses, part.masses)
            missing += part.at_infinity
        losses = np.arange(len(masses)) * width + (losses[0] + count * part.first * width)
    return DiscreteLaw(losses, masses, min(1.0, missing))


def _shape(counted: Counted, delta: float) -> _Shape:
    steps = sum(count for _, count in counted)
    tail = _CUT * delta / steps
    total = _total_cumulants(counted, tail)
    target = -math.log(delta)
    positive = _TILTS[1:]
    # The tighter conversion of Canonne, Kamath and Steinke (2020) gives ε and the tilt θ = α − 1 that decides it.
    conversions = (total[1:] + target - np.log1p(positive)) / positive - np.log1p(1 / positive)
    best = int(np.argmin(conversions[:-1])) + 1
    epsilon = max(float(conversions[best - 1]), 1e-3)
    best = _find_narrowest(total, best, epsilon, target)
    tilt = float(_TILTS[best])
    width = math.sqrt(8 * _RESOLUTION * epsilon / ((tilt + 1) * steps))
    unit = _common_unit(counted)
    # No law is cut into more than a million cells, however far its tail reaches.
    span = max(high - low for low, high in (law.span(tail) for law, _ in counted))
    width = unit or _align(counted, max(width, span / _MOST_LAW_CELLS))
    for _ in range(30):
        # On its own unit a discrete law is not spread at all.
        raised = total if width == unit else total + _bound_rise(width, steps)
        if not raised[best] < math.inf:
            break
        low, high = _window(raised, best)
        if high - low <= (_MOST_CELLS - 8) * width:
            return _Shape(tilt, low, high, width, tail, float(raised[best]))
        width *= 2
    raise TooLarge("no lattice of that size holds this composition")


def _find_narrowest(total: Array, best: int, epsilon: float, target: float) -> int:
    """Return the tilt up to the best one with the narrowest window: heavy tails are worth the loss of some digits."""
    choices = [i for i in range(best, max(best - 24, 0), -2) if total[i] - _TILTS[i] * epsilon + target <= _MOST_DIGITS]
    windows = {i: _window(total, i) for i in choices}
    return min(windows, key=lambda i: windows[i][1] - windows[i][0], default=best)


def _bound_rise(width: float, steps: int) -> Array:
    """Return how much a lattice of that width may raise the cumulants: θ(θ+1)h²/8 a step, doubled for higher orders."""
    fine = (_TILTS + 1) * width < 0.5
    return np.where(fine, steps * _TILTS * (_TILTS + 1) * width**2 / 4, np.inf)


def _total_cumulants(counted: Counted, tail: float) -> Array:
    parts = [count * cumulants(law, _TILTS, tail) for law, count in counted]
    return np.asarray(np.sum(parts, axis=0))


def _window(total: Array, best: int) -> tuple[float, float]:
    """Return the losses outside of which the tilted composition has no mass to speak of (Chernoff from both sides)."""
    tilt, log_mass = _TILTS[best], total[best]
    above, below = slice(best + 1, None), slice(0, best)
    total = np.where(np.isfinite(total), total, 1e300)
    high = float(np.min((total[above] - log_mass - _OUTSIDE) / (_TILTS[above] - tilt)))
    low = float(np.max((log_mass - total[below] + _OUTSIDE) / (tilt - _TILTS[below])))
    return low, high


def _common_unit(counted: Counted) -> float:
    """Return the lattice width on which every law lies exactly, or 0."""
    units = {law.unit if isinstance(law, DiscreteLaw) else 0.0 for law, _ in counted}
    return units.pop() if len(units) == 1 else 0.0


def _align(counted: Counted, width: float) -> float:
    """Return about that width, such that the largest loss of the law with most steps is a lattice point.

    Only for laws that state this loss: one of sampling computes it, and may have rounded it beyond the last point.
    """
    stated = [(count, law.maximum) for law, count in counted if isinstance(law, DiscreteLaw | LaplaceLaw)]
    _, top = max(stated, default=(0, 0.0))
    # A hair above, so that the last point is not rounded below the loss.
    return top / math.ceil(top / width) * (1 + 2.0**-48) if top > _FINE * width else width


def _compose(counted: Counted, shape: _Shape, cut: _Cut) -> _Composed:
    width, tilt = shape.width, shape.tilt
    parts = [(cut(law, width, shape.tail, tilt), count) for law, count in counted]
    tilted = [(part, *_tilt_cells(part, width, tilt), count) for part, count in parts]
    offset = math.fsum(count * part.offset for part, count in parts)
    first = math.floor((shape.low - offset) / width) - 2
    size = fft.next_fast_len(int((shape.high - shape.low) / width) + 6, real=True)
    log_mass = math.fsum(count * log for _, _, log, count in tilted)
    if log_mass > shape.log_mass + 1e-9 * (1 + abs(shape.log_mass)):
        raise ArithmeticError("the lattice holds more mass than its Chernoff bound allows; please report this")
    spectrum, active = _spectrum(tilted, size, first)
    steps = sum(count for _, count in parts)
    # Rounding: a spectrum that is off by ε_f puts at most ε_f·count·√active into any sum over the window.
    rounding = 8 * _UNIT * math.log2(size) * (steps * math.sqrt(active) + math.sqrt(size))
    log_finite = math.fsum(count * math.log1p(-part.at_infinity) for part, count in parts)
    return _Composed(
        losses=offset + (first + np.arange(size)) * width,
        weights=fft.irfft(spectrum, size),
        tilt=tilt,
        log_mass=log_mass,
        at_infinity=-math.expm1(log_finite),
        # The window is measured against the Chernoff bound, the mass against itself.
        slack=rounding + 5 * math.exp(min(700.0, _OUTSIDE + shape.log_mass - log_mass)),
    )


def _spectrum(tilted: Sequence[tuple[_Cells, Array, float, int]], size: int, first: int) -> tuple[ComplexArray, int]:
    whole = np.ones(size // 2 + 1, dtype=complex)
    shift = -first
    for part, weights, _, count in tilted:
        folded = np.zeros(-(-len(weights) // size) * size)
        folded[: len(weights)] = weights
        whole *= fft.rfft(folded.reshape(-1, size).sum(axis=0), size) ** count
        shift += part.first * count
    turns = np.arange(len(whole)) * (shift % size) % size
    active = int(np.count_nonzero(np.abs(whole) > _UNIT)) + 1
    return whole * np.exp(-2j * np.pi * turns / size), active


def _tilt_cells(part: _Cells, width: float, tilt: float) -> tuple[Array, float]:
    """Return the cell masses times e^{θ·loss} as a probability, and the log of their sum."""
    with np.errstate(divide="ignore"):
        logs = np.log(part.masses) + tilt * part.losses(width)
    peak = float(logs.max())
    weights = np.exp(logs - peak)
    mass = float(weights.sum())
    return weights / mass, peak + math.log(mass)


def _round_up_onto_lattice(law: Law, width: float, tail: float, _tilt: float) -> _Cells:
    """Return the law on the lattice, never more private than it is."""
    points, top = _points(law, width, tail)
    points, masses = split(law, points, top)
    (above,), _ = law.masses(np.array([min(points[-1], top), np.inf]))
    return _Cells(round(points[0] / width), masses, 0.0, float(above))


def _round_down_onto_lattice(law: Law, width: float, tail: float, tilt: float) -> _Cells:
    """Return the law with its cells merged and their losses rounded down onto a shifted lattice, never less private."""
    points, top = _points(law, width, tail)
    p, q = law.masses(np.minimum(np.append(points, points[-1] + width) - width / 2, top))
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where(p > 0, np.log(p) - np.log(np.maximum(q, 1e-320)), 0.0) - points
    # Differences of cumulative masses carry a relative rounding of about one over the width.
    excess = np.clip(excess - 2.0**-49 / width, -width / 2, width / 2)
    offset = _best_offset(excess, p * np.exp(tilt * (points - points[-1])), width)
    masses = np.zeros(len(points) + 1)
    masses[1:] += np.where(excess >= offset, p, 0.0)
    masses[:-1] += np.where(excess >= offset, 0.0, p)
    return _Cells(round(points[0] / width) - 1, masses, offset, law.at_infinity)


def _points(law: Law, width: float, tail: float) -> tuple[Array, float]:
    """Return the lattice points over the law's span, and the loss above which mass is cut off."""
    low, high = law.span(tail)
    # On its own unit the quotient is whole but for rounding.
    last = round(high / width) if width == _common_unit([(law, 1)]) else math.ceil(high / width)
    first = min(math.floor(low / width), last - 1)
    return np.arange(first, last + 1) * width, high if law.maximum == math.inf else math.inf


def _best_offset(excess: Array, weights: Array, width: float) -> float:
    """Return the lattice shift that loses least: outcomes below it fall by one whole cell."""
    order = np.argsort(excess)
    before = np.concatenate(([0.0], np.cumsum(weights[order])[:-1]))
    return float(excess[order][np.argmax(excess[order] - width * before / max(weights.sum(), 1e-300))])


def largest_lower(bound: Callable[[float], float], delta: float, upper: float) -> float:
    """Return the largest ε found at which the lower bound is still above δ; 0 where there is none."""
    share = 1e-9
    while share < 1:
        epsilon = upper * (1 - share)
        if bound(epsilon) > delta:
            return _narrow(bound, delta, epsilon, min(upper, upper * (1 - share / 8)))
        share *= 8
    return 0.0


def _narrow(bound: Callable[[float], float], delta: float, low: float, high: float) -> float:
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > delta else (low, middle)
    return low


def _epsilon(bound: Callable[[float], float], delta: float) -> float:
    """Return the smallest ε at which the falling bound is at most δ."""

    def excess(epsilon: float) -> float:
        return log_excess(bound(epsilon), delta)

    high = find_first_passing(excess)
    return high if high in (0.0, math.inf) else find_crossing(excess, 0.0, high, tolerance=1e-12)
