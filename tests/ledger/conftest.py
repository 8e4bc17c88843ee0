"""Addresses of fresh ledgers: real SQLite files and databases of a real PostgreSQL.

A test that asks for ``url`` or ``new_url`` runs once on each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

import dpfed
from dpfed.events import Gaussian
from icu import PROMISE
from postgres import Cluster, NoPostgres
from worlds import settle, sqlite_path

NewUrl = Callable[[], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One cluster per test process, started by the first test that asks for it."""
    try:
        cluster = Cluster()
    except NoPostgres as error:
        pytest.skip(str(error))
    yield cluster
    cluster.remove()


@pytest.fixture
def new_database(postgres: Cluster) -> Iterator[Callable[..., str]]:
    """Makes an empty database, or a copy of one that nobody is connected to, and gives its name."""
    with ExitStack() as made:

        def make(template: str | None = None) -> str:
            name = postgres.copy(template) if template else postgres.new_database()
            made.callback(postgres.give_back, name)
            return name

        yield make


@pytest.fixture
def new_postgres_url(postgres: Cluster, new_database: Callable[..., str]) -> NewUrl:
    return lambda: postgres.url(new_database())


@pytest.fixture
def new_sqlite_url(tmp_path: Path) -> NewUrl:
    numbers = count(1)
    return lambda: f"sqlite:///{tmp_path / f'ledger-{next(numbers)}.db'}"


@pytest.fixture
def sqlite_url(new_sqlite_url: NewUrl) -> str:
    return new_sqlite_url()


@pytest.fixture
def postgres_url(new_postgres_url: NewUrl) -> str:
    return new_postgres_url()


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest) -> NewUrl:
    """Gives the address of another new ledger each time, on one kind of database."""
    found: NewUrl = request.getfixturevalue("new_sqlite_url" if request.param == "sqlite" else "new_postgres_url")
    return found


@pytest.fixture
def url(new_url: NewUrl) -> str:
    """Where a new ledger may be."""
    return new_url()


@pytest.fixture
def copy_of(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Copies a ledger that nobody has open, behind its back, and gives the address of the copy."""

    def copy(url: str) -> str:
        if url.startswith("sqlite"):
            other: str = request.getfixturevalue("new_sqlite_url")()
            sqlite_path(other).write_bytes(settle(sqlite_path(url)))
            return other
        name = make_url(url).database
        cluster: Cluster = request.getfixturevalue("postgres")
        return cluster.url(request.getfixturevalue("new_database")(name))

    return copy


@pytest.fixture
def ledger(sqlite_url: str) -> Iterator[dpfed.Ledger]:
    """A ledger with one account."""
    with dpfed.Ledger(sqlite_url) as opened:
        opened.open("icu", **PROMISE)
        yield opened


@pytest.fixture
def lost(tmp_path):
    """A ledger with a run under way, its backup, and what was spent after the backup was made."""
    step = Gaussian(40.0)
    file, copy = tmp_path / "ledger.db", tmp_path / "ledger.backup"
    with dpfed.Ledger(file) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5, source=b"records")
        ledger.open("ward", epsilon=4.0, delta=1e-5, source=b"records", parent="icu")
        ledger.open("old", epsilon=4.0, delta=1e-5)
        ledger.freeze("old", reason="audit")
        held = ledger.reserve({"ward": {step: 10}, "icu": {step: 5}}, run="study")
        held.commit({"ward": {step: 2}})
        head = ledger.backup(copy).head
        held.commit({"ward": {step: 3}, "icu": step})
        spent = {name: ledger.balance(name).spent for name in ("icu", "ward")}
    return file, copy, head, spent
