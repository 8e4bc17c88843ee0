"""How far the data-dependent bound of GNMax can move when teachers change their votes: its smooth sensitivity.

The local sensitivity at distance d is the most that one further vote moves the bound after d votes have moved. It is
computed by walking the counts towards the plateau where the data-dependent bound begins to win, which is right if the
bound rises with the chance q of a flip (C5) and so does what one vote adds to it (C6). Both are checked, on a grid; a
choice of noise, order and classes for which they fail is refused.

>>> round(smooth_sensitivity([200, 20, 10, 10, 5, 5, 0, 0, 0, 0], sigma=40.0, order=10.0, beta=0.02), 9)
0.000312715
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri_exp

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.pate.vote.noisy_max import Counts, require_counts
from dpfed.pate.vote.renyi_bounds import data_dependent_rdp, find_valid_orders, gnmax_log_flip

Floats = NDArray[np.float64]
GRID = 2_000  # points on which conditions C5 and C6 are checked
SLACK = 1e-9  # of a difference of two bounds, for rounding


def smooth_sensitivity(counts: Counts, sigma: float, order: float, beta: float) -> float:
    """Return the β-smooth sensitivity of the bound of one GNMax answer at that order: max over d of e^(−βd) · LS(d).

    Distances count teachers that vote otherwise, and the counts say how many teachers there are. Refused where
    conditions C5 and C6 do not hold, or the bound has a jump.
    """
    return discount(proved_sensitivities(counts, sigma, order), beta)


def discount(sensitivities: Floats, beta: float) -> float:
    """Return max over d of e^(−βd) times the local sensitivity at distance d."""
    decay = np.exp(-checks.positive(beta=beta) * np.arange(len(sensitivities)))
    return float((sensitivities * decay).max())


def local_sensitivities(counts: Counts, sigma: float, order: float) -> Floats:
    """Return bounds on the local sensitivity at distances 0, 1, … up to the number of teachers less one.

    Papernot et al. 2018, Algorithms 3 to 5. At a distance where the walk has reached the plateau, and at all beyond,
    it is the plateau: the largest of all. Noise needs `proved_sensitivities`.
    """
    votes = require_counts(counts)
    bound = prove_bound(checks.positive(sigma=sigma), _require_order(order), len(votes), int(votes.sum()))
    found = np.full(max(int(votes.sum()), 1), bound.local_sensitivity(bound.low))
    for distance, log_flip in zip(range(len(found)), _walk(votes, bound), strict=False):
        found[distance] = bound.local_sensitivity(log_flip)
    return found


def proved_sensitivities(counts: Counts, sigma: float, order: float) -> Floats:
    """Return the local sensitivities up to the distance at which all teachers have changed; refuse a bound that jumps.

    Privacy: what is released, `gnmax_rdp`, is `GNMaxBound.rdp` only where the latter has no jump at q₀, and the maximum
    over distances is smooth only if it goes as far as neighbours can: from there all counts are within reach, so the
    last one is the plateau for everybody.
    """
    votes = require_counts(counts)
    local = local_sensitivities(votes, sigma, order)
    bound = prove_bound(float(sigma), float(order), len(votes), int(votes.sum()))
    if bound.jumps:
        raise InvalidArgument(
            "sigma",
            f"the bound jumps to the worst case for σ = {sigma:g} and order {order:g}, so that no smooth sensitivity is"
            " proved: use more noise, or a higher order",
        )
    return np.append(local, bound.local_sensitivity(bound.low))


@cache
def prove_bound(sigma: float, order: float, classes: int, teachers: int) -> GNMaxBound:
    """Return the bound for these public constants; refuse it where C5 or C6 fails."""
    bound = GNMaxBound(sigma, order, classes)
    bound.require_conditions(teachers)
    return bound


@dataclass(frozen=True)
class GNMaxBound:
    """The data-dependent bound of GNMax at one order, as a function of the chance q that the best class loses."""

    sigma: float
    order: float
    classes: int

    @property
    def most(self) -> float:
        """The largest log q for which the conditions of Theorem 6 hold: μ₂ ≥ σ + 1, μ₁ > order and μ₂ > 1."""
        return min(-((1 + 1 / self.sigma) ** 2), -(((self.order - 0.99) / self.sigma) ** 2), -1 / self.sigma**2)

    @property
    def jumps(self) -> bool:
        """Whether the bound is still below the worst case where its conditions end."""
        return self._excess(self.most) < 0

    @cached_property
    def high(self) -> float:
        """log q₀: from there on the worst case is no more than the data-dependent bound."""
        most = self.most
        if not find_valid_orders(most, self.sigma, np.array([self.order])).all():
            raise InvalidArgument(
                "sigma", f"no bound on smooth sensitivity is proved for σ = {self.sigma:g}: use more noise"
            )
        if self.jumps:
            return most
        least = 2 * most
        while self._excess(least) > 0:
            least *= 1.5
        return float(brentq(self._excess, least, most, xtol=1e-13, rtol=1e-14))

    @cached_property
    def low(self) -> float:
        """log q₁: one vote more for the best class than at q₀."""
        return self.after_vote(self.high, +1)

    def rdp(self, log_flip: float) -> float:
        """Return the bound: below q₀ the data-dependent one, else α/σ²."""
        if log_flip >= self.high:
            return self.order / self.sigma**2
        return float(data_dependent_rdp(log_flip, self.sigma, self.order))

    def after_vote(self, log_flip: float, votes: int) -> float:
        """Return log q after one vote moved to the best class (+1: B_L of the paper) or away from it (−1: B_U)."""
        others = math.log(self.classes - 1)
        lead = -ndtri_exp(log_flip - others) + votes * math.sqrt(2.0) / self.sigma
        return min(0.0, others + float(log_ndtr(-lead)))

    def local_sensitivity(self, log_flip: float) -> float:
        """Return how far one vote can move the bound (Algorithm 3)."""
        here = self.low if self.low <= log_flip <= self.high else log_flip
        value = self.rdp(here)
        return max(self.rdp(self.after_vote(here, -1)) - value, value - self.rdp(self.after_vote(here, +1)))

    def require_conditions(self, teachers: int) -> None:
        """Refuse where C5 or C6 fails for a chance q that so many teachers can reach."""
        failed = [name for name, holds in self.check_conditions(teachers).items() if not holds]
        if failed:
            raise InvalidArgument(
                "order",
                f"condition {' and '.join(failed)} fails for σ = {self.sigma:g}, order {self.order:g} and "
                f"{self.classes} classes, so that no smooth sensitivity is proved: choose another order or noise",
            )

    def check_conditions(self, teachers: int) -> dict[str, bool]:
        """Return whether C5 (the bound rises with q) and C6 (so does what one vote adds) hold, on a grid of q."""
        high, lead = self.high, (teachers + 2) / (math.sqrt(2.0) * self.sigma)
        least = min(math.log(self.classes - 1) + float(log_ndtr(-lead)), 2 * high)
        below = np.linspace(least, high, GRID + 1)[:-1]
        values = np.array([self.rdp(each) for each in below])
        steps = np.array([self.rdp(self.after_vote(each, -1)) for each in below]) - values
        return {"C5": _rises(values), "C6": _rises(steps[below <= self.low])}

    def _excess(self, log_flip: float) -> float:
        return float(data_dependent_rdp(log_flip, self.sigma, self.order)) - self.order / self.sigma**2


def _walk(votes: NDArray[np.int64], bound: GNMaxBound) -> Iterator[float]:
    """Yield log q of the counts, then after one, two, … votes moved towards the plateau, until it is reached."""
    ranked = sorted(votes.tolist(), reverse=True)
    low, high = bound.low, bound.high
    log_flip = gnmax_log_flip(ranked, bound.sigma)
    towards_best = log_flip > high
    yield log_flip
    while (ranked[1] > 0 if towards_best else True) and (log_flip > high if towards_best else log_flip < low):
        ranked[0] += 1 if towards_best else -1
        ranked[1] += -1 if towards_best else 1
        ranked[1:] = sorted(ranked[1:], reverse=True)
        log_flip = gnmax_log_flip(ranked, bound.sigma)
        yield log_flip


def _rises(values: Floats) -> bool:
    return bool((np.diff(values) >= -SLACK * np.abs(values[1:])).all())


def _require_order(order: float) -> float:
    order = checks.positive(order=order)
    if order <= 1:
        raise InvalidArgument("order", f"order must be above 1, got {order}")
    return order
