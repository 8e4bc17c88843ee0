"""What one writing transaction sees of the ledger, and the entries it appends.

Check and append happen under one lock: whoever holds the head sees every entry before it. What the last
transaction of this process learnt stays valid as long as the head has not moved, so a run that is alone with
its ledger reads nothing but the head before each commit, however long the history is.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> store = Store(Database(f"sqlite:///{folder.name}/ledger.db", wait=1.0))
>>> store.open()
>>> with store.writing() as journal:
...     _ = journal.append(Draft("leased", run="study-12"))
>>> with store.reading() as link:
...     store.head(link).sequence
1
>>> store.database.close(); folder.cleanup()
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from dpfed.errors import LedgerCorrupted, LedgerRolledBack, LedgerUnavailable, PrivacyError, UnknownRun
from dpfed.ledger import relations, seals
from dpfed.ledger.clock import is_behind, later, now
from dpfed.ledger.rows import GENESIS, Draft, Head, Row, compact, reading_entries
from dpfed.ledger.rules import AccountState, Terms
from dpfed.ledger.store import forks
from dpfed.ledger.store.database import Database
from dpfed.ledger.store.schema import ENDED, ENTRIES, HEAD, HELD, OPENED
from dpfed.ledger.store.statements import Prepared

# The table of the head has one row.
_SEE_HEAD = sa.select(HEAD.c.seq, HEAD.c.hash)
_LOCK_HEAD = Prepared(sa.select(HEAD.c.seq, HEAD.c.hash).with_for_update())
# A trigger lets an entry in only where it continues the chain, and moves the head to it.
_APPEND = Prepared(sa.insert(ENTRIES))
_FIRST, _LATER, _ENDED = ENTRIES.alias(), ENTRIES.alias(), ENTRIES.alias()
# Both databases take a statement with some ten thousand values at most.
_CHUNK = 5_000
# So many entries change hundreds of pages.
_MANY = 200


@dataclass
class View:
    """The part of the ledger that was read at a head: states, what items hold, leases."""

    head: Head
    at: str = ""  # the time of the entry there
    states: dict[str, AccountState] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    leases: dict[str, int] = field(default_factory=dict)

    def follow(self, row: Row, state: AccountState) -> None:
        """Update the view by an entry that moves an item and leaves its account in the state."""
        self.states[str(row.account)] = state
        self.left[int(row.item or 0)] = int(row.left or 0)
        self.head = Head(row.seq, row.hash)
        self.at = row.at


# Of a commit: the entry that comes next and the state after it, or None where the view is not enough to decide.
Entry = Callable[[View, Mapping[str, Terms], int, int], tuple[Row, AccountState] | None]


class Journal:
    """The ledger within one writing transaction."""

    def __init__(self, link: Connection, view: View, terms: dict[str, Terms]) -> None:
        self.link = link
        clock = now()
        self.last = view.at  # the time of the last entry before
        self.at = clock if clock > view.at else later(view.at)  # the time of its entries
        self.terms = terms
        self._view = view
        self._head = view.head
        self._drafted: list[Row] = []

    def states(self, names: Iterable[str]) -> dict[str, AccountState]:
        """Return the state of each of the accounts."""
        wanted = list(names)
        missing = [name for name in wanted if name not in self._view.states]
        if missing:
            opened = [relations.require_known(name, self.terms).opened for name in missing]
            for row in last_of_accounts(self.link, opened):
                self._view.states[str(row.account)] = state_of(row)
        return {name: self._view.states[name] for name in wanted}

    def left(self, items: Iterable[int]) -> dict[int, int]:
        """Return how many events each reserved item still holds."""
        wanted = list(items)
        missing = [item for item in wanted if item not in self._view.left]
        if missing:
            self._view.left.update(left_of(self.link, missing))
        return {item: self._view.left[item] for item in wanted}

    def lease(self, run: str) -> int:
        """Return the number of the entry by which the run's present holder took it."""
        if run not in self._view.leases:
            row = last_lease(self.link, run)
            if row is None:
                raise UnknownRun(f"the ledger has no run {run!r}: reserve for it first, or check the name")
            self._view.leases[run] = row.seq
        return self._view.leases[run]

    def seal(self) -> dict[str, Any]:
        """Return the digests by which an older ledger was sealed; empty if it was never older."""
        row = _read_last(self.link, "sealed")
        return {} if row is None else row.details()

    def is_behind(self, clock: str) -> bool:
        """Return whether the clock is too far behind the last entry, and behind what a person has accepted since."""
        if clock > self._view.at or not is_behind(clock, self._view.at):
            return False
        accepted = _read_last(self.link, "clock")
        if accepted is None:
            return True
        # While the clock is behind, each transaction says a time one microsecond after the one before.
        is_over = self._view.at > later(accepted.at, self._view.head.sequence - accepted.seq)
        return is_over or is_behind(clock, str(accepted.details()["clock"]))

    def append(self, draft: Draft) -> Row:
        """Append the draft and return its entry, which is written when the transaction ends."""
        row = draft.row(self._head.sequence + 1, self.at, self._head.digest)
        self._head = Head(row.seq, row.hash)
        self._drafted.append(row)
        if row.item is not None:
            self._view.left[row.item] = int(row.left or 0)
        if row.kind == "leased":
            self._view.leases[str(row.run)] = row.seq
        return row

    def move(self, state: AccountState, draft: Draft) -> Row:
        """Append the draft, which leaves its account in the state, and return its entry."""
        self._view.states[str(draft.account)] = state
        return self.append(draft)

    @property
    def has_opened(self) -> bool:
        """Whether an account was opened in this transaction."""
        return any(row.kind == "opened" for row in self._drafted)

    @property
    def is_large(self) -> bool:
        """Whether many accounts were moved, as in a round of many clients."""
        return len(self._drafted) >= _MANY

    def write(self) -> Head:
        """Write what was appended and return the new head."""
        if self._drafted:
            _APPEND.run_each(self.link, self._drafted)
            self._view.at = self.at
        return self._head


