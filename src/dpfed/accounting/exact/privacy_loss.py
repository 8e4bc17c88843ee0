"""How the privacy loss L = log P/Q is distributed: the mass of P and of Q in any interval of losses.

A law is one ordered pair (P, Q). It is all the rigorous path needs: the lattice cuts it into cells, and a single
release is read off directly, δ(ε) = P[L > ε] − e^ε Q[L > ε].

>>> round(delta(GaussianLaw(1.0), 1.0), 6)
0.126937
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.floating[Any]]
ComplexArray = NDArray[np.complexfloating[Any, Any]]


class Law(Protocol):
    """An ordered pair (P, Q), described by the law of its loss; edges may be infinite, cells are (low, high]."""

    @property
    def maximum(self) -> float:
        """The supremum of the finite losses."""

    @property
    def at_infinity(self) -> float:
        """The P-mass that Q does not have."""

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return the P-mass and the Q-mass of each cell between neighbouring edges."""

    def span(self, tail: float) -> tuple[float, float]:
        """Return finite losses between which P has all its finite-loss mass but at most `tail` at each end."""


def delta(law: Law, epsilon: float) -> float:
    """Return the δ of a single release at ε, rounded up."""
    (p,), (q,) = law.masses(np.array([epsilon, np.inf]))
    excess = p - math.exp(min(epsilon, 700.0)) * q
    return float(max(0.0, excess) + 2.0**-50 * p)


def delta_lower(law: Law, epsilon: float) -> float:
    """Return the δ of a single release at ε, rounded down; masses below 1e-307 have lost their digits."""
    (p,), (q,) = law.masses(np.array([epsilon, np.inf]))
    return float(p * (1 - 2.0**-40) - math.exp(min(epsilon, 700.0)) * (q * (1 + 2.0**-50) + 1e-307))


@dataclass(frozen=True)
class GaussianLaw:
    """N(μ, 1) against N(0, 1)."""

    mu: float
    at_infinity: ClassVar[float] = 0.0

    @property
    def maximum(self) -> float:
        """∞: a Gaussian loss is unbounded."""
        return math.inf

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return the masses between the outputs x with loss μx − μ²/2."""
        x = edges / self.mu + self.mu / 2
        return _normal_cells(x - self.mu), _normal_cells(x)

    def span(self, tail: float) -> tuple[float, float]:
        """Return the losses at the tail quantiles of N(μ, 1)."""
        reach = -float(ndtri(tail))
        return self.mu * (self.mu / 2 - reach), self.mu * (self.mu / 2 + reach)


@dataclass(frozen=True)
class LaplaceLaw:
    """Laplace noise of scale 1 shifted by `shift`: losses from −shift to shift, with atoms at both ends."""

    shift: float
    at_infinity: ClassVar[float] = 0.0

    @property
    def maximum(self) -> float:
        """The shift itself."""
        return self.shift

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return differences of P[L ≤ l] = ½ e^{(l − a)/2} and Q[L > l] = ½ e^{−(l + a)/2}, plus the atoms at ±a."""
        a = self.shift
        inner = np.clip(edges, -a, a)
        low, high = inner[:-1], inner[1:]
        p = 0.5 * np.exp((low - a) / 2) * np.expm1((high - low) / 2)
        q = -0.5 * np.exp(-(low + a) / 2) * np.expm1((low - high) / 2)
        for loss, mass in ((a, 0.5), (-a, 0.5 * math.exp(-a))):
            here = _holds(edges, loss)
            p = p + np.where(here, mass, 0.0)
            q = q + np.where(here, mass * math.exp(-loss), 0.0)
        return p, q

    def span(self, tail: float) -> tuple[float, float]:
        """Return the whole support."""
        return -self.shift, self.shift


