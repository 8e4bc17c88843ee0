"""Hostile worlds for the ledger: children that are killed, and points at which to strike.

A child is forked from the warm test process and says what happened through a pipe. A fact is in the pipe before the
child goes on, so the parent knows exactly what a dead child had been told.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.engine import Engine, make_url

import dpfed
from dpfed import events as ev
from dpfed.errors import PrivacyError

EVENT = ev.Gaussian(noise_multiplier=40.0)
WITHIN = 120.0  # seconds after which a child that still runs is a deadlock

Say = Callable[..., None]


@dataclass
class Child:
    """A forked process and what it has said."""

    pid: int
    pipe: int
    heard: bytes = b""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def hear(self) -> None:
        """Return after the next fact, or when there is none any more."""
        lines = self.heard.count(b"\n")
        while self.heard.count(b"\n") == lines and self._read(time.monotonic() + WITHIN):
            pass

    def end(self, deadline: float | None = None) -> tuple[int, list[list[Any]]]:
        """Its exit code (negative: the signal that killed it) and all its facts, when it is dead."""
        deadline = deadline or time.monotonic() + WITHIN
        try:
            while self._read(deadline):
                pass
        finally:
            self.kill()
            _, status = os.waitpid(self.pid, 0)
            os.close(self.pipe)
        return os.waitstatus_to_exitcode(status), [json.loads(line) for line in self.heard.splitlines()]

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"child {self.pid} still runs after it said {self.heard[-300:]!r}")
        some = os.read(self.pipe, 65536)
        self.heard += some
        return bool(some)


def fork(work: Callable[[Say], None]) -> Child:
    """A child that does the work and leaves without a goodbye to pytest; an error is its last fact."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads, which xdist has
        pid = os.fork()
    if pid:
        os.close(write)
        return Child(pid, read)
    code = 1
    try:
        os.close(read)

        def say(*fact: Any) -> None:
            os.write(write, json.dumps(fact).encode() + b"\n")

        try:
            work(say)
            code = 0
        except BaseException as error:
            say("error", type(error).__name__, str(error), traceback.format_exc()[-1500:])
    finally:
        os._exit(code)


def told(work: Callable[[Say], None]) -> list[list[Any]]:
    """The facts of a child that did the work and ended well."""
    code, facts = fork(work).end()
    assert code == 0, facts[-1]
    return facts


@contextlib.contextmanager
def points(strike: Callable[[int], None]) -> Iterator[None]:
    """Call `strike(n)` at the n-th point before or after a statement of any database's driver, from 1."""
    passed, is_striking = 0, False

    def point(*_: Any) -> None:
        nonlocal passed, is_striking
        if not is_striking:  # striking may need a database too
            passed, is_striking = passed + 1, True
            try:
                strike(passed)
            finally:
                is_striking = False

    def trace(dialect: Any, _: Any, __: Any, options: dict[str, Any]) -> None:
        if dialect.name == "sqlite":
            options["factory"] = _struck_sqlite(point)

    with contextlib.ExitStack() as places:
        sqlalchemy.event.listen(Engine, "do_connect", trace)
        places.callback(sqlalchemy.event.remove, Engine, "do_connect", trace)
        for owner, name in (
            (psycopg.Cursor, "execute"),
            (psycopg.Cursor, "executemany"),
            (psycopg.Connection, "commit"),
            (psycopg.Connection, "rollback"),
        ):
            places.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, _between(point, getattr(owner, name)))
        yield


def _struck_sqlite(point: Callable[[], None]) -> type[sqlite3.Connection]:
    """SQLite's driver is written in C and cannot be changed, but it can be inherited from."""

    class Cursor(sqlite3.Cursor):
        execute = _between(point, sqlite3.Cursor.execute)
        executemany = _between(point, sqlite3.Cursor.executemany)

    class Connection(sqlite3.Connection):
        commit = _between(point, sqlite3.Connection.commit)
        rollback = _between(point, sqlite3.Connection.rollback)

        def cursor(self, factory: type[sqlite3.Cursor] = Cursor) -> sqlite3.Cursor:
            return super().cursor(factory)

    return Connection


def _between(point: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def struck(*arguments: Any, **options: Any) -> Any:
        point()
        result = method(*arguments, **options)
        point()
        return result

    return struck


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_points(work: Callable[[Say], None]) -> int:
    """How many points the work passes in a child of its own."""
    passed = []

    def walk(say: Say) -> None:
        with points(passed.append):
            work(lambda *_: None)
        say(len(passed))

    return int(told(walk)[-1][0])


def killed_at(number: int, work: Callable[[Say], None]) -> tuple[int, list[list[Any]]]:
    """How the work ended and what it had said when it was killed at that point."""

    def struck(say: Say) -> None:
        with points(lambda passed: die() if passed == number else None):
            work(say)

    return fork(struck).end()


def spread(total: int, wanted: int, phase: int = 0) -> list[int]:
    """At most `wanted` of the numbers 1…total, evenly spread, the last among them."""
    step = max(1.0, total / wanted)
    return sorted({max(1, round(total - step * index) - phase) for index in range(min(wanted, total))})


def open_accounts(url: str, *names: str, epsilon: float = 8.0) -> None:
    with dpfed.Ledger(url) as ledger:
        for name in names:
            ledger.open(name, epsilon=epsilon, delta=1e-5)


def outcome(verb: Callable[[], object]) -> str:
    """The name of the error that the verb was refused with, or ``"done"``; anything but a PrivacyError is raised."""
    try:
        verb()
    except PrivacyError as error:
        return type(error).__name__
    return "done"


def rows_of(url: str) -> list[dict[str, Any]]:
    """All entries as they are in the database, read without dpfed."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        found = connection.execute(sqlalchemy.text("SELECT * FROM entries ORDER BY seq"))
        return [dict(row) for row in found.mappings()]


def counted(url: str, kind: str, account: str) -> Counter[str]:
    """How many events the entries of that kind moved on the account, per run."""
    found: Counter[str] = Counter()
    for row in rows_of(url):
        if row["kind"] == kind and row["account"] == account:
            found[row["run"]] += row["times"]
    return found


def sqlite_path(url: str) -> Path:
    return Path(str(make_url(url).database))


def settle(path: Path) -> bytes:
    """The whole ledger as one file: the write-ahead log is folded in."""
    connection = sqlite3.connect(path)
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()
    assert not busy
    return path.read_bytes()
