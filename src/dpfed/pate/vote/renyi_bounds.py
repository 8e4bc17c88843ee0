"""What an answer costs on the counts at hand: far less than the worst case, where teachers agree.

These bounds depend on the private votes, so they are private themselves: a diagnostic for the owner, who may publish
one through `SmoothRelease` alone. The charge of every answer is that of its event, whatever the counts were.

>>> agreed = [250, 0, 0]
>>> gnmax_rdp(agreed, sigma=20.0, orders=[2.0])[0] < 1e-15 < 2.0 / 20**2
True
>>> float(gnmax_rdp([130, 120, 0], sigma=20.0, orders=2.0))   # no agreement: the worst case
0.005
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import norm

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.pate.vote.noisy_max import Counts, require_counts

Floats = NDArray[np.float64]
Orders = float | Sequence[float] | Floats
_LN2 = math.log(2.0)


def gnmax_log_flip(counts: Counts, sigma: float) -> float:
    """Return the logarithm of a bound on the chance that GNMax gives another class than most teachers.

    The union bound over the other classes, and at most 1 − 1/m for m classes (Papernot et al. 2018, Proposition 7).
    """
    gaps = find_gaps(counts)
    return cap_log_flip(float(logsumexp(log_ndtr(-gaps / (math.sqrt(2.0) * checks.positive(sigma=sigma))))), gaps)


def lnmax_log_flip(counts: Counts, scale: float) -> float:
    """Return the same for Laplace noise of that scale: Σ (2 + x)/(4eˣ), x = gap/scale (Papernot et al. 2017, Lemma 4).

    For two classes it is the exact chance.
    """
    gaps = find_gaps(counts)
    scaled = gaps / checks.positive(scale=scale)
    return cap_log_flip(float(logsumexp(np.log(2 + scaled) - scaled - math.log(4.0))), gaps)


def gnmax_rdp(counts: Counts, sigma: float, orders: Orders) -> Any:
    """Return bounds on the Rényi divergence of one GNMax answer on these counts: an array, or one number for one order.

    Papernot et al. 2018, Theorem 6 with Proposition 10, and never more than α/σ².
    """
    return rdp_from_log_flip(gnmax_log_flip(counts, sigma), sigma, orders)


def lnmax_rdp(counts: Counts, scale: float, orders: Orders) -> Any:
    """Return the same for Laplace noise of that scale: 2/scale-DP (Papernot et al. 2017, Theorem 3)."""
    found, pure = _require_orders(orders), 2 / checks.positive(scale=scale)
    log_flip = lnmax_log_flip(counts, scale)
    bounds = np.minimum(pure * pure * found / 2, pure)
    if log_flip <= -np.logaddexp(pure, 0.0):  # q ≤ 1/(1 + e^ε)
        stay = log1mexp(log_flip)
        kept = stay + (found - 1) * (stay - log1mexp(pure + log_flip))
        bounds = np.minimum(bounds, np.logaddexp(kept, log_flip + pure * (found - 1)) / (found - 1))
    return _shape_like(bounds, orders)


def threshold_log_answered(counts: Counts, threshold: float, sigma: float) -> float:
    """Return the logarithm of the chance that the largest count plus N(0, sigma²) reaches the threshold."""
    gap = checks.finite(threshold=threshold) - float(require_counts(counts).max())
    return float(norm.logsf(gap / checks.positive(sigma=sigma)))


def threshold_rdp(counts: Counts, threshold: float, sigma: float, orders: Orders) -> Any:
    """Return bounds on the Rényi divergence of one look at the largest count; never more than α/(2σ²).

    The largest count moves by 1 where the counts move by √2: as GNMax with noise √2 σ.
    """
    answered = threshold_log_answered(counts, threshold, sigma)
    rarer = min(answered, log1mexp(answered)) if answered < 0 else -math.inf
    return rdp_from_log_flip(rarer, math.sqrt(2.0) * sigma, orders)


def rdp_from_log_flip(log_flip: float, sigma: float, orders: Orders) -> Any:
    """Return bounds on the Rényi divergence of GNMax where the likeliest class loses with chance exp(log_flip)."""
    found, sigma = _require_orders(orders), checks.positive(sigma=sigma)
    if not log_flip < 0:
        raise InvalidArgument("log_flip", f"log_flip must be the logarithm of a chance below 1, got {log_flip!r}")
    bounds = found / sigma**2
    if log_flip == -math.inf:  # it never loses
        return _shape_like(np.zeros_like(bounds), orders)
    is_allowed = find_valid_orders(log_flip, sigma, found)
    if is_allowed.any():
        better = np.minimum(bounds, data_dependent_rdp(log_flip, sigma, found))
        bounds = np.where(is_allowed, better, bounds)
    return _shape_like(bounds, orders)


def find_valid_orders(log_flip: float, sigma: float, orders: Floats) -> NDArray[np.bool_]:
    """Return for which orders the conditions of the data-dependent bound hold (Theorem 6, Lemma 9)."""
    second, first = _higher_orders(log_flip, sigma)
    if second <= 1:
        return np.zeros(orders.shape, dtype=bool)
    slope = second / sigma**2
    limit = (second - 1) * slope - second * (math.log1p(1 / (first - 1)) + math.log1p(1 / (second - 1)))
    return np.asarray((first >= orders) & (log_flip <= limit) & (-log_flip > slope))


def data_dependent_rdp(log_flip: float, sigma: float, orders: Any) -> Any:
    """Return the bound of Theorem 6 without a look at its conditions."""
    second, first = _higher_orders(log_flip, sigma)
    stay = log1mexp(log_flip)
    grown = stay - log1mexp((log_flip + second / sigma**2) * (1 - 1 / second))
    other = first / sigma**2 - log_flip / (first - 1)
    return np.logaddexp(stay + (orders - 1) * grown, log_flip + (orders - 1) * other) / (orders - 1)


def log1mexp(value: float) -> float:
    """Return log(1 − eˣ) for x < 0, to full precision at both ends."""
    return math.log(-math.expm1(value)) if value > -_LN2 else math.log1p(-math.exp(value))


def find_gaps(counts: Counts) -> Floats:
    """Return by how many votes the best class leads each other one."""
    votes = require_counts(counts).astype(np.float64)
    best = int(votes.argmax())
    return np.asarray(votes[best] - np.delete(votes, best))


def cap_log_flip(log_flip: float, gaps: Floats) -> float:
    """Return the bound, or that of the likeliest of m classes: it has at least 1/m."""
    return min(log_flip, math.log1p(-1 / (len(gaps) + 1)))


def _higher_orders(log_flip: float, sigma: float) -> tuple[float, float]:
    """Return μ₂ = σ√(−ln q) and μ₁ = μ₂ + 1 (Proposition 10)."""
    second = sigma * math.sqrt(-log_flip)
    return second, second + 1


def _require_orders(orders: Orders) -> Floats:
    found = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if found.ndim != 1 or not len(found) or not (np.isfinite(found) & (found > 1)).all():
        raise InvalidArgument("orders", "orders must be one or more finite numbers above 1")
    return found


def _shape_like(bounds: Floats, orders: Orders) -> Any:
    return bounds if np.ndim(orders) else bounds[0]
