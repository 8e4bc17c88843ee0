"""The exact accountant: events in, certified ε and δ out, incrementally.

A composition keeps, for each direction of the worst-case pair, running sums of log-moments on a few lines; an event is
one addition and a question one short sum. The contour answers only where every error is bounded by a thousandth of δ;
where it cannot (few steps, purely discrete losses) the lattice does, and where an event has no pair RDP does.

>>> from dpfed.events import Gaussian, PoissonSampled
>>> run = Composition()
>>> run.add(PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01), 10_000)
>>> round(run.epsilon(delta=1e-5), 4)
6.1877
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from copy import copy

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting import renyi
from dpfed.accounting.atoms import atoms
from dpfed.accounting.exact import pairs
from dpfed.accounting.exact.direction import Direction
from dpfed.accounting.exact.privacy_loss import Array
from dpfed.checks import ADD_REMOVE


class Composition:
    """Events that were composed under one adjacency, and what they cost together.

    Privacy: ε is an upper bound for the adaptive composition of the events as a plan fixed in advance. It is not a
    filter: choosing an event after looking at earlier outputs needs accounting/filter.py.
    """

    def __init__(self, adjacency: str = ADD_REMOVE) -> None:
        self.adjacency = checks.adjacency(adjacency)
        self._events: Counter[ev.Event] = Counter()
        first = Direction()
        self._sides: tuple[Direction, Direction] = (first, Direction(other=first))
        self._is_mirrored = True
        self._is_exact = True
        self._has_tighter_curve = False
        self._is_tight = True

    @property
    def events(self) -> Mapping[ev.Event, int]:
        """How often each atom was added."""
        return dict(self._events)

    @property
    def is_exact(self) -> bool:
        """Whether every event has a worst-case pair; otherwise ε comes from RDP."""
        return self._is_exact

    def add(self, event: ev.Event, count: int = 1) -> None:
        """Compose `count` more of the event; refused events leave the composition as it was."""
        count = checks.count(count=count)
        bag = atoms(event)
        found = {atom: pairs.pairs(atom, self.adjacency) for atom in bag}
        for atom, times in bag.items():
            self._events[atom] += times * count
            self._is_mirrored &= len(found[atom]) < 2
            self._is_exact &= bool(found[atom])
            self._has_tighter_curve |= isinstance(atom, ev.Exponential)
            self._is_tight &= not _is_bounded_only(atom)
            for index, side in enumerate(self._sides):
                if found[atom]:
                    side.add(found[atom][index % len(found[atom])], times * count)

    def copy(self) -> Composition:
        """Return an independent copy."""
        twin = copy(self)
        twin._events = self._events.copy()
        first = self._sides[0].copy()
        twin._sides = (first, self._sides[1].copy(other=first))
        return twin

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε at δ."""
        delta = checks.probability(delta=delta)
        if not self._events:
            return 0.0
        if not self.is_exact or delta == 0:
            return self._epsilon_without_pairs(delta)
        exact = 0.0
        for side in self._distinct():
            exact = side.epsilon(delta, floor=exact)
        return min(exact, self._rdp_epsilon(delta)) if self._has_tighter_curve or exact == math.inf else exact

    def epsilon_bounds(self, delta: float) -> tuple[float, float]:
        """Return certified lower and upper bounds on ε at δ; the lower is 0 where only an upper bound is proved."""
        delta = checks.probability(delta=delta)
        if not self._events or not self.is_exact or self._has_tighter_curve or not self._is_tight:
            return 0.0, self.epsilon(delta)
        if delta == 0:
            return self.epsilon(0.0), self.epsilon(0.0)
        brackets = [side.bracket(delta) for side in self._distinct()]
        return max(low for low, _ in brackets), max(high for _, high in brackets)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at ε."""
        epsilon = checks.non_negative(epsilon=epsilon)
        if not self._events:
            return 0.0
        exact = 0.0 if self.is_exact else 1.0
        for side in self._distinct() if self.is_exact else ():
            exact = side.delta(epsilon, floor=exact)
        if self.is_exact and not self._has_tighter_curve:
            return exact
        return min(exact, renyi.delta_from_rdp(renyi.DEFAULT_ORDERS, self._rdp(), epsilon))

    def _distinct(self) -> tuple[Direction, ...]:
        return self._sides[:1] if self._is_mirrored else self._sides

    def _rdp(self) -> Array:
        return renyi.total(self._events, renyi.DEFAULT_ORDERS, self.adjacency)

    def _rdp_epsilon(self, delta: float) -> float:
        return renyi.epsilon_from_rdp(renyi.DEFAULT_ORDERS, self._rdp(), delta)

    def _epsilon_without_pairs(self, delta: float) -> float:
        if ev.Unprotected() in self._events:
            return math.inf
        if delta > 0:
            return self._rdp_epsilon(delta)
        return max(side.largest_loss() for side in self._distinct()) if self.is_exact else math.inf


def _is_bounded_only(atom: ev.Event) -> bool:
    """Return whether the worst-case pair of the atom is worse than the release itself, so that no lower ε follows."""
    return isinstance(atom, ev.Shuffled) or isinstance(getattr(atom, "event", None), ev.Shuffled)
