"""Whether every charge reached all accounts that it must, found again from the entries alone.

A charge is one entry for each account it reaches, all in one transaction. An account that is opened over others
carries what they were charged with. A ledger in which such an entry is missing adds up account by account, and yet
shows a parent less than was released from its data.

>>> check = ReachCheck()
>>> check.settle()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dpfed import events
from dpfed.ledger import relations
from dpfed.ledger.rows import Row
from dpfed.ledger.rules import Terms

_BAG = {"carried": 1, "recorded": 1, "reserved": 1, "released": -1}

Key = tuple[str | None, str | None, str | None]  # run, origin and event


class ReachCheck:
    """A check that every charge of a transaction has an entry on each account that it must reach."""

    def __init__(self) -> None:
        self._at = ""
        self._expected: dict[tuple[str, str, Key], int] = {}  # by kind, account and key
        self._since: Row | None = None
        self._committed: dict[Key, Row] = {}
        self._returned: dict[Key, Counter[str]] = {}
        self._plans: dict[Key, _ReservedEvent] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._reached: dict[str, tuple[str, ...]] = {}

    def follow(self, row: Row, account: str, terms: Mapping[str, Terms]) -> None:
        """Check the next entry of an account, and at a new time that the transaction before is complete."""
        if row.at != self._at:
            self.settle()
            self._at = row.at
        key = (row.run, row.origin, row.event)
        match row.kind:
            case "opened":
                self._expect_carried(row, terms)
            case "carried" | "recorded" | "reserved":
                self._expect_on_all(row, account, key, terms)
            case "committed":
                self._committed.setdefault(key, row)
            case "released":
                self._release(row, account, key)
        self._count(row, account, key)

    def settle(self) -> None:
        """Refuse the transaction if an entry that should have reached another account is missing."""
        if self._expected and self._since is not None:
            (kind, account, _), *_ = self._expected
            raise self._since.explain_unsound(
                f"it never reached {account!r}, which should have a {kind} entry of its own"
            )
        for key, row in self._committed.items():
            for account in self._plans[key].find_short(str(row.origin)):
                raise row.explain_unsound(
                    f"it never reached {account!r}, which should have a committed entry of its own"
                )
        self._committed.clear()
        self._returned.clear()

    def _expect_carried(self, row: Row, terms: Mapping[str, Terms]) -> None:
        new = terms[str(row.account)]
        before = {name: known for name, known in terms.items() if name != new.name}
        self._reached.clear()
        for origin in relations.find_carried(new, before):
            seen_by = relations.find_reached(origin, before)
            for account in relations.find_reached(new.name, terms):
                if account == new.name or account not in seen_by:
                    for event, count in _canonicalize(self._counts.get(origin, Counter())).items():
                        self._expect(row, "carried", account, (None, origin, event), count)

    def _expect_on_all(self, row: Row, account: str, key: Key, terms: Mapping[str, Terms]) -> None:
        """Expect an entry on each account that the entry reaches, or tick off one that was expected."""
        if account != row.origin:
            self._tick_off(row, account, key)
            return
        if account not in self._reached:
            self._reached[account] = relations.find_reached(account, terms)
        for other in self._reached[account][1:]:
            self._expect(row, row.kind, other, key, row.times or 0)

    def _release(self, row: Row, account: str, key: Key) -> None:
        """Refuse to return more to an account than to the one by whose name it was reserved, which comes first."""
        returned = self._returned.setdefault(key, Counter())
        returned[account] += row.times or 0
        if returned[account] > returned[str(row.origin)]:
            raise row.explain_unsound(f"it returns to {account!r} what {row.origin!r} may still commit")

    def _expect(self, row: Row, kind: str, account: str, key: Key, count: int) -> None:
        if count > 0:
            self._since = self._since if self._expected else row
            self._expected[kind, account, key] = self._expected.get((kind, account, key), 0) + count

    def _tick_off(self, row: Row, account: str, key: Key) -> None:
        rest = self._expected.pop((row.kind, account, key), 0) - (row.times or 0)
        if rest < 0:
            raise row.explain_unsound(f"it comes from {row.origin!r}, which owes {account!r} no such entry")
        if rest:
            self._expected[row.kind, account, key] = rest

    def _count(self, row: Row, account: str, key: Key) -> None:
        if row.kind in _BAG:
            self._counts.setdefault(account, Counter())[str(row.event)] += _BAG[row.kind] * (row.times or 0)
        if row.kind == "reserved":
            self._plans.setdefault(key, _ReservedEvent()).reserve(str(row.origin), account, row.times or 0)
        elif row.kind == "committed":
            self._plans[key].commit(account, row.times or 0)
        elif row.kind == "released":
            self._plans[key].held[account] -= row.times or 0


@dataclass
class _ReservedEvent:
    """One event of a run, reserved by the name of one account: what each account holds and has committed of it.

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

    def find_short(self, origin: str) -> list[str]:
        """Return the accounts on which less was committed than by the origin's name."""
        drawn = self.committed[origin]
        return [account for account, carried in self.carried.items() if self.committed[account] + carried < drawn]


def _canonicalize(bag: Counter[str]) -> Counter[str]:
    """Return the counts by the canonical text of each event, which an older version may have written otherwise."""
    found: Counter[str] = Counter()
    for text, count in bag.items():
        found[events.dumps(events.loads(text))] += count
    return found
