"""What a person sees of a ledger: balances, statements and open reservations.

ε is shown in the account's own currency: what the charges stand for at the orders declared when it was
opened. Spent, reserved and remaining add up to the cap, and nothing fits once nothing remains. The exact ε
of all charges, which is smaller, is a figure *ex post*: it would be the guarantee had every charge been
planned in advance.

>>> import tempfile
>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.ledger import Ledger
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger(f"sqlite:///{folder.name}/ledger.db")
>>> icu = ledger.open("icu", epsilon=8.0, delta=1e-5)
>>> ledger.record({"icu": {Gaussian(4.0): 10}}, reason="before the ledger was kept")
>>> statement = ledger.statement("icu")
>>> round(statement.balance.spent, 2), round(statement.exact, 2), round(statement.balance.share, 2)
(4.45, 3.34, 0.25)
>>> ledger.close(); folder.cleanup()
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed import events
from dpfed.accounting.atoms import as_event
from dpfed.events import Event
from dpfed.guarantee import Guarantee
from dpfed.ledger import amounts, lease, relations
from dpfed.ledger.admission import plan_or_infinity
from dpfed.ledger.clock import now
from dpfed.ledger.journal import last_lease, last_of_accounts, last_of_items, newest_time, rows, state_of
from dpfed.ledger.refusals import is_expired
from dpfed.ledger.rows import Head, Row
from dpfed.ledger.rules import CHARGES, AccountState, Terms
from dpfed.ledger.spending import count_charges
from dpfed.ledger.store.schema import ENTRIES, HELD


@dataclass(frozen=True)
class Balance:
    """The balance of an account; spent, reserved and remaining are ε at the cap's δ.

    ``mode`` is "filter", or "exact" for an account whose one plan was admitted by its exact ε; ``status`` is
    open, frozen, expired or closed. ``share`` is the part of the filter's room that is spent or reserved: unlike
    ε, whose first charge costs most, it grows evenly. An account whose charges after the fact passed the cap is
    `is_overspent`.
    """

    account: Terms
    cap: Guarantee
    spent: float
    reserved: float
    remaining: float
    share: float
    entries: int
    status: str
    mode: str

    @property
    def is_overspent(self) -> bool:
        """Whether more was released than the cap allows; only what was recorded after the fact can do that."""
        return self.spent > self.cap.epsilon


@dataclass(frozen=True)
class Line:
    """One line of a statement: an entry, or equal commits of one run, and the balance after it.

    Commits that follow each other, of whatever events, show the balance after the last of them.
    """

    first: int
    last: int
    at: str
    kind: str
    run: str | None
    event: Event | None
    count: int | None
    note: str
    spent: float = 0.0
    reserved: float = 0.0
    remaining: float = 0.0


@dataclass(frozen=True)
class Statement:
    """An account's history. ``exact`` is the ε of all charges ex post.

    ``seen_whole_by`` sees every charge of its kind on the source. ``beside`` may be charged for the same data
    without that: accounts for another unit or adjacency, and parents.
    """

    balance: Balance
    lines: tuple[Line, ...]
    exact: float
    seen_whole_by: tuple[str, ...]
    beside: tuple[str, ...]
    head: Head
    at: str


@dataclass(frozen=True)
class OpenReservation:
    """A run and what it holds: counts of events by account."""

    run: str
    since: str
    reserved: Mapping[str, Mapping[Event, int]]
    committed: int
    left: int
    holder: str
    is_alive: bool


def balances(link: Connection, accounts: list[Terms]) -> tuple[Balance, ...]:
    """Return the balance of each of the accounts."""
    latest = {row.account: row for row in last_of_accounts(link, [terms.opened for terms in accounts])}
    is_asked = ENTRIES.c.account == accounts[0].name if len(accounts) == 1 else sa.true()
    counted = sa.select(ENTRIES.c.account, sa.func.count()).where(is_asked).group_by(ENTRIES.c.account)
    entries = {name: int(count) for name, count in link.execute(counted)}
    at = datetime.fromisoformat(max(now(), newest_time(link)))
    return tuple(_balance(link, terms, state_of(latest[terms.name]), entries[terms.name], at) for terms in accounts)


def _balance(link: Connection, terms: Terms, state: AccountState, entries: int, at: datetime) -> Balance:
    spent, reserved = _compute_figures(terms, state, lambda: count_charges(link, terms.name))
    return Balance(
        account=terms,
        cap=Guarantee(state.cap, terms.delta, terms.unit, terms.adjacency),
        spent=spent,
        reserved=reserved,
        remaining=_remaining(state, spent, reserved),
        share=_share(terms, state),
        entries=entries,
        status=_status(terms, state, at),
        mode="filter" if state.plan is None else "exact",
    )


def statement(link: Connection, terms: Terms, everyone: Mapping[str, Terms], head: Head) -> Statement:
    """Return the account's balance and every entry, equal commits of one run on one line."""
    bag = count_charges(link, terms.name)
    return Statement(
        balance=balances(link, [terms])[0],
        lines=tuple(_make_lines(link, terms)),
        exact=plan_or_infinity(as_event(bag), terms) if bag else 0.0,
        seen_whole_by=relations.find_tops(terms.name, everyone),
        beside=relations.find_beside(terms.name, everyone),
        head=head,
        at=f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
    )


