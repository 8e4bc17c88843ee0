"""A fresh ledger's address for each test: a real SQLite file and a database of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres import Cluster, NoPostgres


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
def database(postgres: Cluster) -> Iterator[str]:
    """The name of an empty database."""
    name = postgres.new_database()
    yield name
    postgres.drop(name)


@pytest.fixture
def postgres_url(postgres: Cluster, database: str) -> str:
    return postgres.url(database)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Where a new ledger may be: the test runs once on each database."""
    return request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
