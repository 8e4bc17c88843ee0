"""How connections to a ledger's database are made: durable, and known by the files that they have open.

SQLite runs in WAL mode with full sync, so a transaction is on disk when it returns; PostgreSQL is used with its own
durable defaults.

>>> driver_error("sqlite").__name__
'Error'
"""

from __future__ import annotations

import math
import sqlite3
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as hooks
from sqlalchemy.engine import Connection, Engine

from dpfed.errors import LedgerUnavailable
from dpfed.ledger.store.address import Address
from dpfed.ledger.store.files import FilesMoved, LedgerFiles, leak

# Seconds between two tries where SQLite leaves the waiting to us.
_PAUSE = 0.01
# Where a pooled connection keeps which files it has open.
SEEN = "dpfed_seen"


def make_engine(address: Address, wait: float, files: LedgerFiles | None) -> Engine:
    """Return a pool of durable connections that wait for a lock at most so many seconds."""
    return _make_for_postgresql(address, wait) if files is None else _make_for_sqlite(address, wait, files)


def _make_for_sqlite(address: Address, wait: float, files: LedgerFiles) -> Engine:
    engine = sa.create_engine(address.url, connect_args={"timeout": wait, "check_same_thread": False})
    hooks.listen(engine, "do_connect", lambda *_: files.require_own())
    hooks.listen(engine, "connect", lambda connection, record: _prepare(connection, record, wait, files))
    hooks.listen(engine, "begin", _begin)
    return engine


def _make_for_postgresql(address: Address, wait: float) -> Engine:
    # The server does the waiting for a lock. A dead connection is noticed before it is used.
    options = f"-c lock_timeout={math.ceil(wait * 1000)} -c synchronous_commit=on"
    arguments = {"options": options, "connect_timeout": max(2, int(wait))}
    return sa.create_engine(address.url, connect_args=arguments, pool_pre_ping=True)


def driver_error(database: str) -> type[Exception]:
    """Return the class of the errors that the driver of "sqlite" or "postgresql" raises."""
    if database == "sqlite":
        return sqlite3.Error
    try:
        import psycopg
    except ImportError:
        raise LedgerUnavailable(
            "a ledger in PostgreSQL needs a driver that is not installed: pip install 'dpfed[postgres]'"
        ) from None
    return psycopg.Error


def execute_raw(link: Connection, statement: str) -> None:
    """Run the statement on the driver's own connection: BEGIN, COMMIT or a PRAGMA, which SQLAlchemy would wrap."""
    connection: Any = link.connection.dbapi_connection
    connection.execute(statement)


def _prepare(connection: Any, record: Any, wait: float, files: LedgerFiles) -> None:
    """Make a new connection durable, and note which files it has open."""
    _make_durable(connection, wait)
    connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()  # opens the log
    try:
        record.info[SEEN] = files.identify()
    except FilesMoved:
        leak(connection)
        raise


def _make_durable(connection: Any, wait: float) -> None:
    connection.isolation_level = None  # transactions are begun by _begin
    cursor = connection.cursor()
    try:
        # For a new file: a commit changes three pages, and the log gets each of them whole.
        cursor.execute("PRAGMA page_size=2048")
        _use_wal(cursor, wait)
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA temp_store=MEMORY")  # what a refused entry would need to be undone
        # A commit to a thousand accounts changes thousands of pages, much the same ones each time: all of them stay in
        # memory (32 MB at most).
        cursor.execute("PRAGMA cache_size=-32000")
        # A log that grows makes each commit half as dear again, until it first goes to the file and is begun anew. So
        # it is short, the 4 MB that SQLite has with its own page size; see `Database.lengthen_log`.
        cursor.execute("PRAGMA wal_autocheckpoint=2000")
    finally:
        cursor.close()


def _use_wal(cursor: Any, wait: float) -> None:
    """Put a new file in WAL mode; if two processes do it at once, SQLite answers "locked" instead of waiting."""
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
        execute_raw(link, "BEGIN IMMEDIATE" if options.get("dpfed_writes") else "BEGIN")
