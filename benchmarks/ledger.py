"""What a durable charge costs, against the least it could cost: one insert of the same bytes and its fsync.

    python benchmarks/ledger.py [--json] [--quick]

A commit may take 1.5 times a bare insert of the row it writes, into a table of that row alone, on the same
database with the same durability; so may the very first commits of a new ledger, whose log still grows, against
the first inserts into a new table. The other rows have limits: 1,000 accounts in one commit within 50 ms, all of
10⁵ entries verified within 60 s, and a commit after 10⁵ entries no dearer than one after a hundred.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
from bench import Contestant, Row, Task

sys.path.append(str(bench.HERE.parent / "tests"))

COMMITS = 20
FIRST = 100
OURS, BARE = "dpfed ledger", "bare insert"
POSTGRESQL = "DPFED_BENCH_POSTGRESQL"
ENTRIES = 100_000
ACCOUNTS = 1_000


def load_ledger() -> dict[str, Task]:
    folder = tempfile.mkdtemp()
    tasks = {
        "commit/SQLite": committing(f"sqlite:///{folder}/short.db"),
        "new/SQLite": New(lambda number: committing(f"sqlite:///{folder}/{number}.db", FIRST)),
    }
    if POSTGRESQL in os.environ:
        tasks["commit/PostgreSQL"] = committing(os.environ[POSTGRESQL])
    long = Long(f"sqlite:///{folder}/long.db")
    return tasks | {"1000 accounts": long.commit_all, "verify": long.verify, "commit/10⁵": long.commit_one}


class New:
    """A task on a new database each time; some are made before the clock starts."""

    def __init__(self, make: Callable[[int], Task]) -> None:
        self._make = make
        self._made = 0
        self._waiting: list[Task] = []

    def ready(self) -> None:
        while len(self._waiting) < 6:
            self._made += 1
            self._waiting.append(self._make(self._made))

    def __call__(self, nudge: float) -> float:
        if not self._waiting:
            self.ready()  # slow, but the minimum forgives it
        return self._waiting.pop()(nudge)


def committing(url: str, times: int = COMMITS) -> Task:
    """A task of so many commits, one after another."""
    reservation, event = reserved(url, f"bench-{os.getpid()}")
    return repeating(lambda: reservation.commit({reservation.accounts[0]: event}), times)


def reserved(url: str, name: str) -> tuple[Any, Any]:
    """A reservation that lasts for as many commits as the benchmark likes, and its event."""
    from dpfed import Ledger
    from dpfed import events as ev

    ledger, event = Ledger(url), ev.PoissonSampled(ev.Gaussian(2.0), 1e-5)
    ledger.open(name, epsilon=8.0, delta=1e-5)
    return ledger.reserve({name: {event: 1_000_000}}, run=name), event


class Long:
    """A ledger of a thousand accounts, filled with 10⁵ entries when a task first needs them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._ledger: Any = None

    def commit_all(self, nudge: float) -> float:
        self._open()
        self._reservation.commit(self._everyone)
        return 0.0

    def verify(self, nudge: float) -> float:
        self._fill()
        return float(self._ledger.verify().rows)

    def commit_one(self, nudge: float) -> float:
        self._fill()
        for _ in range(COMMITS):
            self._reservation.commit({"a0": self._event})
        return 0.0

    def _open(self) -> None:
        if self._ledger is not None:
            return
        from dpfed import Ledger
        from dpfed import events as ev

        self._ledger, self._event = Ledger(self.url), ev.PoissonSampled(ev.Gaussian(2.0), 1e-5)
        names = [f"a{number}" for number in range(ACCOUNTS)]
        for name in names:
            self._ledger.open(name, epsilon=8.0, delta=1e-5)
        self._everyone = dict.fromkeys(names, self._event)
        self._reservation = self._ledger.reserve({name: {self._event: 100_000} for name in names}, run="long")

    def _fill(self) -> None:
        self._open()
        while self._ledger.head().sequence < ENTRIES:
            self._reservation.commit(self._everyone)


