"""The database behind a ledger: its transactions, and which of its connections may still be trusted.

A transaction is on disk when it returns. A writer takes the ledger's lock first (SQLite's write lock; the head row on
PostgreSQL) and waits for it at most `wait` seconds.

>>> Database("sqlite:///ledger.db", wait=1.0).shown
'sqlite:///ledger.db'
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dpfed import checks
from dpfed.errors import LedgerError, LedgerUnavailable
from dpfed.ledger.store import complaints, disks, forks, upgrading
from dpfed.ledger.store.address import Address
from dpfed.ledger.store.connecting import SEEN, driver_error, execute_raw, make_engine
from dpfed.ledger.store.files import FilesMoved, LedgerFiles, Seen, leak
from dpfed.ledger.store.statements import Prepared

# Both databases count milliseconds in 31 bits.
_LONGEST_WAIT = 2_000_000.0
# After so many seconds without use a connection may have died unnoticed.
_IDLE = 30.0


class Database:
    """A ledger's connections; usable from many threads, and again after a fork."""

    def __init__(self, url: str | Path | URL, wait: float) -> None:
        self.address = Address(url)
        self.is_sqlite = self.address.is_sqlite
        self.driver_error: type[Exception] = driver_error("sqlite" if self.is_sqlite else "postgresql")
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
        """Open a transaction that holds the database's write lock where it has one; one thread at a time may have it.

        Its connection stays open from one transaction to the next, and BEGIN and COMMIT are sent to it directly:
        taking one from the pool and back each time costs as much as all the rest of a commit.
        """
        with self._translating():
            try:
                link = self._begin()
                self._require_before()
                yield link
                execute_raw(link, "COMMIT")
                self._require_after()
                self._used = time.monotonic()
            except BaseException:
                self._drop_writer()
                raise

    def append(self, statement: Prepared, values: tuple[Any, ...]) -> bool:
        """Append the values by the one statement and return True; return False if that cannot be done this way.

        That is where the head has moved, so that a trigger refused it, and where there is no connection that was used a
        moment ago, so that it has not died. It is run outside a transaction, so the values are durable when it returns.
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
            if isinstance(error, self.driver_error) and complaints.MOVED in str(error):
                return False
            self._drop_writer()
            if isinstance(error, self._foreign_errors):
                raise self._translate_error(error) from error
            raise
        return True

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a transaction that sees one state of the ledger from beginning to end."""
        level = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with (
            forks.transaction(),
            self._translating(),
            self.engine.connect().execution_options(**level) as link,
        ):
            self._require_files(link.connection.info.get(SEEN))
            with link.begin():
                yield link

    @property
    def engine(self) -> Engine:
        """The pool of connections; a forked process makes its own."""
        if self._engine is not None and self._process != os.getpid():
            self._engine.dispose(close=False)
            self._engine = None
        if self._engine is None:
            self._engine, self._process = make_engine(self.address, self._wait, self._files), os.getpid()
        return self._engine

    def lengthen_log(self, link: Connection) -> None:
        """Let SQLite's log grow to 32 MB on this connection, which then goes to the file once for several commits.

        Each of them is as durable as before.
        """
        if self.is_sqlite:
            execute_raw(link, "PRAGMA wal_autocheckpoint=16000")

    def migrate(self, *, create: bool = True, seal: Callable[[Connection], None] = lambda _: None) -> None:
        """Bring the tables to this version's schema, or refuse a ledger of a later one; never destructive.

        Without `create`, an address that has no ledger yet is refused and stays as it is. An older ledger is sealed in
        the same transaction.
        """
        if self.is_sqlite:
            if not create and not self.file.is_file():
                raise complaints.explain_absence(self.shown)
            self._settle_file()
        with self.reading() as link:
            if upgrading.is_current(upgrading.read_revision(link), self.shown, create=create):
                return
        with forks.transaction(), self._translating(), self.engine.connect() as plain:
            link = plain.execution_options(dpfed_writes=True)
            link.begin()
            upgrading.migrate(link, seal)
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
            with suppress(OSError):  # SQLite has the better message
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

    def _begin(self) -> Connection:
        """Begin a transaction on the writer's connection; on a new connection if the old one has died meanwhile."""
        was_open = self._writer is not None
        link = self._writer or self._connect()
        try:
            execute_raw(link, "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN")
        except self.driver_error:
            self._drop_writer()
            if self.is_sqlite or not was_open:
                raise
            return self._begin()
        return link

    def _connect(self) -> Connection:
        self._writer = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._seen = self._writer.connection.info.get(SEEN)
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

    @property
    def _foreign_errors(self) -> tuple[type[Exception], ...]:
        """What is raised under a ledger and needs translation; UnicodeDecodeError when a driver quotes damage."""
        return FilesMoved, SQLAlchemyError, UnicodeDecodeError, self.driver_error

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except self._foreign_errors as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> LedgerError:
        if isinstance(error, FilesMoved) or self._has_moved():
            self._abandon()
            return complaints.explain_moved_files(self.shown)
        self.address.clean(error)
        if isinstance(error, SQLAlchemyError) and not isinstance(error, DBAPIError):
            return LedgerUnavailable(f"the ledger at {self.shown} could not be used: {error}")
        self._forget_idle()
        if isinstance(error, UnicodeDecodeError):
            return complaints.explain_damage(error, self.shown)
        return complaints.explain(str(error.orig if isinstance(error, DBAPIError) else error), self.shown, self._wait)

    def _has_moved(self) -> bool:
        """Return whether the files that connections have open are gone: then SQLite's own error would mislead."""
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
