"""One account as what a loop is charged to: the `Account` of `dpfed.guarantee`, kept in a ledger.

>>> import tempfile
>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.ledger import Ledger
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger(f"sqlite:///{folder.name}/ledger.db")
>>> icu = ledger.open("icu", epsilon=8.0, delta=1e-5)
>>> held = icu.reserve({Gaussian(4.0): 10}, run="study-12")
>>> held.commit(Gaussian(4.0))
>>> icu.reserve({Gaussian(4.0): 10}, run="study-12").left(Gaussian(4.0))  # the same run, after a restart
9
>>> ledger.close(); folder.cleanup()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpfed.errors import UnknownRun
from dpfed.events import Event
from dpfed.ledger.reservation import Reservation
from dpfed.ledger.rules import Terms

if TYPE_CHECKING:
    from dpfed.ledger.ledger import Ledger


class LedgerAccount:
    """An account of a ledger: reserve before a run, commit before each draw of noise."""

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self._ledger = ledger
        self._terms = terms

    @property
    def name(self) -> str:
        """The account's name."""
        return self._terms.name

    @property
    def unit(self) -> str:
        """The unit that the account protects."""
        return self._terms.unit

    @property
    def adjacency(self) -> str:
        """The neighbouring relation of its promise."""
        return self._terms.adjacency

    def reserve(self, events: Mapping[Event, int], *, run: str, fixed_plan: bool = True) -> LedgerHold:
        """Reserve the events for the run, or resume the run if it is in the ledger already."""
        plan = {self.name: events}
        try:
            found = self._ledger.resume(run, plan=plan if fixed_plan else None)
        except UnknownRun:
            found = self._ledger.reserve(plan, run=run, fixed_plan=fixed_plan)
        return LedgerHold(found, self.name)

    def record(self, event: Event, count: int = 1, *, run: str, reason: str) -> None:
        """Charge what has happened already, marked after the fact."""
        self._ledger.record({self.name: {event: count}}, run=run, reason=reason)

    def affordable(self, event: Event) -> int:
        """Return how many more such events the account would admit now."""
        return self._ledger.forecast(self.name, event)

    def __repr__(self) -> str:
        return f"<account {self.name!r} of {self._ledger!r}>"


class LedgerHold:
    """A run's reservation on one account."""

    def __init__(self, reservation: Reservation, account: str) -> None:
        self._reservation = reservation
        self._account = account

    @property
    def run(self) -> str:
        """The name of the run."""
        return self._reservation.run

    def commit(self, event: Event, count: int = 1) -> None:
        """Charge the event; durable when it returns, and only then may its noise be drawn."""
        self._reservation.commit({self._account: {event: count}})

    def extend(self, event: Event, count: int) -> None:
        """Reserve more of the event for the same run."""
        self._reservation.extend({self._account: {event: count}})

    def left(self, event: Event) -> int:
        """Return how often the event may still be committed."""
        return self._reservation.left(self._account, event)

    def release(self) -> None:
        """Return what was never committed."""
        self._reservation.release()
