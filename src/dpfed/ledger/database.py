"""The database behind a ledger: connections, transactions, migrations, and errors a person can act on.

SQLite runs in WAL mode with full sync, so a transaction is on disk when it returns; PostgreSQL is used with
its own durable defaults. A writer takes the ledger's lock first (SQLite's write lock; the head row on
PostgreSQL) and waits for it at most `wait` seconds.

>>> Database("sqlite:///ledger.db", wait=1.0).shown
'sqlite:///ledger.db'
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as hooks
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dpfed import checks
from dpfed.errors import LedgerCorrupted, LedgerError, LedgerUnavailable
from dpfed.ledger import backups, disks, forks
from dpfed.ledger.address import Address
from dpfed.ledger.creating import VERSION, create_ledger
from dpfed.ledger.files import FilesMoved, LedgerFiles, Seen, leak
from dpfed.ledger.prepared import Prepared
from dpfed.ledger.schema import REVISION

# Both databases count milliseconds in 31 bits.
_LONGEST_WAIT = 2_000_000.0
_DAMAGED = ("malformed", "not a database", "unsupported file format", "database corruption", "Could not decode")
_WITHOUT_ROOM = ("full", "disk I/O", "No space", "could not extend file")
# What the triggers say to an entry that does not continue the chain.
MOVED = "the head of the ledger has moved"
# After so many seconds without use a connection may have died unnoticed.
_IDLE = 30.0
# Seconds between two tries where SQLite leaves the waiting to us.
_PAUSE = 0.01
# Any number will do as long as nobody else's advisory lock has it: "dpfed" in ASCII.
_MIGRATION_LOCK = 0x6470666564


# Where a pooled connection keeps which files it has open.
_SEEN = "dpfed_seen"


class Database:
    """A ledger's connections; usable from many threads, and again after a fork."""

    def __init__(self, url: str | Path | URL, wait: float) -> None:
        self.address = Address(url)
        self.is_sqlite = self.address.is_sqlite
        self.driver_error: type[Exception] = sqlite3.Error if self.is_sqlite else _error_of_postgresql()
        self._wait = min(checks.positive(wait=wait), _LONGEST_WAIT)
        self._engine: Engine | None = None
        self._writer: Connection | None = None
        self._cursor: Any = None  # of the writer's connection
        self._files = LedgerFiles(str(self.file)) if self.is_sqlite else None
        self._seen: Seen | None = None  # the files that the writer has open
        self._used = -math.inf
        self._process = os.getpid()
        forks.close_before_fork(self)

    @property
    def shown(self) -> str:
        """The address without anything secret."""
        return self.address.shown

    @property
    def file(self) -> Path:
        """The file of a SQLite ledger."""
        return self.address.file

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that holds the database's write lock where it has one; one thread at a time may have it.

        Its connection stays open from one transaction to the next, and BEGIN and COMMIT are said to it directly:
        taking one from the pool and back each time costs as much as all the rest of a commit.
        """
        with self._translated():
            try:
                link = self._begun()
                self._require_before()
                yield link
                _say(link, "COMMIT")
                self._require_after()
                self._used = time.monotonic()
            except BaseException:
                self._drop_writer()
                raise

    def append(self, statement: Prepared, values: tuple[Any, ...]) -> bool:
        """Whether the statement has put the values in; not if the head has moved, so that a trigger refused it.

        Nor where there is no connection that was used a moment ago, so that it has not died. It is run outside a
        transaction, so they are durable when it returns.
        """
        link, cursor, started = self._writer, self._cursor, time.monotonic()
        if link is None or started - self._used > _IDLE or self._process != os.getpid():
            return False
        self._used = started
        try:
            self._require_before()
            cursor.execute(statement.text(link), tuple(values))  # drivers take a plain tuple faster than a row
            self._require_after()
        except BaseException as error:
            if isinstance(error, self.driver_error) and MOVED in str(error):
                return False
            self._drop_writer()
            if isinstance(error, self._foreign):
                raise self._told(error) from error
            raise
        return True

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the ledger from beginning to end."""
        level = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with (
            forks.transaction(),
            self._translated(),
            self.engine.connect().execution_options(**level) as link,
        ):
            self._require_files(link.connection.info.get(_SEEN))
            with link.begin():
                yield link

    @property
    def engine(self) -> Engine:
        """The pool of connections; a forked process makes its own."""
        if self._engine is not None and self._process != os.getpid():
            self._engine.dispose(close=False)
            self._engine = None
        if self._engine is None:
            self._engine, self._process = self._make(), os.getpid()
        return self._engine

    def lengthen_log(self, link: Connection) -> None:
        """Let SQLite's log grow to 32 MB on this connection: it goes to the file once for several large commits.

        Each of them is as durable as before.
        """
        if self.is_sqlite:
            _say(link, "PRAGMA wal_autocheckpoint=16000")

    def migrate(self, *, create: bool = True, seal: Callable[[Connection], None] = lambda _: None) -> None:
        """Bring the tables to this version's schema, or refuse a ledger of a later one; never destructive.

        Without `create`, an address that has no ledger yet is refused and stays as it is. An older ledger is sealed in
        the same transaction.
        """
        if not create and self.is_sqlite and not self.file.is_file():
            raise self._none_here()
        if self.is_sqlite:
            self._settle_file()
        with self.reading() as link:
            revision = _revision(link)
        backups.require_ledger(revision, self.shown)
        if revision == REVISION:
            return
        if revision is None and not create:
            raise self._none_here()
        if revision is not None and revision > REVISION:
            raise LedgerUnavailable(
                f"the ledger at {self.shown} has schema {revision} and this dpfed knows {REVISION}: use a newer dpfed"
            )
        with forks.transaction(), self._translated(), self.engine.connect() as plain:
            link = plain.execution_options(dpfed_writes=True)
            link.begin()
            if not self.is_sqlite:
                link.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            before = _revision(link)
            if before is None:
                create_ledger(link)
            elif before != REVISION:
                _upgrade(link)
                seal(link)
            link.commit()

    def require_sqlite(self, other: str) -> None:
        """Refuse to copy files of PostgreSQL, which has programs for that."""
        if not self.is_sqlite:
            raise LedgerUnavailable(
                f"the ledger at {self.shown} is in PostgreSQL, whose own {other} copies it: only a SQLite file is "
                "backed up and restored here"
            )

    def close(self) -> None:
        """Close every connection of this process."""
        if self._has_moved():
            self._abandon()
        self._drop_writer()
        if self._engine is not None:
            self._engine.dispose(close=self._process == os.getpid())
            self._engine = None
        if self._files is not None:
            self._files.close()

    def _settle_file(self) -> None:
        """Make the file of a new ledger, where its disk can keep one, and remember which file it is."""
        disks.require_suitable(self.address)
        is_new = not self.file.exists()
        if is_new:
            # It holds the key of the fingerprints: nobody else reads it unless its owner says so.
            with suppress(OSError):  # which SQLite will tell better
                self.file.touch(mode=0o600)
        disks.require_locks(self.address, is_new=is_new)
        if self._files is not None:
            self._files.remember()
            self._files.can_be_watched = disks.is_local(self.address)

    def _require_files(self, seen: Seen | None) -> None:
        """Refuse if a file that the connection has open is not where others look for it; PostgreSQL has none."""
        if seen is not None and self._files is not None:
            self._files.require(seen)

    def _require_before(self) -> None:
        """Refuse to write if a file that the writer has open is not where others look for it, or not whole."""
        if self._seen is not None and self._files is not None:
            self._files.require_before(self._seen)

    def _require_after(self) -> None:
        """Refuse to acknowledge what was written, for the same reasons."""
        if self._seen is not None and self._files is not None:
            self._files.require_after(self._seen)

    def _begun(self) -> Connection:
        """The writer's connection in a new transaction; a new connection where the old one has died meanwhile."""
        was_open = self._writer is not None
        link = self._writer or self._connected()
        try:
            _say(link, "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")
        except self.driver_error:
            self._drop_writer()
            if self.is_sqlite or not was_open:
                raise
            return self._begun()
        return link

    def _connected(self) -> Connection:
        self._writer = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._seen = self._writer.connection.info.get(_SEEN)
        connection: Any = self._writer.connection.dbapi_connection
        self._cursor = connection.cursor()
        return self._writer

    def _drop_writer(self) -> None:
        link, self._writer, self._cursor = self._writer, None, None
        if link is None:
            return
        try:
            self._require_files(self._seen)
        except FilesMoved:
            self._abandon(link)
            return
        link.invalidate()
        link.close()

    def _abandon(self, *links: Connection) -> None:
        """Give up every connection without closing it: the files that they would clear up are not theirs any more."""
        for thing in (*links, self._writer, self._engine):
            if thing is not None:
                leak(thing)
        self._writer = self._cursor = self._engine = None

    def _forget_idle(self) -> None:
        """Open new connections from now on: SQLite remembers that a file was read-only when it was opened.

        The writer's stays: it may belong to another thread in the middle of its transaction.
        """
        if self._engine is not None and self._process == os.getpid():
            self._engine.dispose()

    def _make(self) -> Engine:
        if self.is_sqlite:
            engine = sa.create_engine(
                self.address.url, connect_args={"timeout": self._wait, "check_same_thread": False}
            )
            wait, files = self._wait, self._files
            hooks.listen(engine, "do_connect", lambda *_: None if files is None else files.require_own())
            hooks.listen(engine, "connect", lambda connection, record: _prepare(connection, record, wait, files))
            hooks.listen(engine, "begin", _begin)
            return engine
        # The server does the waiting for a lock. A dead connection is noticed before it is used.
        options = f"-c lock_timeout={math.ceil(self._wait * 1000)} -c synchronous_commit=on"
        arguments = {"options": options, "connect_timeout": max(2, int(self._wait))}
        return sa.create_engine(self.address.url, connect_args=arguments, pool_pre_ping=True)

    @property
    def _foreign(self) -> tuple[type[Exception], ...]:
        """What is raised under a ledger and needs translation; UnicodeDecodeError when a driver quotes damage."""
        return FilesMoved, SQLAlchemyError, UnicodeDecodeError, self.driver_error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._foreign as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> LedgerError:
        if isinstance(error, FilesMoved) or self._has_moved():
            self._abandon()
            return LedgerUnavailable(
                f"the file of the ledger at {self.shown}, its -wal or its -shm was moved, replaced or deleted, or "
                "written over, or was away for a while, after this process had opened it, so nothing more is charged "
                "and no noise may be drawn: stop every run that uses it, put back the newest files, all together, and "
                "start again"
            )
        self.address.clean(error)
        if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
            return LedgerUnavailable(f"the ledger at {self.shown} could not be used: {error}")
        self._forget_idle()
        if isinstance(error, UnicodeDecodeError):
            return LedgerCorrupted(f"the file of the ledger at {self.shown} is damaged: {error}")
        return self._meaning(str(error.orig if isinstance(error, DBAPIError) else error))

    def _has_moved(self) -> bool:
        """Whether the files that connections have open are gone, in which case SQLite's own words would mislead."""
        try:
            if self._files is not None and self._is_open:
                self._files.require()
        except FilesMoved:
            return True
        return False

    @property
    def _is_open(self) -> bool:
        """Whether this process has a connection: with its last one SQLite deletes the log."""
        if self._engine is None or self._process != os.getpid():
            return False
        pool: Any = self._engine.pool
        return self._writer is not None or pool.checkedin() > 0

    def _none_here(self) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"there is no ledger at {self.shown}: check the address, or open an account there first"
        )

    def _meaning(self, complaint: str) -> LedgerError:
        text = " ".join(complaint.split())
        if any(word in text for word in _DAMAGED):
            return LedgerCorrupted(f"the file of the ledger at {self.shown} is damaged: {text}")
        if "append-only" in text or "only grows" in text or MOVED in text:
            return LedgerError(f"the ledger at {self.shown} refused to be rewritten: {text}")
        return LedgerUnavailable(f"the ledger at {self.shown} {self._trouble(text)} ({text})")

    def _trouble(self, text: str) -> str:
        if "locked" in text or "lock timeout" in text:
            return f"was busy for more than {self._wait:g} s: nothing was written; try again, or give a longer wait"
        if "readonly" in text or "read-only" in text:
            return "is read-only, nothing was written: make the file and its folder writable for this user"
        if any(word in text for word in _WITHOUT_ROOM):
            return "cannot grow, the disk is full or failing; nothing was written: make room, then go on"
        if "unable to open" in text:
            return "cannot be opened: does its folder exist, and may this user write there?"
        return "is out of reach; a commit that was under way counts as spent if it arrived, and no noise may be drawn"


