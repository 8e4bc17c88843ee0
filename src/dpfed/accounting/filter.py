"""The admission rule of a budget whose releases are chosen one after another, each after seeing the last.

Exact composition is the guarantee of a plan that is fixed before its first release. It is no filter: when the
second release is chosen after reading the first, "the exact ε of all events so far is within the cap" can
promise more than it keeps, because the choice of when to spend depends on the privacy loss itself. Rényi
divergence at an order that was declared *before the first release* is safe: it adds up along every path,
however the path was chosen.

>>> from dpfed.events import Gaussian
>>> budget = RenyiFilter(epsilon=1.0, delta=1e-6)
>>> budget.affordable(Gaussian(noise_multiplier=20.0))
19
>>> budget.charge(Gaussian(noise_multiplier=20.0), count=10)
>>> budget.affordable(Gaussian(noise_multiplier=20.0))
9
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from dpfed import checks
from dpfed.accounting.atoms import atoms
from dpfed.accounting.conversions import best_order, epsilon_to_zcdp_cap, rdp_allowance, rdp_to_epsilon
from dpfed.accounting.renyi import rdp
from dpfed.checks import ADD_REMOVE
from dpfed.errors import BudgetExceeded, InfeasibleTarget, InvalidArgument
from dpfed.events import Event

UNLIMITED = 2**63 - 1

# Sums of divergences are exact rationals, so the order of charges and their grouping cannot matter; ∞ stays a
# float.
Divergence = Fraction | float


class RenyiFilter:
    """A cap of (ε, δ) on releases chosen adaptively; admits by Rényi divergence at declared orders.

    Privacy: let k orders be declared in advance and a release be admitted as long as, at *some* order αⱼ, the
    sum of the divergences stays within the largest value whose conversion at δ/k is ε. Then everything
    admitted is together (ε, δ)-DP, whatever rule chooses the releases. Along every path exp((αⱼ−1)(loss − Σ
    divergences)) is a non-negative supermartingale of mean at most 1 (Feldman and Zrnic 2021), so the part of
    δ owed to the paths on which order j is the one that fits is at most δ/k, and the k parts add up to δ.
    Declaring the orders afterwards would void this. ``adjacency`` is that of the promise; events stated for
    the other one are refused.

    An event of infinite divergence at an order (`Unprotected`, `ApproximateDP` with δ > 0) never fits that
    order.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        orders: Iterable[float] | None = None,
        *,
        adjacency: str = ADD_REMOVE,
    ) -> None:
        self.epsilon = checks.positive(epsilon=epsilon)
        self.delta = checks.positive_probability(delta=delta)
        self.adjacency = checks.adjacency(adjacency)
        self.orders = declared_orders(orders, self.epsilon, self.delta)
        self.caps = order_caps(self.epsilon, self.delta, self.orders)
        if max(self.caps) <= 0:
            raise InfeasibleTarget(
                "orders",
                f"orders {self.orders} leave no room under ε = {epsilon:g} at δ = {delta:g}",
                [f"declare order {default_order(epsilon, delta):g}, or none to have it chosen"],
            )
        self._spent: tuple[Divergence, ...] = (Fraction(0),) * len(self.orders)

    @property
    def spent(self) -> tuple[float, ...]:
        """The Rényi divergence charged so far at each declared order."""
        return tuple(float(value) for value in self._spent)

    @property
    def remaining(self) -> tuple[float, ...]:
        """The Rényi divergence still free at each declared order; never negative."""
        return tuple(max(0.0, float(cap - spent)) for cap, spent in zip(self.caps, self._spent, strict=True))

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing that costs anything fits any more."""
        return all(spent >= cap for cap, spent in zip(self.caps, self._spent, strict=True))

    def admits(self, event: Event, count: int = 1) -> bool:
        """Return whether the event fits `count` times over: at some declared order the sum stays within its cap."""
        return any(total <= cap for total, cap in zip(self._after(event, count), self.caps, strict=True))

    def affordable(self, event: Event) -> int:
        """Return how many times over the event still fits; 2⁶³ − 1 where it costs nothing."""
        cost = self._cost(event, 1)
        return max(
            _times(cap - spent, each) for cap, spent, each in zip(self._exact_caps(), self._spent, cost, strict=True)
        )

    def charge(self, event: Event, count: int = 1) -> None:
        """Spend the event `count` times over, or raise BudgetExceeded and spend nothing."""
        after = self._after(event, count)
        if not any(total <= cap for total, cap in zip(after, self.caps, strict=True)):
            raise BudgetExceeded(self._refusal(event, count, after))
        self._spent = after

    def record(self, event: Event, count: int = 1) -> None:
        """Spend what has already happened, even past the cap: for rebuilding a budget from its rows."""
        self._spent = self._after(event, count)

    def copy(self) -> RenyiFilter:
        """Return an independent copy."""
        twin = RenyiFilter(self.epsilon, self.delta, self.orders, adjacency=self.adjacency)
        twin._spent = self._spent
        return twin

    def __repr__(self) -> str:
        cap = f"epsilon={self.epsilon:g}, delta={self.delta:g}, orders={self.orders}"
        return f"<RenyiFilter({cap}): {self._share_spent():.1%} spent>"

    def _share_spent(self) -> float:
        pairs = zip(self._spent, self._exact_caps(), strict=True)
        return min(float(spent / cap) for spent, cap in pairs if cap > 0)

    def _cost(self, event: Event, count: int) -> tuple[Divergence, ...]:
        return tuple(count * each for each in divergences(event, self.orders, self.adjacency))

    def _after(self, event: Event, count: int) -> tuple[Divergence, ...]:
        cost = self._cost(event, checks.count(count=count))
        return tuple(spent + more for spent, more in zip(self._spent, cost, strict=True))

    def _exact_caps(self) -> tuple[Fraction, ...]:
        return tuple(Fraction(cap) for cap in self.caps)

    def _refusal(self, event: Event, count: int, after: tuple[Divergence, ...]) -> str:
        shortfall, order, total, cap = min(
            (float(total - Fraction(cap)), order, float(total), cap)
            for total, order, cap in zip(after, self.orders, self.caps, strict=True)
            if cap > 0
        )
        times = f"{count} × " if count > 1 else ""
        return (
            f"charging {times}{event} would take the Rényi divergence at order {order:g} to {total:.6g} of "
            f"{cap:.6g}, {shortfall:.6g} too much: at most {self.affordable(event)} more fit; "
            "charge less often, add noise, or ask for a larger budget"
        )


@lru_cache(maxsize=1024)
def default_order(epsilon: float, delta: float) -> float:
    """Return the order that leaves most room for Gaussian noise under a cap of (ε, δ), rounded to six digits.

    About 1 + √(log(1/δ)/ρ), with ρ the cap in zCDP. One order costs no union bound; each doubling of their
    number costs log 2/(α − 1) of ε.
    """
    rho = epsilon_to_zcdp_cap(epsilon, delta)
    return float(f"{best_order(rho, delta):.6g}")


def order_caps(epsilon: float, delta: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return the largest divergence at each declared order that a promise of (ε, δ) admits, rounded down."""
    return tuple(rdp_allowance(order, epsilon, delta / len(orders)) for order in orders)


