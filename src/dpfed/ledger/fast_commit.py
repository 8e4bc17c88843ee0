"""A commit that is one entry, as almost all are: of one item, to the one account that it reaches.

It says no more than the rules for any commit, which it asks; but it knows beforehand what its entries will have in
common, and looks only at what is known already. Where it gives nothing, the commit goes the longer way and is done
or refused there.

>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.rows import GENESIS, Head
>>> item = Item(2, "icu", "icu", Gaussian(4.0), "…", count=1, cost=(5,), is_extension=False)
>>> terms = Terms("icu", 8.0, 1e-5, orders=(4.0,))
>>> state = AccountState.new(terms).after("reserved", 1, (5,))
>>> view = View(Head(2, GENESIS), states={"icu": state}, left={2: 1}, leases={"study-12": 1})
>>> step = PreparedCommit(item, "study-12")
>>> row, after = step.entry(view, {"icu": terms}, lease=1, count=1)
>>> row.seq, after.spent
(3, (5,))
>>> step.entry(view, {"icu": terms}, lease=1, count=2) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping

from dpfed.events import Event
from dpfed.ledger.clock import now
from dpfed.ledger.items import Item
from dpfed.ledger.journal import View
from dpfed.ledger.refusals import require_usable, require_within
from dpfed.ledger.rows import Row, Series
from dpfed.ledger.rules import AccountState, Terms


class PreparedCommit:
    """The commits of one reserved item by one run, as entries prepared in advance."""

    def __init__(self, item: Item, run: str) -> None:
        self._item = item
        self._run = run
        self._event = item.event
        self._series = Series("committed", item.account, run, item.number, item.origin, item.text)

    def is_of(self, event: object) -> bool:
        """Return whether the event is the one that was reserved, and so was checked then."""
        if event is not self._event:
            if not isinstance(event, Event) or self._item.event != event:
                return False
            self._event = event  # to compare events takes longer than to look whether they are one object
        return True

    def entry(self, view: View, terms: Mapping[str, Terms], lease: int, count: int) -> tuple[Row, AccountState] | None:
        """Return the next entry and the state after it; None if the view cannot decide, or does not admit it."""
        item = self._item
        agreed, state = terms.get(item.account), view.states.get(item.account)
        left = view.left.get(item.number, 0) - count
        if agreed is None or state is None or left < 0 or view.leases.get(self._run) != lease:
            return None
        at = now()
        if at <= view.at:  # a clock that was set back is dealt with on the longer way
            return None
        require_usable(agreed, state, at)
        after = state.after_commit(count, item.cost)
        require_within(agreed, after)
        number, digest = view.head
        return self._series.row(number + 1, at, digest, count, left, after.dumps()), after
