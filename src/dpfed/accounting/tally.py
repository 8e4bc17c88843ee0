"""A bag of events that is added to and asked in turn, and whose ε a checkpoint brings back to the last bit.

`Composition` is incremental: its last bits depend on when it was asked. As long as a bag holds few kinds of
events (nearly every run), a tally composes it afresh for each question, so its ε depends on the bag alone.
With many kinds it keeps one running composition; `settle` then rebuilds that from the bag, as a restored
tally does.

>>> from dpfed.events import Gaussian
>>> tally = Tally()
>>> for _ in range(100):
...     tally.add(Gaussian(noise_multiplier=10.0))
>>> round(tally.epsilon(delta=1e-5), 3)
4.377
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpfed import checks, events
from dpfed.accounting.atoms import atoms
from dpfed.accounting.composed import Composition
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.events import Composed, Event, Repeated

FEW = 6


class Tally:
    """A count of how often each atom happened, and what all of it costs."""

    def __init__(self, adjacency: str = ADD_REMOVE) -> None:
        self.adjacency = adjacency
        self._bag: dict[Event, int] = {}
        self._running: Composition | None = None
        self._known: dict[float, float] = {}

    @property
    def event(self) -> Event | None:
        """Everything added, as one event; None before anything."""
        parts = tuple(Repeated(atom, count) if count > 1 else atom for atom, count in self._bag.items())
        return Composed(parts) if len(parts) > 1 else next(iter(parts), None)

    def add(self, event: Event, count: int = 1) -> None:
        """Add the event `count` times over; a refused event leaves the tally as it was."""
        count = checks.count(count=count)
        # A composition takes an event as a whole or not at all, so it is asked first.
        taker = Composition(adjacency=self.adjacency) if self._running is None else self._running
        taker.add(event, count)
        for atom, times in atoms(event).items():
            self._bag[atom] = self._bag.get(atom, 0) + times * count
        self._known.clear()

    def copy(self) -> Tally:
        """Return an independent copy."""
        twin = Tally(self.adjacency)
        twin._bag, twin._known = self._bag.copy(), self._known.copy()
        twin._running = None if self._running is None else self._running.copy()
        return twin

    def epsilon(self, delta: float) -> float:
        """Return the ε of everything added; 0.0 before anything."""
        if not self._bag:
            return 0.0
        if delta not in self._known:
            self._known[delta] = float(self._composition().epsilon(delta))
        return self._known[delta]

    def settle(self) -> None:
        """Drop cached results, so that this tally and one restored from `rows` agree in every bit."""
        self._running = None
        self._known.clear()

    def rows(self) -> list[list[Any]]:
        """Return the bag as plain JSON values, in the order in which its atoms first came."""
        return [[atom.to_dict(), count] for atom, count in self._bag.items()]

    @classmethod
    def from_rows(cls, rows: Iterable[Any], adjacency: str) -> Tally:
        """Return the tally that `rows` described."""
        tally = cls(adjacency)
        for row in rows:
            if not isinstance(row, list | tuple) or len(row) != 2:
                raise InvalidArgument("events", f"each row must be an event and its count, got {row!r:.80}")
            tally.add(events.from_dict(row[0]), row[1])
        return tally

    def _composition(self) -> Composition:
        if len(self._bag) <= FEW:
            return self._compose_anew()
        if self._running is None:
            self._running = self._compose_anew()
        return self._running

    def _compose_anew(self) -> Composition:
        composition = Composition(adjacency=self.adjacency)
        for atom, count in self._bag.items():
            composition.add(atom, count)
        return composition