def _error_of_postgresql() -> type[Exception]:
    """Return what the driver of PostgreSQL raises."""
    try:
        import psycopg
    except ImportError:
        raise LedgerUnavailable(
            "a ledger in PostgreSQL needs a driver that is not installed: pip install 'dpfed[postgres]'"
        ) from None
    return psycopg.Error


def _prepare(connection: Any, record: Any, wait: float, files: LedgerFiles | None) -> None:
    """Make a new connection durable, and note which files it has open."""
    _make_durable(connection, wait)
    connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()  # opens the log
    if files is not None:
        try:
            record.info[_SEEN] = files.opened()
        except FilesMoved:
            leak(connection)
            raise


def _make_durable(connection: Any, wait: float) -> None:
    connection.isolation_level = None  # transactions are begun by _begin
    cursor = connection.cursor()
    try:
        # For a new file: a commit changes three pages, and the log gets each of them whole.
        cursor.execute("PRAGMA page_size=2048")
        _keep_log(cursor, wait)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA temp_store=MEMORY")  # what a refused entry would need to be undone
        # A commit to a thousand accounts changes thousands of pages, much the same ones each time: all of them stay in
        # memory (32 MB at most).
        cursor.execute("PRAGMA cache_size=-32000")
        # A log that grows makes each commit half as dear again, until it first goes to the file and is begun anew. So
        # it is short, the 4 MB that SQLite has with its own page size; see `lengthen_log`.
        cursor.execute("PRAGMA wal_autocheckpoint=2000")
    finally:
        cursor.close()


def _keep_log(cursor: Any, wait: float) -> None:
    """Put a new file in WAL mode, where two processes that do it at once are told "locked" instead of waiting."""
    deadline = time.monotonic() + wait
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _begin(link: Connection) -> None:
    options = link.get_execution_options()
    if options.get("isolation_level") != "AUTOCOMMIT":
        _say(link, "BEGIN IMMEDIATE" if options.get("dpfed_writes") else "BEGIN")


def _say(link: Connection, word: str) -> None:
    connection: Any = link.connection.dbapi_connection
    connection.execute(word)


def _revision(link: Connection) -> str | None:
    if not sa.inspect(link).has_table(VERSION.name):
        return None
    found = link.execute(sa.select(VERSION.c.version_num)).scalar()
    if not isinstance(found, str | None):
        raise LedgerCorrupted(f"the ledger's schema has the version {found!r:.40}, which is none")
    return found


def _upgrade(link: Connection) -> None:
    """Bring an older ledger to this schema; nothing else needs alembic."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = link
    try:
        command.upgrade(config, "head")
    except (CommandError, AssertionError, LookupError, ValueError) as error:  # what alembic makes of nonsense
        raise LedgerCorrupted(f"the ledger's schema has a version that never was: {error}") from error