def reservations(link: Connection) -> Iterator[OpenReservation]:
    """Yield every run that ever reserved, with what is left of it."""
    runs: dict[str, list[Row]] = {}
    for row in rows(link, HELD, ENTRIES.c.kind == "reserved"):
        runs.setdefault(str(row.run), []).append(row.check())
    for run, items in runs.items():
        own = [row for row in items if row.account == row.origin]
        yield _open_reservation(run, own, list(last_of_items(link, [row.seq for row in own])), last_lease(link, run))


def _open_reservation(run: str, reserved: list[Row], latest: list[Row], lease_row: Row | None) -> OpenReservation:
    holder: dict[str, Any] = {} if lease_row is None else lease_row.details()
    left = sum(row.left or 0 for row in latest)
    returned = sum(row.times or 0 for row in latest if row.kind == "released")
    return OpenReservation(
        run=run,
        since=reserved[0].at,
        reserved=_add_up_plans(reserved),
        committed=sum(row.times or 0 for row in reserved) - left - returned,
        left=left,
        holder=lease.describe(holder),
        is_alive=lease.is_alive(holder, lease.age([row.at for row in latest])),
    )


def _compute_figures(
    terms: Terms, state: AccountState, charges: Callable[[], Mapping[Event, int]]
) -> tuple[float, float]:
    """Return what is spent and what is reserved, as ε."""
    if state.plan is None:
        spent = amounts.epsilon_of(state.spent, terms.delta, terms.orders)
        if not state.pending or spent == math.inf:
            return spent, 0.0
        return spent, amounts.epsilon_of(state.total, terms.delta, terms.orders) - spent
    # The guarantee of an exact plan is that of the whole plan, also when it was stopped early.
    if state.pending == 0:
        return state.plan, 0.0
    bag = charges()
    spent = min(state.plan, plan_or_infinity(as_event(bag), terms)) if bag else 0.0
    return spent, state.plan - spent


def _remaining(state: AccountState, spent: float, reserved: float) -> float:
    return 0.0 if _is_closed(state) else max(0.0, state.cap - spent - reserved)


def _share(terms: Terms, state: AccountState) -> float:
    if state.plan is not None:
        return 1.0
    pairs = zip(state.total, terms.caps(state.cap), strict=True)
    return min(amounts.nats(total) / amounts.nats(cap) for total, cap in pairs if cap > 0)


def _is_closed(state: AccountState) -> bool:
    return state.closed or state.plan is not None


def _status(terms: Terms, state: AccountState, at: datetime) -> str:
    if state.frozen:
        return "frozen"
    if is_expired(terms, at):
        return "expired"
    return "closed" if _is_closed(state) else "open"


def _make_lines(link: Connection, terms: Terms) -> Iterator[Line]:
    bag: Counter[Event] = Counter()
    for stretch in _group_commits(rows(link, ENTRIES.c.account == terms.name)):
        lines = [_make_line(first, last, count) for first, last, count in stretch]
        for line in lines:
            if line.kind in (*CHARGES, "committed") and line.event is not None:
                bag[line.event] += line.count or 0
        state = state_of(stretch[-1][1])
        spent, reserved = _compute_figures(terms, state, lambda: bag)
        remaining = _remaining(state, spent, reserved)
        yield from (replace(line, spent=spent, reserved=reserved, remaining=remaining) for line in lines)


def _group_commits(entries: Iterable[Row]) -> Iterator[list[tuple[Row, Row, int | None]]]:
    """Yield groups of (first, last, count) entries: commits in a row are one group, equal ones of a run one item."""
    commits: dict[tuple[str | None, ...], tuple[Row, Row, int | None]] = {}
    for entry in entries:
        row = entry.check()
        if row.kind == "committed":
            key = (row.run, row.origin, row.event)
            first, _, count = commits.pop(key, (row, row, 0))
            commits[key] = first, row, (count or 0) + (row.times or 0)  # the one with the latest entry is last
            continue
        if commits:
            yield list(commits.values())
            commits = {}
        yield [(row, row, row.times)]
    if commits:
        yield list(commits.values())


def _make_line(first: Row, last: Row, count: int | None) -> Line:
    event = None if last.event is None else events.loads(last.event)
    return Line(first.seq, last.seq, first.at, last.kind, last.run, event, count, _describe(last))


def _describe(row: Row) -> str:
    details = row.details()
    if row.kind == "opened":
        return str(details["purpose"])
    if row.kind == "topped_up":
        return f"+ε {details['epsilon']:g}: {details['reason']}"
    if row.kind == "reserved" and "plan" in details:
        return "admitted by the exact ε of its plan"
    origin = "" if row.origin in (None, row.account) else f"from {row.origin}"
    steward = f"steward {details['steward']}" if "steward" in details else ""
    return ": ".join(part for part in (origin, steward, str(details.get("reason", ""))) if part)


def _add_up_plans(items: list[Row]) -> dict[str, dict[Event, int]]:
    plans: dict[str, dict[Event, int]] = {}
    for row in items:
        plan = plans.setdefault(str(row.account), {})
        event = events.loads(str(row.event))
        plan[event] = plan.get(event, 0) + int(row.times or 0)
    return plans