def load_bare() -> dict[str, Task]:
    folder = tempfile.mkdtemp()
    row = a_row(f"sqlite:///{folder}/sample.db")
    tasks = {
        "commit/SQLite": bare_sqlite(f"{folder}/bare.db", row),
        "new/SQLite": New(lambda number: bare_sqlite(f"{folder}/{number}.db", row, FIRST)),
    }
    if POSTGRESQL in os.environ:
        tasks["commit/PostgreSQL"] = bare_postgresql(os.environ[POSTGRESQL], row)
    return tasks


def a_row(url: str) -> tuple[Any, ...]:
    """The values of an entry that a commit writes."""
    from dpfed import Ledger
    from dpfed.ledger.journal import rows

    reservation, event = reserved(url, "sample")
    reservation.commit({"sample": event})
    ledger = Ledger(url)
    with ledger._store.reading() as link:
        return tuple(list(rows(link))[-1])


def bare_sqlite(path: str, row: tuple[Any, ...], times: int = COMMITS) -> Task:
    import sqlite3

    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    others = ", ".join(f"c{number}" for number in range(1, len(row)))
    database.execute(f"CREATE TABLE bare (seq INTEGER PRIMARY KEY, {others})")
    insert = f"INSERT INTO bare VALUES (NULL{', ?' * (len(row) - 1)})"  # noqa: S608 - no input in it
    return repeating(lambda: run_all(database, "BEGIN IMMEDIATE", (insert, row[1:]), "COMMIT"), times)


def run_all(database: Any, *statements: Any) -> None:
    for statement in statements:
        database.execute(*(statement if isinstance(statement, tuple) else (statement,)))


def bare_postgresql(url: str, row: tuple[Any, ...]) -> Task:
    import psycopg

    database = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
    others = ", ".join(f"c{number} text" for number in range(1, len(row)))
    database.execute(f"CREATE TABLE bare (seq bigserial PRIMARY KEY, {others})")
    insert = f"INSERT INTO bare VALUES (DEFAULT{', %s' * (len(row) - 1)})"  # noqa: S608 - no input in it
    texts = [None if value is None else str(value) for value in row[1:]]
    return repeating(lambda: database.execute(insert, texts), COMMITS)


def repeating(work: Callable[[], Any], times: int) -> Task:
    def task(_: float) -> float:
        for _ in range(times):
            work()
        return 0.0

    return task


CONTESTANTS = [Contestant(OURS, load_ledger, slow=frozenset({"verify", "commit/10⁵"})), Contestant(BARE, load_bare)]


def rows(quick: bool) -> list[Row]:
    with_server = start_postgresql()
    try:
        tasks = ["commit/SQLite", "commit/PostgreSQL", "new/SQLite", "1000 accounts", "verify", "commit/10⁵"]
        found = bench.measure(Path(__file__), CONTESTANTS, tasks, quick=quick, repeats=60)
    finally:
        with_server()
    ours = {task: found.get((OURS, task)) for task in tasks}
    compared = [
        bench.faster(
            f"{COMMITS} commits on {name}: seconds, bare inserts with fsync",
            ours[f"commit/{name}"],
            found.get((BARE, f"commit/{name}")),
            1 / 1.5,
        )
        for name in ("SQLite", "PostgreSQL")
    ]
    return [
        *compared,
        bench.faster(
            f"the first {FIRST} commits on a new SQLite ledger: seconds, the first inserts into a new table",
            ours["new/SQLite"],
            found.get((BARE, "new/SQLite")),
            1 / 1.5,
        ),
        bench.within("1,000 accounts in one commit: seconds", ours["1000 accounts"], 0.05),
        bench.within("10⁵ entries verified: seconds", ours["verify"], 60.0),
        bench.faster(
            f"{COMMITS} commits after 10⁵ entries: seconds, on a new ledger",
            ours["commit/10⁵"],
            ours["commit/SQLite"],
            0.8,
        ),
    ]


def start_postgresql() -> Callable[[], None]:
    """Start a throw-away server and name it to the workers; returns how to stop it. Without binaries: nothing."""
    import postgres

    try:
        cluster = postgres.Cluster()
    except postgres.NoPostgres:
        return lambda: None
    os.environ[POSTGRESQL] = cluster.url(cluster.new_database())
    return cluster.remove


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
