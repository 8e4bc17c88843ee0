"""Exact answers that need no composition: the Gaussian mechanism, however often repeated.

k Gaussians of noise multipliers z_i are one Gaussian with μ² = Σ z_i⁻² (Dong, Roth and Su 2022), so the analytic
curve of Balle and Wang (2018) serves them all.

>>> round(gaussian_epsilon(1.0, 1e-5), 4)
4.3772
"""

from __future__ import annotations

import math

from scipy.special import log_ndtr, ndtri

from dpfed.accounting.search import find_crossing
from dpfed.errors import InfeasibleTarget

_ROUNDING = 2.0**-51


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the smallest δ at which N(μ, 1) against N(0, 1) is (ε, δ)-private, rounded up."""
    return min(1.0, _gaussian_delta(mu, epsilon, lean=1))


def gaussian_delta_lower(mu: float, epsilon: float) -> float:
    """Return the same δ as `gaussian_delta`, rounded down."""
    return max(0.0, _gaussian_delta(mu, epsilon, lean=-1))


def _gaussian_delta(mu: float, epsilon: float, lean: int) -> float:
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    if epsilon == 0:
        return math.erf(mu / math.sqrt(8)) * (1 + lean * 4 * _ROUNDING)
    place, reach = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    kept = float(log_ndtr(place))
    lost = epsilon + float(log_ndtr(-reach))
    ratio = math.exp(min(0.0, lost - kept))
    # Of the logs themselves, of the place of either normal tail, and of ε, which cancels in the second.
    rounding = 2 + abs(kept) + abs(lost) + reach * (1 + abs(place)) + ratio * (epsilon + reach * (1 + reach))
    return math.exp(kept) * (-math.expm1(min(0.0, lost - kept)) + lean * _ROUNDING * rounding)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε at which N(μ, 1) against N(0, 1) is (ε, δ)-private, rounded up; ∞ when δ is 0."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0:
        return math.inf
    target = math.log(delta)
    guess = _estimate_epsilon(mu, delta)
    if gaussian_delta(mu, 0.99 * guess) > delta >= gaussian_delta(mu, 1.01 * guess):
        low, high = 0.99 * guess, 1.01 * guess
    else:
        # Chernoff's bound on the loss N(μ²/2, μ²) is past the root.
        low, high = 0.0, (mu * mu / 2 + mu * math.sqrt(-2 * target)) * (1 + 1e-12)
    return find_crossing(lambda epsilon: _excess(gaussian_delta(mu, epsilon), delta, target), low, high)


def _excess(value: float, delta: float, target: float) -> float:
    """Return log(value/δ) with the sign of value − δ: the two logs may be rounded to the same number."""
    gap = _log(value) - target
    return max(gap, 5e-324) if value > delta else min(gap, 0.0)


def _estimate_epsilon(mu: float, delta: float) -> float:
    """Estimate the ε at δ: a place to start, never a result.

    δ = Φ(−t) − e^ε Φ(−t − μ) with t = ε/μ − μ/2, and for large t that is about Φ(−t)·μ/(t + μ).
    """
    tail = -float(ndtri(delta))
    for _ in range(2):
        tail = -float(ndtri(min(0.5, delta * (max(tail, 0.0) + mu) / mu)))
    return max(mu * (mu / 2 + tail), 0.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ at which N(μ, 1) against N(0, 1) is (ε, δ)-private, rounded down."""
    if delta <= 0:
        return 0.0
    target = math.log(delta)
    # √(2(ε + t)) − √(2t) with t = log 1/δ, written so that it does not cancel; at ε = 0 a μ of about δ is the scale.
    low = high = max(2 * epsilon / (math.sqrt(2 * (epsilon - target)) + math.sqrt(-2 * target)), delta)
    while gaussian_delta(low, epsilon) > delta:
        low /= 2
        if low < 1e-290:
            raise InfeasibleTarget(
                "delta",
                f"delta = {delta} at ε = {epsilon} is too small for double precision: ask for a larger delta or "
                "epsilon",
            )
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    inverse = find_crossing(lambda inverse: _log(gaussian_delta(1 / inverse, epsilon)) - target, 1 / high, 1 / low)
    return 1 / inverse if gaussian_delta(1 / inverse, epsilon) <= delta else math.nextafter(1 / inverse, 0.0)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