def filter_epsilon(spent: Iterable[float], delta: float, orders: tuple[float, ...]) -> float:
    """Return the ε at δ of divergences at the declared orders: what a filter of that cap would just admit."""
    pairs = zip(orders, spent, strict=True)
    return min(
        rdp_to_epsilon(order, value, delta / len(orders)) if value < math.inf else value for order, value in pairs
    )


def divergences(event: Event, orders: tuple[float, ...], adjacency: str) -> tuple[Divergence, ...]:
    """Return the Rényi divergence of the event at each order: exact sums of upper bounds."""
    total: list[Divergence] = [Fraction(0)] * len(orders)
    for atom, times in atoms(event).items():
        each = _divergences(atom, orders, adjacency)
        total = [so_far + times * value for so_far, value in zip(total, each, strict=True)]
    return tuple(total)


def declared_orders(orders: Iterable[float] | None, epsilon: float, delta: float) -> tuple[float, ...]:
    """Return the orders if they are different numbers above 1; the best one for Gaussian noise if None are given."""
    if orders is None:
        return (default_order(epsilon, delta),)
    declared = tuple(checks.positive(orders=order) for order in orders)
    if not declared or min(declared) <= 1 or len(set(declared)) < len(declared):
        raise InvalidArgument("orders", f"orders must be one or more different numbers above 1, got {declared!r}")
    return declared


def _times(room: Divergence, each: Divergence) -> int:
    if room < 0 or each == math.inf:
        return 0
    return UNLIMITED if each == 0 else min(UNLIMITED, int(room // each))


@lru_cache(maxsize=4096)
def _divergences(atom: Event, orders: tuple[float, ...], adjacency: str) -> tuple[Divergence, ...]:
    values = (float(value) for value in rdp(atom, orders, adjacency=adjacency))
    return tuple(Fraction(value) if math.isfinite(value) else math.inf for value in values)
