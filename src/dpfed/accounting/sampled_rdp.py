"""RDP curves that are known at some orders only: interpolation, and sampling without replacement.

>>> float(between(np.array([3.0]), np.array([2.0, 4.0]), np.array([1.0, 2.0]))[0])
1.75
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from dpfed.accounting.laws import Array

Curve = Callable[[Array], Array]
Indices = NDArray[np.int64]


def between(orders: Array, known: Array, values: Array) -> Array:
    """Upper bounds at any orders from upper bounds at the known ones; ∞ above the largest.

    (α − 1)·D_α is convex in α and 0 at α = 1, so the chord between two known points is above it.
    """
    points = np.concatenate(([1.0], known))
    chords = np.concatenate(([0.0], (known - 1) * values))
    interpolated = np.interp(orders, points, chords, right=np.inf) / (orders - 1)
    return np.asarray(interpolated)


def without_replacement(inner: Sequence[tuple[tuple[Curve, ...], int]], share: float, shift: float = 0.0) -> Curve:
    """The curve of the inner events on a random subset of that share of the population, under replace-one.

    Privacy: Wang, Balle and Kasiviswanathan (2019), Theorem 9, at whole orders; chords in between. It needs the inner
    divergences under replace-one and nothing else. Where the inner event is one Gaussian of that shift (in standard
    deviations), |χ|^j-divergences are known too and tighten the terms (same paper, Theorem 27).
    """

    def at(orders: Array) -> Array:
        whole = np.arange(2, int(np.ceil(orders.max())) + 1)
        divergences = _total(inner, whole.astype(float))
        log_chi = _log_chi(shift, len(whole)) if shift else np.full(len(whole), np.inf)
        return between(orders, whole.astype(float), _whole_orders(whole, divergences, log_chi, share))

    return at


def _total(inner: Sequence[tuple[tuple[Curve, ...], int]], orders: Array) -> Array:
    """The inner composition's divergence, each direction summed apart."""
    directions = [sum(count * curves[side % len(curves)](orders) for curves, count in inner) for side in (0, 1)]
    return np.maximum(*cast(list[Array], directions))


def _whole_orders(orders: Indices, inner: Array, log_chi: Array, share: float) -> Array:
    j = np.arange(2, orders[-1] + 1)
    log_moments = np.minimum(np.log(2) + (j - 1) * inner, np.log(4) + log_chi)
    log_moments[0] = min(log_moments[0], _second(inner[0]))
    values = []
    for count, order in enumerate(orders, start=1):
        log_terms = _log_binomial(order, j[:count]) + j[:count] * np.log(share) + log_moments[:count]
        values.append(logsumexp(np.concatenate(([0.0], log_terms))) / (order - 1))
    # The unsampled curve is a bound too.
    return np.asarray(np.minimum(np.array(values), inner))


def _log_chi(shift: float, count: int) -> Array:
    """log of bounds on E_Q|P/Q − 1|^j for j = 2 … count + 1, Q = N(0, 1) and P = N(shift, 1).

    Even moments by the trapezoidal rule, which converges geometrically for this entire integrand; odd ones between
    their even neighbours by Cauchy and Schwarz.
    """
    even = np.arange(2, count + 3, 2)
    step = min(0.05, 0.05 / shift)
    reach = shift * even[-1] + 12.0
    x = np.arange(-reach, reach, step)
    t = shift * x - shift**2 / 2
    with np.errstate(divide="ignore"):
        log_excess = np.where(t > 30, t, np.log(np.abs(np.expm1(np.minimum(t, 30.0)))))
    log_density = -(x**2) / 2 + np.log(step / np.sqrt(2 * np.pi))
    known = np.array([logsumexp(log_density + power * log_excess) for power in even]) + 1e-9
    j = np.arange(2, count + 2)
    return np.asarray((known[j // 2 - 1] + known[-(-j // 2) - 1]) / 2)


def _second(divergence: float) -> float:
    """log min(4(e^{ε(2)} − 1), 2e^{ε(2)})."""
    with np.errstate(divide="ignore", over="ignore"):
        excess = np.log(np.expm1(divergence)) if divergence < 700 else divergence
        return float(min(np.log(4) + excess, np.log(2) + divergence))


def _log_binomial(n: int, k: Indices) -> Array:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
