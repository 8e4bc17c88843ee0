"""A run's hold on its accounts: reserved as a whole, committed step by step, released where unused.

Between `commit` returning and the noise being drawn nothing can be lost: the charge is on disk. A crash can
only leave a charge whose noise was never drawn, never the other way round.

>>> import tempfile
>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.ledger import Ledger
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger(f"sqlite:///{folder.name}/ledger.db")
>>> icu = ledger.open("icu", epsilon=8.0, delta=1e-5)
>>> reservation = ledger.reserve({"icu": {Gaussian(4.0): 10}}, run="study-12")
>>> reservation.commit({"icu": Gaussian(2.0)})
Traceback (most recent call last):
    ...
dpfed.errors.NotReserved: run 'study-12' asked to commit 1 × Gaussian(noise_multiplier=2.0) on icu, but 0 of it is \
left reserved: commit only what the plan holds, or reserve more first
>>> ledger.close(); folder.cleanup()
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dpfed.accounting.atoms import as_event
from dpfed.errors import AccountUnavailable, LeaseLost, NotReserved
from dpfed.events import Event
from dpfed.ledger import admission, amounts, inputs, lease
from dpfed.ledger.amounts import Amounts
from dpfed.ledger.fast_commit import PreparedCommit
from dpfed.ledger.holding import take_lease
from dpfed.ledger.inputs import Charges
from dpfed.ledger.items import Item, add_up, move_item, release_items, reserve_items
from dpfed.ledger.journal import Journal, Store, count_marks, last_lease, last_of_items, left_of
from dpfed.ledger.refusals import (
    judge_all,
    raise_refusals,
    require_usable,
    require_whole,
    require_within,
    write_expiry,
    write_refusals,
)
from dpfed.ledger.rules import Terms


class Reservation:
    """The events that a run may still commit; it belongs to the process that took it.

    Privacy: commit first, and draw noise only when `commit` has returned. What a reservation promises is its
    whole plan; the ε of the part committed so far is an ex post figure.
    """

    def __init__(self, store: Store, run: str, lease: int, items: Iterable[Item]) -> None:
        self._store = store
        self._run = run
        self._lease = lease
        self._items: dict[str, list[Item]] = {}
        self._steps: dict[str, PreparedCommit | None] = {}
        self._keep(items)

    @property
    def run(self) -> str:
        """The name of the run."""
        return self._run

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts it was reserved on, by the names it is committed with."""
        return tuple(self._items)

    def events(self, account: str) -> dict[Event, int]:
        """Return the plan: how often each event was reserved on the account."""
        return add_up(self._own_items(account))

    def epsilon(self, account: str) -> float:
        """Return the ε of all that the run reserved on the account, at its δ: the guarantee of this run alone.

        It is exact for a plan that was reserved at once. What was extended later may have been chosen after
        looking at results, so the ε of a run that grew is that of the filter.
        """
        self._items_of(account)
        items = [item for origin in self._items.values() for item in origin if item.account == account]
        terms = self.terms(account)
        if any(item.is_extension for item in items):
            total: Amounts = (0,) * len(terms.orders)
            for item in items:
                total = amounts.plus(total, item.count, item.cost)
            return amounts.epsilon_of(total, terms.delta, terms.orders)
        return admission.plan_epsilon(as_event(add_up(items)), terms.delta, terms.adjacency)

    def terms(self, account: str) -> Terms:
        """Return the terms under which the account was opened."""
        with self._store.reading() as link:
            return self._store.terms(link)[account]

    def left(self, account: str, event: Event | None = None) -> int:
        """Return how often the event may still be committed; all events together if none is given."""
        items = [item for item in self._own_items(account) if event is None or item.event == event]
        with self._store.reading() as link:
            return sum(left_of(link, [item.number for item in items]).values())

    def committed(self, account: str) -> int:
        """Return how many events the run has committed on the account; what was returned is not among them."""
        return sum(self.committed_of_each(account).values())

    def committed_of_each(self, account: str) -> dict[Event, int]:
        """Return how often the run has committed each event of its plan on the account."""
        items = self._own_items(account)
        with self._store.reading() as link:
            latest = {row.item: row for row in last_of_items(link, [item.number for item in items])}
        found = dict.fromkeys((item.event for item in items), 0)
        for item in items:
            row = latest[item.number]
            returned = (row.times or 0) if row.kind == "released" else 0
            found[item.event] += item.count - (row.left or 0) - returned
        return found

    def left_of_each(self) -> dict[str, dict[Event, int]]:
        """Return how often each event may still be committed on each account: `left` for all, read at once."""
        own = [item for account in self.accounts for item in self._own_items(account)]
        found: dict[str, dict[Event, int]] = {account: {} for account in self.accounts}
        with self._store.reading() as link:
            left = left_of(link, [item.number for item in own])
        for item in own:
            found[item.account][item.event] = found[item.account].get(item.event, 0) + left[item.number]
        return found

    def commit(self, charges: Mapping[str, Any]) -> None:
        """Charge what was reserved; durable when it returns, and only then may noise be drawn."""
        step, count = self._find_step(charges)
        if step is not None and self._store.append_unmoved(step.entry, self._lease, count):
            return
        wanted = inputs.charges(charges)
        with self._charging() as journal:
            self._commit(journal, wanted)

    def commit_unseen(self, charges: Mapping[str, Any]) -> None:
        """Charge what was reserved, or nothing, and mark the step; a refusal does not depend on who is charged.

        Privacy: where it is secret who is charged, a refusal must not reveal it. So every account of the run is asked,
        charged or not, for all that was reserved on it, spent or not.
        """
        wanted = inputs.charges(charges) if charges else {}
        with self._charging() as journal:
            self._require_lease(journal)
            names = dict.fromkeys(item.account for item in self._all_items)
            for name, state in journal.states(names).items():
                require_whole(journal, name, state)
            self._commit(journal, wanted)
            marked = take_lease(journal, self._run, marks=1)
        self._lease = marked

    def mark(self, account: str, charges: Mapping[str, Any] | None = None) -> None:
        """Append that the run does a step, with what it costs, if anything: durable when it returns.

        It is refused where a charge would be. A step that is paid for already leaves its trace so: a run that goes on
        from an old copy of its files sees that more was done than they know of.
        """
        wanted = inputs.charges(charges) if charges else {}
        names = dict.fromkeys(item.account for item in self._items_of(account))
        with self._charging() as journal:
            self._require_lease(journal)
            for name, state in journal.states(names).items():
                require_usable(journal.terms[name], state, journal.at)
            self._commit(journal, wanted)
            marked = take_lease(journal, self._run, marks=1)
        self._lease = marked

    def marks(self) -> int:
        """Return how many steps of the run were marked, by whichever process."""
        with self._store.reading() as link:
            return count_marks(link, self._run)

    def extend(self, charges: Mapping[str, Any]) -> None:
        """Reserve more for the same run, or raise BudgetExceeded; never on a plan admitted by its exact ε."""
        wanted = inputs.charges(charges)
        with self._store.writing() as journal:
            self._require_lease(journal)
            verdicts = judge_all(journal, self._run, wanted, fixed_plan=False)
            refused = write_refusals(journal, self._run, verdicts)
            made = [] if refused else reserve_items(journal, self._run, wanted, verdicts, is_extension=True)
        raise_refusals(refused)
        self._keep(made)

    def release(self, reason: str = "") -> None:
        """Return what was never committed; what was committed stays spent."""
        reason = inputs.text(reason=reason)
        with self._store.writing() as journal:
            self._require_lease(journal)
            release_items(journal, self._all_items, reason, self._run)

    def __repr__(self) -> str:
        plans = "; ".join(f"{account}: {as_event(self.events(account))}" for account in self.accounts[:3])
        more = f" and {len(self.accounts) - 3} more accounts" if len(self.accounts) > 3 else ""
        return f"<Reservation of run {self._run!r} on {plans}{more}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(account)}</th><td>{html.escape(str(as_event(self.events(account))))}</td></tr>"
            for account in self.accounts
        )
        return f"<p><b>Reservation of run {html.escape(self._run)}</b></p><table>{rows}</table>"

    def _find_step(self, charges: Any) -> tuple[PreparedCommit | None, int]:
        """Return the prepared commit for charges that are one entry, and their count; None for all others."""
        if type(charges) is not dict or len(charges) != 1:
            return None, 0
        ((origin, event),) = charges.items()
        count = 1
        if type(event) is dict and len(event) == 1:
            ((event, count),) = event.items()
        step = self._steps.get(origin)
        if step is None or type(count) is not int or count < 1 or not step.is_of(event):
            return None, 0
        return step, count

    @contextmanager
    def _charging(self) -> Iterator[Journal]:
        """Open a transaction that charges accounts; if one has expired, record the time and refuse."""
        try:
            with self._store.writing() as journal:
                yield journal
        except AccountUnavailable:
            with self._store.writing() as journal:
                write_expiry(journal, self._run, dict.fromkeys(item.account for item in self._all_items))
            raise

    @property
    def _all_items(self) -> list[Item]:
        return [item for items in self._items.values() for item in items]

    def _commit(self, journal: Journal, wanted: Charges) -> None:
        """Append the entries of a commit."""
        self._require_lease(journal)
        taken = list(self._allot(journal, wanted))
        states = journal.states(dict.fromkeys(item.account for item, _, _ in taken))
        for account, state in states.items():
            require_usable(journal.terms[account], state, journal.at)
        for item, count, left in taken:
            states[item.account] = move_item(journal, states[item.account], "committed", item, count, left, self._run)
        for account, state in states.items():
            require_within(journal.terms[account], state)

    def _keep(self, items: Iterable[Item]) -> None:
        for item in items:
            is_alone = item.origin not in self._items and item.account == item.origin
            self._steps[item.origin] = PreparedCommit(item, self._run) if is_alone else None
            self._items.setdefault(item.origin, []).append(item)

    def _items_of(self, origin: str) -> list[Item]:
        if not isinstance(origin, str) or origin not in self._items:
            inputs.name(account=origin)
            raise NotReserved(
                f"run {self._run!r} has nothing reserved on {origin!r}, only on {', '.join(self.accounts)}: "
                "commit on one of those, or reserve on it first"
            )
        return self._items[origin]

    def _own_items(self, account: str) -> list[Item]:
        return [item for item in self._items_of(account) if item.account == account]

    def _require_lease(self, journal: Journal) -> None:
        if journal.lease(self._run) != self._lease:
            holder = last_lease(journal.link, self._run)
            if holder is not None and lease.is_me(holder.details()):
                raise LeaseLost(
                    f"run {self._run!r} was resumed in this process, or a step of it was interrupted just after it was "
                    "written down: resume the run to go on with it; what was written counts as done"
                )
            raise LeaseLost(
                f"run {self._run!r} was taken over by another process: stop this one, it may not charge any more"
            )

    def _allot(self, journal: Journal, wanted: Charges) -> Iterator[tuple[Item, int, int]]:
        """Yield each item with how much is taken of it and what is then left, on every account the charge reaches."""
        left = journal.left(item.number for origin in wanted for item in self._items_of(origin))
        for origin, counts in wanted.items():
            for event, count in counts.items():
                by_account: dict[str, list[Item]] = {origin: []}
                for item in self._items_of(origin):
                    if item.event == event:
                        by_account.setdefault(item.account, []).append(item)
                self._require_left(event, origin, count, sum(left[item.number] for item in by_account[origin]))
                for items in by_account.values():
                    yield from _take(items, left, count)

    def _require_left(self, event: Event, origin: str, count: int, left: int) -> None:
        if count > left:
            raise NotReserved(
                f"run {self._run!r} asked to commit {count} × {event} on {origin}, but {left} of it is left reserved: "
                "commit only what the plan holds, or reserve more first"
            )


def _take(items: list[Item], left: dict[int, int], count: int) -> Iterator[tuple[Item, int, int]]:
    # An account that was opened later, with overlaps, has carried the older part of the plan as spent: of it less
    # is left here than on the origin, and what is there is taken first.
    for item in items:
        part = min(count, left[item.number])
        if part:
            left[item.number] -= part
            count -= part
            yield item, part, left[item.number]