@dataclass(frozen=True, eq=False)
class DiscreteLaw:
    """Finitely many losses with their P-masses, all multiples of `unit` where there is one, and mass at infinity."""

    losses: Array
    probabilities: Array
    at_infinity: float = 0.0
    unit: float = 0.0

    @property
    def maximum(self) -> float:
        """The largest loss."""
        return float(self.losses.max())

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Gather the atoms into cells."""
        p, q = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
        cell = np.searchsorted(edges, self.losses, side="left") - 1
        inside = (cell >= 0) & (cell < len(p))
        np.add.at(p, cell[inside], self.probabilities[inside])
        np.add.at(q, cell[inside], (self.probabilities * np.exp(-self.losses))[inside])
        p[(edges[1:] == np.inf) & (edges[:-1] < np.inf)] += self.at_infinity
        return p, q

    def span(self, tail: float) -> tuple[float, float]:
        """Return the whole support."""
        return float(self.losses.min()), float(self.losses.max())


@dataclass(frozen=True)
class PresentLaw:
    """(1 − q)·Q + q·P against Q: the sampled unit is there to be removed (Zhu, Dong and Wang 2022, Theorem 11)."""

    inner: Law
    rate: float

    @property
    def maximum(self) -> float:
        """The image of the inner maximum."""
        return _mix(self.inner.maximum, self.rate)

    @property
    def at_infinity(self) -> float:
        """The sampled share of the inner mass at infinity."""
        return self.rate * self.inner.at_infinity

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return the inner masses between the inner losses of the edges, and what only Q has at the lowest loss."""
        p, q = self.inner.masses(_unmix(edges, self.rate))
        q = q + np.where(_holds(edges, math.log1p(-self.rate)), self._only_absent, 0.0)
        return (1 - self.rate) * q + self.rate * p, q

    @cached_property
    def _only_absent(self) -> float:
        """The inner Q-mass that P does not have: the mixture has its share of it, at the lowest loss."""
        _, (total,) = self.inner.masses(np.array([-np.inf, np.inf]))
        return max(0.0, 1 - float(total))

    def span(self, tail: float) -> tuple[float, float]:
        """Return the span from the mixture's lowest loss to the image of the inner span."""
        return math.log1p(-self.rate), _mix(self.inner.span(min(tail, 0.4))[1], self.rate)


@dataclass(frozen=True)
class AbsentLaw:
    """P against (1 − q)·P + q·Q: the sampled unit is not there and is added (Zhu, Dong and Wang 2022, Theorem 11)."""

    inner: Law
    rate: float
    at_infinity: ClassVar[float] = 0.0

    @property
    def maximum(self) -> float:
        """At most −log(1 − q): the other side always keeps a share 1 − q of this one."""
        return -_mix(-math.inf if self.inner.at_infinity else -self.inner.maximum, self.rate)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return the inner masses between the inner losses of the edges."""
        p, q = self.inner.masses(-_unmix(-edges, self.rate))
        return p, (1 - self.rate) * p + self.rate * q

    def span(self, tail: float) -> tuple[float, float]:
        """Return the span from the image of the inner span to the mixture's highest loss."""
        return -_mix(-self.inner.span(tail)[0], self.rate), -math.log1p(-self.rate)


