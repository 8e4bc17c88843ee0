"""What one notion of privacy promises in the words of another, always on the safe side.

Each function states its theorem. No arrow back is missing by oversight: (ε, δ)-DP with δ > 0 implies no RDP,
RDP at some orders implies no zCDP, and the central-limit reading of a composition as one Gaussian is never a
bound.

>>> round(zcdp_to_epsilon(rho=0.5, delta=1e-6), 4)
5.2215
>>> pure_to_zcdp(epsilon=1.0)
0.5
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.accounting.search import find_crossing
from dpfed.errors import InvalidArgument
from dpfed.rounding import round_up

_ROUNDING = 2.0**-50


def pure_to_zcdp(epsilon: float) -> float:
    """Return the ρ of any ε-DP release: ε²/2 (Bun and Steinke 2016, Proposition 1.4)."""
    return round_up(Fraction(checks.non_negative(epsilon=epsilon)) ** 2 / 2)


def bounded_range_to_zcdp(epsilon: float) -> float:
    """Return the ρ of a release of ε-bounded range, as the exponential mechanism: ε²/8 (Cesar and Rogers 2021)."""
    return round_up(Fraction(checks.non_negative(epsilon=epsilon)) ** 2 / 8)


def gaussian_to_zcdp(mu: float) -> float:
    """Return the ρ of Gaussian noise with μ = sensitivity/σ: μ²/2 (Bun and Steinke 2016, Proposition 1.6)."""
    return round_up(Fraction(checks.non_negative(mu=mu)) ** 2 / 2)


def gaussian_to_epsilon(mu: float, delta: float) -> float:
    """Return the exact ε of Gaussian noise with μ = sensitivity/σ (Balle and Wang 2018, Theorem 8)."""
    return gaussian_epsilon(checks.non_negative(mu=mu), checks.probability(delta=delta))


def zcdp_to_rdp(rho: float, orders: ArrayLike) -> NDArray[np.float64]:
    """Return the RDP of a ρ-zCDP release at each order: ρα, which is the definition."""
    return checks.non_negative(rho=rho) * _above_one(orders) * (1 + _ROUNDING)


def rdp_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Return the ε of RDP `divergence` at one order (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    order = float(_above_one(order))
    divergence, delta = checks.non_negative(divergence=divergence), checks.probability(delta=delta)
    if delta == 0:
        return math.inf
    shift = _shift(order, delta)
    return max(0.0, divergence - shift + _ROUNDING * (divergence + abs(shift)))


def rdp_allowance(order: float, epsilon: float, delta: float) -> float:
    """Return the largest RDP at one order that is (ε, δ)-DP, rounded down: the inverse of `rdp_to_epsilon`.

    Negative where no release at all is shown to be (ε, δ)-DP by this order.
    """
    order = float(_above_one(order))
    epsilon, delta = checks.non_negative(epsilon=epsilon), checks.positive_probability(delta=delta)
    shift = _shift(order, delta)
    return epsilon + shift - 4 * _ROUNDING * (epsilon + abs(shift))


def zcdp_to_epsilon(rho: float, delta: float) -> float:
    """Return the smallest ε that ρ-zCDP promises through RDP, over all real orders.

    Tighter than the well-known ρ + 2√(ρ log 1/δ): 5.2215 and not 5.757 for ρ = ½ and δ = 10⁻⁶.
    """
    rho, delta = checks.non_negative(rho=rho), checks.probability(delta=delta)
    if rho == 0:
        return 0.0
    if delta == 0:
        return math.inf
    order = best_order(rho, delta)
    return rdp_to_epsilon(order, round_up(Fraction(rho) * Fraction(order)), delta)


def epsilon_to_zcdp_cap(epsilon: float, delta: float) -> float:
    """Return the largest ρ, up to rounding, whose `zcdp_to_epsilon` is at most ε: a budget in the words of zCDP."""
    epsilon, delta = checks.positive(epsilon=epsilon), checks.positive_probability(delta=delta)
    low, high = 0.0, epsilon
    while zcdp_to_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if zcdp_to_epsilon(middle, delta) <= epsilon else (low, middle)
    return low


def best_order(rho: float, delta: float) -> float:
    """Return the order at which ρ-zCDP converts best: the root of ρ(α − 1)² + log α = log 1/δ, up to rounding.

    That is about 1 + √(log(1/δ)/ρ). Any order gives a valid ε, so the root need not be certain.
    """
    target = -math.log(checks.positive_probability(delta=delta))
    high = math.sqrt(target / checks.positive(rho=rho)) * (1 + _ROUNDING)
    return 1 + max(find_crossing(lambda above: target - rho * above**2 - math.log1p(above), 0.0, high), 1e-12)


def _shift(order: float, delta: float) -> float:
    """Return what the conversion takes off the divergence: ε = divergence − shift."""
    return (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)


def _above_one(orders: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(orders, dtype=float)
    if values.size == 0 or not np.all((values > 1) & np.isfinite(values)):
        raise InvalidArgument("orders", f"orders must be finite numbers above 1, got {orders!r}")
    return values
