"""What SQLite's log and its index are taken for is what SQLite makes of them."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing

import pytest

from dpfed.ledger.store import log
from dpfed.ledger.store.log import Contents


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(log, "_PATIENCE", 0.05)


@pytest.fixture(params=[512, 2048, 65536])
def database(request, tmp_path):
    """A connection whose log grows, log and index as open files, and what is looked at."""
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute(f"PRAGMA page_size={request.param}")
        link.execute("PRAGMA journal_mode=WAL")
        link.execute("PRAGMA wal_autocheckpoint=0")
        link.execute("CREATE TABLE entries (seq INTEGER PRIMARY KEY, text)")
        link.execute("CREATE TABLE head (seq)")
        link.execute("INSERT INTO head VALUES (0)")
        numbers = os.open(f"{path}-wal", os.O_RDWR), os.open(f"{path}-shm", os.O_RDONLY)
        contents = Contents(str(path))
        contents.note(numbers[1])
        yield path, link, numbers, contents
        for number in numbers:
            os.close(number)


def write(link, times: int = 1) -> None:
    for _ in range(times):
        link.execute("BEGIN IMMEDIATE")
        link.execute("INSERT INTO entries (text) VALUES (hex(randomblob(200)))")
        link.execute("UPDATE head SET seq = seq + 1")
        link.execute("COMMIT")


def are_whole(contents: Contents, numbers: tuple[int, int]) -> bool:
    return contents.is_file_whole(numbers[1]) and contents.is_log_whole(*numbers)


def test_all_that_sqlite_does_leaves_them_whole(database):
    _, link, numbers, contents = database
    luck = random.Random("whole")  # noqa: S311
    for _ in range(60):
        write(link, luck.choice([1, 2, 20]))
        if luck.random() < 0.4:
            way = luck.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
            link.execute(f"PRAGMA wal_checkpoint({way})").fetchall()
        if luck.random() < 0.7:
            assert are_whole(contents, numbers)


def test_a_transaction_that_was_undone_leaves_them_whole(database):
    _, link, numbers, contents = database
    link.execute("PRAGMA cache_size=1")
    write(link)
    link.execute("BEGIN IMMEDIATE")
    for _ in range(500):
        link.execute("INSERT INTO entries (text) VALUES (hex(randomblob(200)))")
    link.execute("ROLLBACK")
    assert are_whole(contents, numbers)
    write(link)
    assert are_whole(contents, numbers)


@pytest.mark.usefixtures("hasty")
def test_a_bit_in_any_frame_since_the_last_look_is_noticed(database):
    _, link, numbers, contents = database
    write(link, 2)
    assert are_whole(contents, numbers)
    write(link, 5)
    luck = random.Random("bits")  # noqa: S311
    number = numbers[0]
    kept = os.fstat(number).st_size
    first = contents._progress.place(contents._progress.frames)
    for _ in range(100):
        place = luck.randrange(first, kept)
        byte = os.pread(number, 1, place)
        os.pwrite(number, bytes([byte[0] ^ (1 << luck.randrange(8))]), place)
        assert not contents.is_log_whole(*numbers)
        os.pwrite(number, byte, place)
    assert are_whole(contents, numbers)


@pytest.mark.usefixtures("hasty")
def test_a_file_that_changes_while_the_log_goes_on_or_was_begun_anew_is_noticed(database):
    path, link, numbers, contents = database
    write(link, 50)
    link.execute("PRAGMA wal_checkpoint").fetchall()
    older = path.read_bytes()
    write(link, 300)
    link.execute("PRAGMA wal_checkpoint").fetchall()
    assert are_whole(contents, numbers)
    write(link)  # begins the log anew
    path.write_bytes(older)
    assert not are_whole(contents, numbers)


def test_an_index_that_says_nothing_is_left_to_sqlite():
    assert log.Progress.of(b"") is None
    assert log.Progress.of(bytes(log.INDEX_BYTES)) is None
    assert log.Progress.of(b"x" + bytes(log.INDEX_BYTES)) is None
