"""Connections: durable on both databases, and patient with a file that another process is just making."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy as sa

import dpfed
from dpfed.ledger.store import connecting
from dpfed.ledger.store.database import Database


def test_the_shortest_wait_is_not_taken_for_no_limit(postgres_url):
    store = Database(postgres_url, wait=1e-4)
    with store.reading() as link:
        assert link.execute(sa.text("SHOW lock_timeout")).scalar() == "1ms"
    store.close()


def test_sqlite_writes_through_to_the_disk(sqlite_url):
    with dpfed.Ledger(sqlite_url) as ledger, ledger._store.reading() as link:
        assert link.execute(sa.text("PRAGMA journal_mode")).scalar() == "wal"
        assert link.execute(sa.text("PRAGMA synchronous")).scalar() == 2


def test_postgresql_commits_to_the_disk(postgres_url):
    with dpfed.Ledger(postgres_url) as ledger, ledger._store.reading() as link:
        assert link.execute(sa.text("SHOW synchronous_commit")).scalar() == "on"


class Refusing:
    """A connection and its cursor, which complains so many times about the switch to WAL mode."""

    def __init__(self, complaint: str, times: int) -> None:
        self.complaint = complaint
        self.times = times
        self.asked = 0

    def cursor(self) -> Refusing:
        return self

    def execute(self, statement: str) -> None:
        if "journal_mode" in statement:
            self.asked += 1
            if self.asked <= self.times:
                raise sqlite3.OperationalError(self.complaint)

    def close(self) -> None:
        pass


def test_a_new_file_that_another_process_makes_a_ledger_of_is_waited_for():
    connection = Refusing("database is locked", times=3)
    connecting._make_durable(connection, wait=60.0)
    assert connection.asked == 4


@pytest.mark.parametrize(("complaint", "wait"), [("database is locked", 0.05), ("disk I/O error", 60.0)])
def test_the_wait_for_a_new_file_ends_with_the_databases_own_complaint(complaint, wait):
    with pytest.raises(sqlite3.OperationalError, match=complaint):
        connecting._make_durable(Refusing(complaint, times=10**9), wait)