class Store:
    """A ledger in a database, with what was last read of it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._view: View | None = None
        self._seen: Head | None = None
        self._terms: dict[str, Terms] = {}
        self._terms_until = 0
        self._lock = threading.RLock()

    def open(self, *, create: bool = True) -> None:
        """Bring the ledger to this version's schema, and seal what an older one knew of data."""
        self.database.migrate(create=create, seal=_seal)

    @contextmanager
    def writing(self, *, accepts_clock: bool = False) -> Iterator[Journal]:
        """Open a transaction that is durable when the block ends, and leaves no trace when it raises."""
        with forks.transaction(), self._lock:
            view, self._view = self._view, None  # whatever goes wrong, it is read anew
            with self.database.writing() as link, reading_entries(self.database.shown):
                head = _read_head(_LOCK_HEAD.first(link))
                if view is None or view.head != head:
                    self._require_seen(link)
                    view = View(head, last_time(link, head))
                journal = Journal(link, view, self._update_terms(link, head))
                if not accepts_clock:
                    self._require_clock(journal)
                yield journal
                if journal.is_large:
                    self.database.lengthen_log(link)
                view.head = journal.write()
            self._view, self._seen = view, view.head
            if not journal.has_opened:
                self._terms_until = view.head.sequence

    def append_unmoved(self, entry: Entry, lease: int, count: int) -> bool:
        """Append the entry by a single statement if the head is where it was last; return whether it was appended.

        False means that nothing was written and that the work is to be done under the lock, which also has the
        last word on any refusal.
        """
        with forks.transaction(), self._lock:
            view, self._view = self._view, None  # whatever goes wrong, it is read anew
            if view is None:
                return False
            try:
                found = entry(view, self._terms, lease, count)
            except PrivacyError:
                found = None
            if found is None or not self.database.append(_APPEND, found[0]):
                self._view = view
                return False
            are_all_known = self._terms_until >= view.head.sequence  # else accounts were opened that are not read yet
            view.follow(*found)
            self._view = view
            self._seen = view.head
            if are_all_known:
                self._terms_until = view.head.sequence
            return True

    def close(self) -> None:
        """Close the database when no thread is in the middle of writing to it."""
        with forks.transaction(), self._lock:
            self.database.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that only reads."""
        with self.database.reading() as link, reading_entries(self.database.shown):
            yield link

    def head(self, link: Connection) -> Head:
        """Return the head as the transaction sees it."""
        return _read_head(link.execute(_SEE_HEAD).first())

    def terms(self, link: Connection) -> dict[str, Terms]:
        """Return the terms of every account."""
        head = self.head(link)
        with self._lock:
            if head.sequence >= self._terms_until:
                return dict(self._update_terms(link, head))  # another thread may open accounts meanwhile
        return {str(row.account): _read_terms(row) for row in rows(link, OPENED)}

    def require(self, link: Connection, head: Head) -> None:
        """Raise LedgerRolledBack unless the ledger contains the head."""
        where = ENTRIES.c.seq == head.sequence
        found = link.execute(sa.select(ENTRIES.c.hash).where(where)).scalar() if head.sequence else GENESIS
        if found != head.digest:
            raise LedgerRolledBack(
                f"the ledger at {self.database.shown} does not contain entry {head.sequence} as it was seen before: "
                "an older copy was put in its place, and what was spent since is missing; restore the newer one",
                head.sequence,
            )

    def _require_clock(self, journal: Journal) -> None:
        clock = now()
        if journal.is_behind(clock):
            raise LedgerUnavailable(
                f"this machine's clock says {clock[:16]} UTC, which is behind the last entry of the ledger at "
                f"{self.database.shown}, and accounts expire by it: set the clock right, or if it is right say "
                "dpfed ledger accept-clock --reason WHY; nothing was written"
            )

    def _require_seen(self, link: Connection) -> None:
        if self._seen is not None:
            self.require(link, self._seen)

    def _update_terms(self, link: Connection, head: Head) -> dict[str, Terms]:
        """Return the terms of every account; they never change, so only new entries are read."""
        if head.sequence > self._terms_until:
            for row in rows(link, OPENED, ENTRIES.c.seq > self._terms_until):
                self._terms[str(row.account)] = _read_terms(row)
            self._terms_until = head.sequence
        return self._terms


def last_time(link: Connection, head: Head) -> str:
    """Return the time of the entry at the head; the empty text, which is before any other, if there is none."""
    found = link.execute(sa.select(ENTRIES.c.at).where(ENTRIES.c.seq == head.sequence)).scalar()
    return str(found or "")


def newest_time(link: Connection) -> str:
    """Return the time of the last entry; the empty text, which is before any other, if there is none."""
    return last_time(link, _read_head(link.execute(_SEE_HEAD).first()))


def _read_last(link: Connection, kind: str) -> Row | None:
    """Return the last entry of a kind that belongs to no account."""
    is_such = (ENTRIES.c.account.is_(None), ENTRIES.c.kind == kind)
    found = link.execute(sa.select(ENTRIES).where(*is_such).order_by(ENTRIES.c.seq.desc()).limit(1)).first()
    return None if found is None else Row(*found).check()


def _seal(link: Connection) -> None:
    """Append the seal of an older ledger over the data it knows, if it knows any."""
    seal = seals.make_seal(link)
    if seal["sources"]:
        head = _read_head(_LOCK_HEAD.first(link))
        clock, last = now(), last_time(link, head)
        draft = Draft("sealed", body=compact(seal))
        _APPEND.run_each(link, [draft.row(head.sequence + 1, clock if clock > last else later(last), head.digest)])


def _read_terms(row: Row) -> Terms:
    return Terms.from_dict(row.check().details(), row.seq)


def rows(link: Connection, *where: sa.ColumnElement[bool] | sa.TextClause) -> Iterator[Row]:
    """Yield the entries that meet the conditions, first to last."""
    found = link.execute(sa.select(ENTRIES).where(*where).order_by(ENTRIES.c.seq).execution_options(yield_per=2_000))
    return (Row(*values) for values in found)


def last_lease(link: Connection, run: str) -> Row | None:
    """Return the newest lease of the run: the entry by which its holder took it."""
    found = link.execute(
        sa.select(ENTRIES)
        .where(HELD, ENTRIES.c.run == run, ENTRIES.c.kind == "leased")
        .order_by(ENTRIES.c.seq.desc())
        .limit(1)
    ).first()
    return None if found is None else Row(*found).check()


def count_marks(link: Connection, run: str) -> int:
    """Return how many steps of the run were marked: by leases that count one; taking a run over counts none."""
    is_lease = (HELD, ENTRIES.c.run == run, ENTRIES.c.kind == "leased")
    return int(link.execute(sa.select(sa.func.coalesce(sa.func.sum(ENTRIES.c.times), 0)).where(*is_lease)).scalar_one())


def left_of(link: Connection, items: list[int]) -> dict[int, int]:
    """Return how many events each reserved item still holds."""
    return {int(row.item or 0): int(row.left or 0) for row in last_of_items(link, items)}


def state_of(row: Row) -> AccountState:
    """Return the state of the account after the entry."""
    if row.state is None:
        raise LedgerCorrupted(
            f"entry {row.seq} of the ledger belongs to an account and has no state: restore the ledger from a backup",
            row.seq,
        )
    return AccountState.loads(row.state)


def last_of_accounts(link: Connection, opened: list[int]) -> Iterator[Row]:
    """Yield the last entry of each account, given by the entry that opened it: one step down an index."""
    return _select_rows(link, opened, _select_newest())


def last_of_items(link: Connection, items: list[int]) -> Iterator[Row]:
    """Yield the last entry of each item: the one that used it up, or else searched back from the end of its account.

    The longest way is that of an item which others' studies on the same account have left far behind.
    """
    of_item = _LATER.c.item == _FIRST.c.seq
    ended = sa.select(_ENDED.c.seq).where(ENDED, _ENDED.c.item == _FIRST.c.seq).limit(1).scalar_subquery()
    return _select_rows(link, items, sa.func.coalesce(ended, _select_newest(of_item)))


def _select_newest(*belongs: sa.ColumnElement[bool]) -> sa.ScalarSelect[int]:
    """Select the number of the last entry on the account of the first one that belongs."""
    found = sa.select(_LATER.c.seq).where(_LATER.c.account == _FIRST.c.account, *belongs)
    return found.order_by(_LATER.c.seq.desc()).limit(1).scalar_subquery()  # PostgreSQL reads all of it for a maximum


def _select_rows(link: Connection, firsts: list[int], number: sa.ColumnElement[int]) -> Iterator[Row]:
    """Yield, for each of the first entries, the entry whose number the expression selects."""
    for start in range(0, len(firsts), _CHUNK):
        wanted = sa.select(number).where(_FIRST.c.seq.in_(firsts[start : start + _CHUNK]))
        for values in link.execute(sa.select(ENTRIES).where(ENTRIES.c.seq.in_(wanted))):
            yield Row(*values).check()


def _read_head(found: Any) -> Head:
    if found is None:
        raise LedgerCorrupted(
            "the ledger has lost its head, so its last entry is not known: restore the ledger from a backup", None
        )
    head = Head(*found)
    if type(head.sequence) is not int or type(head.digest) is not str:
        raise LedgerCorrupted(
            "the head of the ledger is not a number and a digest: restore the ledger from a backup", None
        )
    return head
