"""The ledger recomputed from its entries: the chain, every cost, every admission and every balance.

>>> replay([], Head(0, GENESIS)).rows
0
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed import events
from dpfed.accounting.atoms import as_event
from dpfed.errors import LedgerCorrupted, PrivacyError
from dpfed.events import Event
from dpfed.ledger import amounts, relations
from dpfed.ledger.admission import plan_epsilon
from dpfed.ledger.amounts import Amounts
from dpfed.ledger.reach import ReachCheck
from dpfed.ledger.rows import ACCOUNTANT, GENESIS, Head, Row
from dpfed.ledger.rules import CHARGES, KINDS, OF_ALL, AccountState, Terms

_EMPTY = Head(0, GENESIS)
_ITEMS = ("reserved", "committed", "released")
_MOVES = (*CHARGES, *_ITEMS)
_ACCOUNTANTS = {str(version) for version in range(1, ACCOUNTANT + 1)}


# What looks whether the key and the fingerprints are those of these accounts and of the seal.
Sealed = Callable[[Iterable[Terms], Mapping[str, Any]], None]


@dataclass(frozen=True)
class Verified:
    """The result of a verification that found nothing wrong."""

    rows: int
    accounts: int
    head: Head


@dataclass
class _Item:
    row: Row
    cost: Amounts
    left: int


@dataclass
class _Replay:
    """The ledger recomputed from the entries read so far."""

    head: Head = _EMPTY
    terms: dict[str, Terms] = field(default_factory=dict)
    states: dict[str, AccountState] = field(default_factory=dict)
    items: dict[int, _Item] = field(default_factory=dict)
    plans: dict[tuple[str, str], dict[Event, int]] = field(default_factory=dict)
    reach: ReachCheck = field(default_factory=ReachCheck)
    seal: dict[str, Any] = field(default_factory=dict)
    backups: dict[str, str] = field(default_factory=dict)

    def follow(self, row: Row) -> None:
        """Check the next entry and apply it."""
        _require(row.seq == self.head.sequence + 1, row, f"entry {self.head.sequence + 1} is missing")
        _require(row.previous == self.head.digest, row, "it does not continue the chain")
        row.check()
        _require(row.kind in KINDS, row, f"{row.kind!r} is no kind of entry")
        _require(
            row.kind in _ITEMS or row.item is None, row, f"a {row.kind} entry has no item, and it names {row.item}"
        )
        _require((row.account is None) == (row.kind in OF_ALL), row, f"a {row.kind} entry of account {row.account!r}")
        if row.kind == "sealed":
            _require(not self.seal, row, "the ledger was sealed before")
            self.seal = row.details()
        if row.account is not None:
            self._follow_account(row, row.account)
            self.reach.follow(row, row.account, self.terms)
        self.head = Head(row.seq, row.hash)

    def _follow_account(self, row: Row, account: str) -> None:
        if row.kind == "opened":
            self._open(row, account)
        _require((row.times or 0) > 0 or row.kind not in _MOVES, row, f"it counts {row.times} events")
        before = self.states.get(account)
        _require(before is not None, row, f"account {account!r} was never opened")
        cost = self._cost(row)
        after = (before or AccountState.new(self.terms[account])).after(row.kind, row.times or 0, cost, row.details())
        _require(row.state == after.dumps(), row, f"the balance of {account!r} after it is not {row.state}")
        self.states[account] = after
        if row.kind in ("reserved", "committed") and not row.details().get("presumed"):
            self._require_usable(row, self.terms[account], after)
        if row.kind == "restored":
            self.backups[account] = str(row.details()["head"])
        if row.kind == "unfrozen" and before is not None and before.restored:
            is_answered = "steward" in row.details() or row.details().get("head") == self.backups[account]
            _require(is_answered, row, f"nobody answers for what {account!r} lost when a backup was restored")
        if row.kind == "reserved":
            self._require_admitted(row, account, after)
        if row.kind == "topped_up" and before is not None:
            _require(before.cap < after.cap < math.inf, row, f"it takes the cap from {before.cap} to {after.cap}")

    def _open(self, row: Row, account: str) -> None:
        _require(account not in self.terms, row, f"account {account!r} was opened before")
        terms = Terms.from_dict(row.details(), row.seq)
        _require(terms.name == account, row, "its terms are those of another account")
        relations.require_sound(terms, self.terms)
        self.terms[account], self.states[account] = terms, AccountState.new(terms)

    def _cost(self, row: Row) -> Amounts:
        """Return the cost of one event of the entry; check it if this version of the accountant computed it."""
        if row.kind in (*CHARGES, "reserved"):
            cost, version = _load_amounts(str(row.cost)), row.code.rpartition("+")[2]
            _require(version in _ACCOUNTANTS, row, f"nobody knows the accountant {row.code!r} that counted its cost")
            if version == str(ACCOUNTANT):
                expected = self.terms[str(row.account)].cost(_load_event(str(row.event)))
                _require(_covers(cost, expected), row, f"its event costs {expected} and not {cost}")
            if row.kind == "reserved":
                _require(row.item == row.seq and row.left == row.times, row, "it does not hold what it reserves")
                self.items[row.seq] = _Item(row, cost, row.left or 0)
            return cost
        return self._take(row) if row.kind in ("committed", "released") else ()

    def _take(self, row: Row) -> Amounts:
        item = self.items.get(row.item or 0)
        if item is None:
            raise row.explain_unsound("it takes from an item that was never reserved")
        same = (row.account, row.run, row.origin, row.event)
        _require(
            same == (item.row.account, item.row.run, item.row.origin, item.row.event), row, "its item is another's"
        )
        item.left -= row.times or 0
        _require(item.left >= 0 and row.left == item.left, row, f"{item.left} and not {row.left} is left of its item")
        return item.cost

    def _require_usable(self, row: Row, terms: Terms, after: AccountState) -> None:
        _require(not after.frozen, row, f"{terms.name!r} was frozen")
        if terms.expires is not None:
            is_over = datetime.fromisoformat(row.at) > datetime.fromisoformat(terms.expires)
            _require(not is_over, row, f"{terms.name!r} had expired")
        is_within = after.plan is not None or amounts.fits(after.spent, terms.caps(after.cap))
        _require(row.kind == "reserved" or is_within, row, f"{terms.name!r} had no room left for it")

    def _require_admitted(self, row: Row, account: str, after: AccountState) -> None:
        if after.plan is None:
            fits = amounts.fits(after.total, self.terms[account].caps(after.cap))
            _require(fits and not after.closed, row, f"{account!r} could not afford it")
            return
        plan = self.plans.setdefault((account, str(row.run)), {})
        event = _load_event(str(row.event))
        plan[event] = plan.get(event, 0) + (row.times or 0)
        is_alone = after.charged == 0 and after.pending == sum(plan.values())
        _require(is_alone, row, f"{account!r} had earlier charges, so the exact ε of a plan does not admit it")
        terms = self.terms[account]
        cost = plan_epsilon(as_event(plan), terms.delta, terms.adjacency)
        # Costs only grow as the plan's entries follow each other, so the last of them decides.
        _require(
            cost <= after.cap and cost <= after.plan * (1 + 1e-9),
            row,
            f"its plan costs ε = {cost} and not {after.plan}",
        )


def replay(rows: Iterable[Row], head: Head, require_sealed: Sealed = lambda _, __: None) -> Verified:
    """Check the entries one by one, that they end at the head, and what they have sealed; return the counts."""
    state = _Replay()
    for row in rows:
        _follow_safely(state.follow, row)
    state.reach.settle()
    if state.head != head:
        raise LedgerCorrupted(
            f"the last entry is {state.head.sequence} and the ledger's head says {head.sequence}: "
            "entries were removed, or the head was changed; restore the ledger from a backup",
            min(state.head.sequence, head.sequence) + 1,
        )
    require_sealed(state.terms.values(), state.seal)
    return Verified(state.head.sequence, len(state.terms), head)


def read_export(lines: Iterable[str]) -> Iterable[Row]:
    """Yield the entries that `Ledger.export` wrote."""
    for number, line in enumerate(lines, start=1):
        try:
            yield Row(**json.loads(line))
        except (TypeError, ValueError, RecursionError):
            raise LedgerCorrupted(
                f"line {number} of the export is not an entry of a ledger: export it again with dpfed ledger export",
                number,
            ) from None


def require_sound_file(link: Connection) -> None:
    """Refuse a file in which SQLite finds damage; PostgreSQL checks its files itself."""
    if link.dialect.name == "sqlite":
        found = link.execute(sa.text("PRAGMA integrity_check")).scalars().all()
        if found != ["ok"]:
            raise LedgerCorrupted(f"the ledger's file is damaged: {'; '.join(map(str, found[:3]))}")


def _follow_safely(follow: Callable[[Row], None], row: Row) -> None:
    try:
        follow(row)
    except LedgerCorrupted:
        raise
    except (PrivacyError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise row.explain_unsound(f"it cannot be read ({error})") from error


def _require(condition: bool, row: Row, complaint: str) -> None:
    if not condition:
        raise row.explain_unsound(complaint)


def _covers(cost: Amounts, expected: Amounts) -> bool:
    """Return whether the cost is at least the expected one, up to what another machine's arithmetic may differ by."""
    return all(paid >= owed * (1 - 1e-9) for paid, owed in zip(cost, expected, strict=True))


@lru_cache(maxsize=4096)
def _load_event(text: str) -> Event:
    return events.loads(text)


@lru_cache(maxsize=4096)
def _load_amounts(text: str) -> Amounts:
    return amounts.from_texts(json.loads(text))
