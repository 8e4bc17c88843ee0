"""One direction of the worst-case pair: which path answers, and how it hands over.

Gaussians alone have a closed form and a single release is read off its law. Otherwise the contour answers where every
error is proved to be below a thousandth of δ, and the lattice where that fails (few steps, purely discrete losses).

>>> direction = Direction()
>>> direction.add(pairs.GaussianPair(mu=0.5), 4)
>>> round(direction.epsilon(1e-5), 4)
4.3772
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from copy import copy
from typing import TypeVar

from dpfed.accounting import closed_forms
from dpfed.accounting.exact import contour, lattice, pairs
from dpfed.accounting.exact import privacy_loss as laws
from dpfed.accounting.exact.contour import Inversion
from dpfed.accounting.exact.pairs import Pair
from dpfed.accounting.exact.running_moments import RunningMoments
from dpfed.accounting.search import find_crossing, find_first_passing, log_excess

T = TypeVar("T")

_GATE = 1e-3


class Direction:
    """One direction of a composition: ordered pairs with their counts."""

    def __init__(self, other: Direction | None = None) -> None:
        self._counts: Counter[Pair] = Counter()
        self._moments: RunningMoments = RunningMoments(like=other._moments if other else None)
        self._steps = 0
        self._additions = 0
        self._log_finite = 0.0
        self._precision = 0.0
        self._is_gaussian = True
        self._is_analytic = True

    def add(self, pair: Pair, count: int) -> None:
        """Compose `count` more of the pair."""
        self._counts[pair] += count
        self._moments.add(pair, count)
        self._steps += count
        self._additions += 1
        self._log_finite += count * math.log1p(-pair.law.at_infinity)
        self._is_analytic &= pairs.is_analytic(pair)
        if isinstance(pair, pairs.GaussianPair):
            self._precision += count * pair.mu**2
        else:
            self._is_gaussian = False

    def copy(self, other: Direction | None = None) -> Direction:
        """Return an independent copy."""
        twin = copy(self)
        twin._counts, twin._moments = self._counts.copy(), self._moments.copy(other._moments if other else None)
        return twin

    def largest_loss(self) -> float:
        """Return the ε of pure differential privacy."""
        return self._largest_loss(0.0)

    def epsilon(self, delta: float, floor: float = 0.0) -> float:
        """Return an upper bound on ε at δ > 0, or the floor where that is one."""
        if (simple := self._simple_epsilon(delta)) is not None:
            return max(floor, simple)
        if floor == math.inf or (floor and self._is_within(floor, delta)):
            return floor
        if found := self._invert(delta, floor):
            return found[1]
        on_lattice = self._ask_lattice(lambda laws: lattice.epsilon_upper(laws, delta), math.inf)
        on_lattice = min(on_lattice, self._largest_loss(delta))
        return max(floor, min(on_lattice, self._rdp_epsilon(delta)) if self._is_analytic else on_lattice)

    def bracket(self, delta: float) -> tuple[float, float]:
        """Return lower and upper bounds on ε at δ > 0."""
        if (simple := self._simple_epsilon(delta)) is not None:
            return lattice.largest_lower(self._simple_lower, delta, simple), simple
        if found := self._invert(delta):
            inversion, upper = found
            return lattice.largest_lower(inversion.lower, delta, upper), upper
        lower, upper = self._ask_lattice(lambda laws: lattice.epsilon_bracket(laws, delta), (0.0, math.inf))
        upper = min(upper, self._largest_loss(delta))
        return lower, min(upper, self._rdp_epsilon(delta)) if self._is_analytic else upper

    def delta(self, epsilon: float, floor: float = 0.0) -> float:
        """Return an upper bound on δ at ε, or the floor where that is one."""
        if (mu := self._gaussian_mu()) is not None:
            return max(floor, closed_forms.gaussian_delta(mu, epsilon))
        if self._is_single():
            return max(floor, laws.delta(next(iter(self._counts)).law, epsilon))
        if epsilon >= self._largest_loss(1.0):
            return max(floor, self._at_infinity_up())
        quick = min(1.0, self._moments.delta_bound(epsilon) + self._at_infinity())
        if quick <= floor:
            return floor
        if 0 < quick < 1 and self._is_analytic:
            inversion = self._moments.inversion_at(epsilon, quick, self._at_infinity())
            if inversion and inversion.width(epsilon) <= _GATE * inversion.upper(epsilon):
                return max(floor, min(quick, inversion.upper(epsilon)))
        return max(floor, self._ask_lattice(lambda laws: lattice.delta_upper(laws, epsilon, quick, floor), quick))

    def _largest_loss(self, delta: float) -> float:
        """Return the largest finite loss of all together, which is an ε at every δ that covers the mass at infinity."""
        if self._at_infinity_up() > delta:
            return math.inf
        return math.fsum(count * pair.law.maximum for pair, count in self._counts.items()) * (1 + 2.0**-50)

    def _is_within(self, epsilon: float, delta: float) -> bool:
        """Return whether moments alone prove δ(ε) ≤ δ: a cheap test that spares the inversion."""
        left = delta - self._at_infinity()
        # Where hardly anything is left, what is left is mostly rounding.
        return left > 1e-9 * delta and self._moments.is_within(epsilon, left)

    def _rdp_epsilon(self, delta: float) -> float:
        """Return the ε that RDP promises, for the rare composition that neither contour nor lattice bounds well."""
        return self._moments.epsilon_bound(delta, self._at_infinity()) if self._at_infinity() < delta else math.inf

    def _simple_epsilon(self, delta: float) -> float | None:
        if (mu := self._gaussian_mu()) is not None:
            return closed_forms.gaussian_epsilon(mu, delta)
        return _single_epsilon(next(iter(self._counts)), delta) if self._is_single() else None

    def _simple_lower(self, epsilon: float) -> float:
        """Return a lower bound on δ(ε) for a composition whose ε has a closed form."""
        if (mu := self._gaussian_mu()) is not None:
            return closed_forms.gaussian_delta_lower(mu * (1 - self._additions * 2.0**-50), epsilon)
        return laws.delta_lower(next(iter(self._counts)).law, epsilon)

    def _invert(self, delta: float, floor: float = 0.0) -> tuple[Inversion, float] | None:
        """Return the inversion at δ and its ε, or the floor; None if its errors would be too large."""
        at_infinity = self._at_infinity()
        if not self._is_analytic or at_infinity >= delta:
            return None
        start, inversion = self._moments.inversion_near(delta, at_infinity)
        if inversion is None:
            return None
        if floor and inversion.upper(floor) <= delta:
            return inversion, floor
        epsilon = min(start, contour.smallest_epsilon(inversion, delta, start))
        return (inversion, max(floor, epsilon)) if inversion.width(epsilon) <= _GATE * delta else None

    def _ask_lattice(self, ask: Callable[[lattice.Counted], T], otherwise: T) -> T:
        try:
            return ask([(pair.law, count) for pair, count in self._counts.items()])
        except lattice.TooLarge:
            return otherwise

    def _is_single(self) -> bool:
        return self._steps == 1

    def _at_infinity(self) -> float:
        return -math.expm1(self._log_finite)

    def _at_infinity_up(self) -> float:
        """Return the mass at infinity, rounded up."""
        return self._at_infinity() * (1 + (self._additions + 2) * 2.0**-51)

    def _gaussian_mu(self) -> float | None:
        """Return the μ of a composition of Gaussians alone, rounded up."""
        return math.sqrt(self._precision) * (1 + self._additions * 2.0**-51) if self._is_gaussian else None


def _single_epsilon(pair: Pair, delta: float) -> float:
    law = pair.law

    def excess(epsilon: float) -> float:
        return log_excess(laws.delta(law, epsilon), delta)

    high = find_first_passing(excess)
    return high if high in (0.0, math.inf) else find_crossing(excess, 0.0, high)
