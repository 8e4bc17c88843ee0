"""Whether every charge reached all accounts that it must, found again from the entries alone.

A charge is one entry for each account it reaches, all in one transaction. An account that is opened over others
carries what they were charged with. A ledger in which such an entry is missing adds up account by account, and yet
shows a parent less than was released from its data.

>>> dues = Dues()
>>> dues.settle()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpfed import events
from dpfed.errors import LedgerCorrupted
from dpfed.ledger import relations
from dpfed.ledger.model import Terms
from dpfed.ledger.rows import Row

_BAG = {"carried": 1, "recorded": 1, "reserved": 1, "released": -1}

Key = tuple[str | None, str | None, str | None]  # run, origin and event


class Dues:
    """What the entries of the transaction so far still owe to other accounts."""

    def __init__(self) -> None:
        self._at = ""
        self._owed: dict[tuple[str, str, Key], int] = {}  # by kind, account and key
        self._since: Row | None = None
        self._drawn: dict[Key, Row] = {}
        self._returned: dict[Key, Counter[str]] = {}
        self._plans: dict[Key, _Plan] = {}
        self._bags: dict[str, Counter[str]] = {}
        self._reached: dict[str, tuple[str, ...]] = {}

    def follow(self, row: Row, account: str, terms: Mapping[str, Terms]) -> None:
        """Take the next entry of an account, or refuse the transaction before it."""
        if row.at != self._at:
            self.settle()
            self._at = row.at
        key = (row.run, row.origin, row.event)
        match row.kind:
            case "opened":
                self._open(row, terms)
            case "carried" | "recorded" | "reserved":
                self._spread(row, account, key, terms)
            case "committed":
                self._drawn.setdefault(key, row)
            case "released":
                self._release(row, account, key)
        self._count(row, account, key)

    def settle(self) -> None:
        """Nothing, if all that was owed is there."""
        if self._owed and self._since is not None:
            (kind, account, _), *_ = self._owed
            raise _bad(self._since, f"it never reached {account!r}, which should have a {kind} entry of its own")
        for key, row in self._drawn.items():
            for account in self._plans[key].short(str(row.origin)):
                raise _bad(row, f"it never reached {account!r}, which should have a committed entry of its own")
        self._drawn.clear()
        self._returned.clear()

    def _open(self, row: Row, terms: Mapping[str, Terms]) -> None:
        new = terms[str(row.account)]
        before = {name: known for name, known in terms.items() if name != new.name}
        self._reached.clear()
        for origin in relations.carried_from(new, before):
            seen_by = relations.reached(origin, before)
            for account in relations.reached(new.name, terms):
                if account == new.name or account not in seen_by:
                    for event, count in _canonical(self._bags.get(origin, Counter())).items():
                        self._owe(row, "carried", account, (None, origin, event), count)

    def _spread(self, row: Row, account: str, key: Key, terms: Mapping[str, Terms]) -> None:
        """An entry by its own name owes one to each account it reaches; an entry by another's name is one of those."""
        if account != row.origin:
            self._pay(row, account, key)
            return
        if account not in self._reached:
            self._reached[account] = relations.reached(account, terms)
        for other in self._reached[account][1:]:
            self._owe(row, row.kind, other, key, row.times or 0)

    def _release(self, row: Row, account: str, key: Key) -> None:
        """An account gets back no more than the one by whose name it was reserved, which comes first."""
        returned = self._returned.setdefault(key, Counter())
        returned[account] += row.times or 0
        if returned[account] > returned[str(row.origin)]:
            raise _bad(row, f"it returns to {account!r} what {row.origin!r} may still commit")

    def _owe(self, row: Row, kind: str, account: str, key: Key, count: int) -> None:
        if count > 0:
            self._since = self._since if self._owed else row
            self._owed[kind, account, key] = self._owed.get((kind, account, key), 0) + count

    def _pay(self, row: Row, account: str, key: Key) -> None:
        rest = self._owed.pop((row.kind, account, key), 0) - (row.times or 0)
        if rest < 0:
            raise _bad(row, f"it comes from {row.origin!r}, which owes {account!r} no such entry")
        if rest:
            self._owed[row.kind, account, key] = rest

    def _count(self, row: Row, account: str, key: Key) -> None:
        if row.kind in _BAG:
            self._bags.setdefault(account, Counter())[str(row.event)] += _BAG[row.kind] * (row.times or 0)
        if row.kind == "reserved":
            self._plans.setdefault(key, _Plan()).reserve(str(row.origin), account, row.times or 0)
        elif row.kind == "committed":
            self._plans[key].commit(account, row.times or 0)
        elif row.kind == "released":
            self._plans[key].held[account] -= row.times or 0


@dataclass
class _Plan:
    """One event that a run reserved by the name of one account: what each account holds and has committed of it.

    ``carried`` is what an account that was opened later has carried instead.
    """

    held: Counter[str] = field(default_factory=Counter)
    committed: Counter[str] = field(default_factory=Counter)
    carried: dict[str, int] = field(default_factory=dict)

    def reserve(self, origin: str, account: str, count: int) -> None:
        if account not in self.carried:
            # Its origin comes first, with the same count.
            before = 0 if account == origin else self.held[origin] + self.committed[origin] - count
            self.carried[account] = before
        self.held[account] += count

    def commit(self, account: str, count: int) -> None:
        self.held[account] -= count
        self.committed[account] += count

    def short(self, origin: str) -> list[str]:
        """The accounts that saw less than was committed by the origin's name."""
        drawn = self.committed[origin]
        return [account for account, carried in self.carried.items() if self.committed[account] + carried < drawn]


def _canonical(bag: Counter[str]) -> Counter[str]:
    """The counts by the text under which they are carried on."""
    found: Counter[str] = Counter()
    for text, count in bag.items():
        found[events.dumps(events.loads(text))] += count
    return found


def _bad(row: Row, complaint: str) -> LedgerCorrupted:
    return LedgerCorrupted(f"entry {row.seq} of the ledger is not sound: {complaint}", row.seq)
