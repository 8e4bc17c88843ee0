"""Publishing what the answers cost on the counts at hand: with noise of its own, and at a cost of its own.

A bound that depends on private votes is private. `SmoothRelease` adds Gaussian noise in proportion to its smooth
sensitivity (GNSS, Papernot et al. 2018, Theorem 23). What comes out is a noisy report of how much the teachers agreed;
the promise stays that of the plan, which depends on no vote.

>>> release = SmoothRelease(beta=0.02, sigma=10.0)
>>> release.event.orders[-1] < 1 / (2 * 0.02)
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.events import RenyiDP
from dpfed.guarantee import Account
from dpfed.pate.vote.noisy_max import Counts
from dpfed.pate.vote.renyi_bounds import gnmax_rdp
from dpfed.pate.vote.smooth import discount, proved_sensitivities
from dpfed.prepaid import PaidSteps, reserve
from dpfed.randomness import RandomSource, or_system

ORDERS = 60  # of the curve that is charged
GRID_STEP = 2.0**-20  # of the worst case of one answer


def gnss_rdp(beta: float, sigma: float, orders: Any) -> Any:
    """Return the Rényi divergence of noise σ · SS, with SS a β-smooth sensitivity, at orders between 1 and 1/(2β)."""
    beta, sigma = checks.positive(beta=beta), checks.positive(sigma=sigma)
    found = np.asarray(orders, dtype=np.float64)
    if not ((found > 1) & (found < 1 / (2 * beta))).all():
        raise InvalidArgument("orders", f"orders must be above 1 and below 1/(2β) = {1 / (2 * beta):g}")
    varying = (-np.log1p(-2 * found * beta) / 2 + found * beta) / (found - 1)
    return (found * math.exp(2 * beta) / sigma**2 + varying)[()]


@dataclass(frozen=True)
class SmoothRelease:
    """A release of the data-dependent Rényi divergence of GNMax answers, with noise σ times its smooth sensitivity.

    Privacy: RDP as in `gnss_rdp`, at all orders below 1/(2β), for one record under add/remove: it changes one teacher,
    and with it one vote of each query. Replace-one changes two, which is not proved and is refused. The released number
    is no bound: with noise it may be too low.
    """

    beta: float
    sigma: float
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        if not checks.positive(beta=self.beta) < 0.25:
            raise InvalidArgument("beta", f"beta must be below 1/4, so that order 2 is below 1/(2β), got {self.beta}")
        checks.positive(sigma=self.sigma)
        object.__setattr__(self, "source", or_system(self.source))

    @cached_property
    def event(self) -> RenyiDP:
        """The event of one release."""
        orders = 1 + (1 / (2 * self.beta) - 1) * np.linspace(0, 1, ORDERS + 2)[1:-1] ** 2
        costs = gnss_rdp(self.beta, self.sigma, orders) * (1 + 1e-12)  # more than floats can lose
        return RenyiDP(tuple(orders.tolist()), tuple(costs.tolist()), adjacency=ADD_REMOVE)

    def publish(
        self,
        counts: Sequence[Counts] | NDArray[Any],
        sigma: float,
        order: float,
        *,
        account: Account | None = None,
        run: str | None = None,
    ) -> float:
        """Return, with noise, the divergence at that order of GNMax(sigma) answers on all these counts together.

        `counts` has one row for each answer. With an account the event is committed before the noise is drawn; without
        one, compose `event` with what the answers cost.
        """
        rows = list(counts)
        value = sum(float(gnmax_rdp(row, sigma, order)) for row in rows)
        sensitivity = discount(sum_sensitivities(rows, sigma, order), self.beta)
        held = reserve({self.event: 1}, account, run, ADD_REMOVE)
        PaidSteps(self.event, 1 if held is None else held.left(self.event), held=held).take()
        noisy = value + self.sigma * sensitivity * float(or_system(self.source).normal())
        # On a grid that depends on no vote: the low bits of a float would tell how large the noise was.
        step = order / sigma**2 * GRID_STEP
        return round(noisy / step) * step


def sum_sensitivities(counts: Sequence[Counts], sigma: float, order: float) -> NDArray[np.float64]:
    """Return the local sensitivities of the sum over all queries: a teacher has one vote in each."""
    found = [proved_sensitivities(row, sigma, order) for row in counts]
    if not found or len({len(each) for each in found}) != 1:
        raise InvalidArgument("counts", "counts must be one row for each answer, all of the same number of teachers")
    return np.asarray(np.sum(found, axis=0))
