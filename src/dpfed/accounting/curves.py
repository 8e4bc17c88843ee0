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

from dpfed.accounting.exact.privacy_loss import Array

Curve = Callable[[Array], Array]
Indices = NDArray[np.int64]

_STEP = 0.05
_REACH = 10.0
_MARGIN = 1e-9


def between(orders: Array, known: Array, values: Array) -> Array:
    """Return upper bounds at any orders from upper bounds at the known ones; ∞ above the largest.

    (α − 1)·D_α is convex in α and 0 at α = 1, so the chord between two known points is above it.
    """
    points = np.concatenate(([1.0], known))
    chords = np.concatenate(([0.0], (known - 1) * values))
    interpolated = np.interp(orders, points, chords, right=np.inf) / (orders - 1)
    return np.asarray(interpolated)


def without_replacement(inner: Sequence[tuple[tuple[Curve, ...], int]], share: float, shift: float = 0.0) -> Curve:
    """Return the curve of the inner events on a random subset of that share of the population, under replace-one.

    Privacy: Wang, Balle and Kasiviswanathan (2019), Theorem 9, at whole orders; chords in between. It needs the inner
    divergences under replace-one and nothing else. Where the inner event is one Gaussian of that shift (in standard
    deviations), |χ|^j-divergences are known too and tighten the terms (same paper, Theorem 27).
    """

    def at(orders: Array) -> Array:
        j = np.arange(2, max(int(np.ceil(orders.max())), 2) + 1)
        divergences = _total(inner, j.astype(float))
        log_chi = _log_chi(shift, len(j)) if shift else np.full(len(j), np.inf)
        # A chord ends at the whole orders beside the one that is asked.
        whole = np.unique(np.concatenate((np.floor(orders), np.ceil(orders)))).clip(min=2).astype(int)
        return between(orders, whole.astype(float), _whole_orders(whole, divergences, log_chi, share))

    return at


def _total(inner: Sequence[tuple[tuple[Curve, ...], int]], orders: Array) -> Array:
    """Return the inner composition's divergence, each direction summed apart."""
    directions = [sum(count * curves[side % len(curves)](orders) for curves, count in inner) for side in (0, 1)]
    return np.maximum(*cast(list[Array], directions))


def _whole_orders(orders: Indices, inner: Array, log_chi: Array, share: float) -> Array:
    """Return the theorem's bound at whole orders; inner divergences and |χ|-moments are those for j = 2, 3, …"""
    j = np.arange(2, len(inner) + 2)
    log_moments = np.minimum(np.log(2) + (j - 1) * inner, np.log(4) + log_chi)
    log_moments[0] = min(log_moments[0], _second(inner[0]))
    is_term = j <= orders[:, None]
    log_terms = np.where(is_term, _log_binomials(orders, j) + (j * np.log(share) + log_moments), -np.inf)
    values = np.logaddexp(0.0, logsumexp(log_terms, axis=1)) / (orders - 1)
    # The unsampled curve is a bound too.
    return np.asarray(np.minimum(values, inner[orders - 2]))


def _log_chi(shift: float, count: int) -> Array:
    """Return the log of bounds on E_Q|P/Q − 1|^j for j = 2 … count + 1, Q = N(0, 1) and P = N(shift, 1).

    Even moments by the trapezoidal rule; odd ones between their even neighbours by Cauchy and Schwarz.
    """
    even = np.arange(2, count + 3, 2)
    known = _log_even_chi(shift, even)
    known = known + _MARGIN * (1 + np.abs(known) * 2.0**-20)
    j = np.arange(2, count + 2)
    return np.asarray((known[j // 2 - 1] + known[-(-j // 2) - 1]) / 2)


def _log_even_chi(shift: float, powers: Indices) -> Array:
    """Return the log of E_Q(P/Q − 1)^j for even j by the trapezoidal rule.

    The integrand is a sum of Gaussians of variance 1, each of which the rule adds up to one part in exp(2π²/step²).
    On each side of its zero at shift/2 it is log-concave with a curvature of at least 1, so beyond `_REACH` of its peak
    lies less than a Gaussian has there: only the points around the two peaks are looked at.
    """
    zero = shift / 2
    steps = np.arange(-_REACH / _STEP, _REACH / _STEP + 1)
    sums = []
    for side, peaks in enumerate(_find_peaks(shift, powers.astype(float))):
        x = _STEP * (np.round(peaks / _STEP)[:, None] + steps)
        t = shift * (x - zero)
        with np.errstate(divide="ignore"):
            log_excess = np.where(t > 30, t, np.log(np.abs(np.expm1(np.minimum(t, 30.0)))))
        log_values = powers[:, None] * log_excess - x**2 / 2
        sums.append(logsumexp(np.where((x >= zero) == bool(side), log_values, -np.inf), axis=1))
    return np.asarray(np.logaddexp(*sums) + np.log(_STEP / np.sqrt(2 * np.pi)))


def _find_peaks(shift: float, powers: Array) -> tuple[Array, Array]:
    """Return where the integrand of each moment is largest, left and right of its zero: x = j·shift/(1 − e^{−t})."""

    def slope(x: Array) -> Array:
        return np.asarray(powers * shift + x * np.expm1(-shift * (x - shift / 2)))

    root = np.sqrt(powers)
    left = _find_crossings(lambda x: -slope(x), -root, np.zeros_like(root))
    return left, _find_crossings(slope, np.maximum(powers * shift, shift / 2), powers * shift + root + shift)


def _find_crossings(falling: Curve, low: Array, high: Array) -> Array:
    """Find by halving where each function falls through zero between its ends; a rough answer is enough."""
    for _ in range(60):
        middle = (low + high) / 2
        is_before = falling(middle) > 0
        low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
    return low


def _second(divergence: float) -> float:
    """Return log min(4(e^{ε(2)} − 1), 2e^{ε(2)})."""
    with np.errstate(divide="ignore", over="ignore"):
        excess = np.log(np.expm1(divergence)) if divergence < 700 else divergence
        return float(min(np.log(4) + excess, np.log(2) + divergence))


def _log_binomials(n: Indices, k: Indices) -> Array:
    """Return the log of n over k for every n and k; meaningless where k is larger."""
    log_factorials = gammaln(np.arange(max(n[-1], k[-1]) + 2) + 1.0)
    return np.asarray(log_factorials[n][:, None] - log_factorials[k] - log_factorials[np.abs(n[:, None] - k)])