@dataclass(frozen=True)
class ReplacedGaussianLaw:
    """(1 − q)N(0, σ²) + qN(1, σ²) against (1 − q)N(0, σ²) + qN(−1, σ²): a sampled record is replaced.

    Privacy: this pair dominates the Poisson-sampled Gaussian in every dimension under replace-one. By Balle, Barthe
    and Gaboardi (2018) the mixture's divergence is that of N(u) from a mixture of N(0) and N(v), ‖u‖, ‖v‖ ≤ 1. A set
    of given N(u)-mass has at least the N(0)- and N(v)-mass of a half-space at distances 1 and 2 (Neyman and Pearson),
    and for u = 1, v = −1 one half-space attains both. The pair is its own mirror image, so it composes soundly.
    """

    sigma: float
    rate: float
    at_infinity: ClassVar[float] = 0.0

    @property
    def maximum(self) -> float:
        """∞: a Gaussian loss is unbounded."""
        return math.inf

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Return the masses between the outputs x at which the loss is an edge."""
        x = self._output(edges) / self.sigma
        absent, present, swapped = (
            _normal_cells(x),
            _normal_cells(x - 1 / self.sigma),
            _normal_cells(x + 1 / self.sigma),
        )
        return (1 - self.rate) * absent + self.rate * present, (1 - self.rate) * absent + self.rate * swapped

    def span(self, tail: float) -> tuple[float, float]:
        """Return the losses at the tail quantiles of the outer components."""
        reach = 1 - self.sigma * float(ndtri(tail))
        return -self._loss(reach), self._loss(reach)

    def _output(self, loss: Array) -> Array:
        # log A/B of e^l = (A + B e^y)/(A + B e^−y), y = x/σ²; then y = l/2 + asinh(A/B · sinh(l/2)).
        log_ratio = math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.sigma**2
        half = np.abs(loss) / 2
        with np.errstate(over="ignore", divide="ignore"):
            log_sinh = np.where(half > 20, half - math.log(2), np.log(np.sinh(np.minimum(half, 20.0))))
            log_value = log_ratio + log_sinh
            bend = np.where(log_value > 20, log_value + math.log(2), np.arcsinh(np.exp(np.minimum(log_value, 20.0))))
        return np.sign(loss) * self.sigma**2 * (half + bend)

    def _loss(self, x: float) -> float:
        up, down = (2 * x - 1) / (2 * self.sigma**2), (-2 * x - 1) / (2 * self.sigma**2)
        return _mix(up, self.rate) - _mix(down, self.rate)


def cumulants(law: Law, tilts: Array, tail: float) -> Array:
    """Bound log E_P[e^{θL}; L < ∞] from above at each tilt θ ≥ 0, apart from the P-mass `tail` beyond the law's span.

    The law is cut into cells that widen with the loss, and each cell's masses are split between its ends; the chord is
    above the power, so the sum is too.
    """
    points, masses = split(law, _graded_points(*law.span(tail), 1500))
    (beyond,), _ = law.masses(np.array([points[-1], np.inf]))
    if beyond - law.at_infinity > 4 * tail + 2.0**-50:
        raise ArithmeticError(f"{law} has mass {beyond} above its span; please report this")
    keep = masses > 0
    logs, turns = np.log(masses[keep]), np.multiply.outer(tilts, points[keep])
    # Near order 1 a cumulant is hardly more than its rounding, which is counted in every term.
    exponents = logs + turns + 2.0**-51 * (16 + np.abs(logs) + np.abs(turns))
    peaks = exponents.max(axis=1)
    return np.asarray(peaks + np.log(np.exp(exponents - peaks[:, None]).sum(axis=1)))


def split(law: Law, points: Array, top: float = math.inf) -> tuple[Array, Array]:
    """Split the law onto the points, as a pair that dominates it but for its mass above the last point or top.

    Each cell's P- and Q-mass are kept exactly by dividing them between the cell's ends ("connect the dots",
    Doroshenko et al. 2022); mass below the first point is lifted onto it.
    """
    p, q = law.masses(np.concatenate(([-np.inf], np.minimum(points, top))))
    below, p, q = p[0], p[1:], q[1:]
    with np.errstate(over="ignore"):
        widths = -np.expm1(points[:-1] - points[1:])
        up = (p - q * np.exp(np.minimum(points[:-1], 700.0))) / widths
    # Differences of cumulative masses carry rounding; leaning upwards by as much keeps the pair dominating.
    reached = below + np.cumsum(p)
    rounding = 2.0**-51 * (p + np.minimum(reached, np.abs(1 - reached))) / widths
    up = np.clip(up + rounding, 0.0, p)
    masses = np.zeros(len(points))
    masses[:-1] += p - up
    masses[1:] += up
    masses[0] += below
    return points, masses


def _graded_points(low: float, high: float, cells: int) -> Array:
    """Return points from low to high whose spacing grows with the distance from zero."""
    scale = 1e-5 * max(abs(low), abs(high), 1e-12)
    start, end = math.asinh(low / scale), math.asinh(high / scale)
    points: Array = scale * np.sinh(np.linspace(start, end, cells + 1))
    # A hair outside, so that an atom at the very end is inside after rounding; no two alike where low is about high.
    hair = 1e-9 * max(abs(low), abs(high), 1e-12)
    return np.unique(np.concatenate(([low - hair], points[1:-1], [high + hair])))


def _holds(edges: Array, loss: float) -> NDArray[np.bool_]:
    """Return which of the cells holds the loss."""
    return (edges[:-1] < loss) & (loss <= edges[1:])


def _normal_cells(x: Array) -> Array:
    """Return Φ(b) − Φ(a) of neighbouring points, reflected to the side where it keeps its relative accuracy."""
    low, high = x[:-1], x[1:]
    flip = low > 0
    return np.asarray(ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low)))


def _mix(loss: float, rate: float) -> float:
    """Return log(1 − q + q e^l)."""
    if loss > 500:
        return loss + math.log(rate)
    return math.log1p(rate * math.expm1(loss)) if loss > -math.inf or rate < 1 else -math.inf


def _unmix(loss: Array, rate: float) -> Array:
    """Return the l with log(1 − q + q e^l) = loss; −∞ where there is none."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inner = np.log(np.maximum(np.expm1(np.minimum(loss, 500.0)) + rate, 0.0)) - math.log(rate)
    return np.where(loss > 500, loss - math.log(rate), inner)
