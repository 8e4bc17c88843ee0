"""Backups are whole, are no ledgers, and when restored never let anything be spent twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading

import pytest

import dpfed
from dpfed.errors import InvalidArgument, LedgerCorrupted, LedgerUnavailable
from dpfed.events import Gaussian


def test_a_backup_is_verified_and_has_the_head_of_its_ledger(lost):
    file, copy, head, _ = lost
    with dpfed.Ledger(file) as ledger:
        ledger.require(head)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in copy.parent.iterdir()) == ["ledger.backup", "ledger.db"]


def test_a_backup_that_is_put_in_place_of_a_ledger_is_refused(lost):
    file, copy, _, _ = lost
    shutil.copyfile(copy, file)
    with pytest.raises(LedgerUnavailable, match="is a backup"):
        dpfed.Ledger(file)


def answer_for_all(ledger: dpfed.Ledger) -> None:
    for balance in ledger.accounts():
        ledger.unfreeze(balance.account.name, reason="we know what came after", steward="A. Steward")


def test_data_are_known_again_after_a_restore(lost):
    file, copy, _, _ = lost
    file.unlink()
    with dpfed.Ledger.restore(copy, file) as ledger:
        answer_for_all(ledger)
        with pytest.raises(InvalidArgument, match="icu"):
            ledger.open("second", epsilon=8.0, delta=1e-5, source=b"records")


def test_a_backup_without_an_account_freezes_nothing_and_is_not_restored(tmp_path):
    with dpfed.Ledger(tmp_path / "ledger.db") as ledger:
        ledger.backup(tmp_path / "copy")
    with pytest.raises(InvalidArgument, match="no account"):
        dpfed.Ledger.restore(tmp_path / "copy", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


def test_nothing_is_overwritten(lost, tmp_path):
    file, copy, _, _ = lost
    with dpfed.Ledger(file) as ledger:
        with pytest.raises(InvalidArgument, match="nothing is overwritten"):
            ledger.backup(copy)
        with pytest.raises(InvalidArgument, match="nothing is overwritten"):
            ledger.backup(file)
        with pytest.raises(InvalidArgument, match="cannot be written"):
            ledger.backup(tmp_path / "nowhere" / "copy")
        ledger.verify()
    with pytest.raises(InvalidArgument, match="nothing is overwritten"):
        dpfed.Ledger.restore(copy, file)
    file.unlink()
    (tmp_path / "ledger.db-wal").touch()
    with pytest.raises(InvalidArgument, match=r"ledger\.db-wal is there"):
        dpfed.Ledger.restore(copy, file)
    assert not file.exists()


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "changed", "another database", "missing", "with a log"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(lost, tmp_path, damage):
    _, copy, _, _ = lost
    if damage == "empty":
        copy.write_bytes(b"")
    elif damage == "garbage":
        copy.write_bytes(os.urandom(5000))
    elif damage == "cut":
        copy.write_bytes(copy.read_bytes()[:9000])
    elif damage == "missing":
        copy.unlink()
    elif damage == "with a log":
        (tmp_path / "ledger.backup-wal").touch()
    elif damage == "another database":
        copy.unlink()
        sqlite3.connect(copy).execute("CREATE TABLE t (x)").connection.close()
    else:
        link = sqlite3.connect(copy, isolation_level=None)
        link.execute("DROP TRIGGER entries_no_update")
        link.execute("UPDATE entries SET times = 1 WHERE kind = 'committed'")
        link.close()
    new = tmp_path / "new" / "ledger.db"
    new.parent.mkdir()
    with pytest.raises((LedgerCorrupted, InvalidArgument)):
        dpfed.Ledger.restore(copy, new)
    assert list(new.parent.iterdir()) == []


def test_a_backup_is_made_while_a_run_goes_on(tmp_path):
    file, done = tmp_path / "ledger.db", threading.Event()
    with dpfed.Ledger(file) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)
        held = ledger.reserve({"icu": {Gaussian(1000.0): 100_000}}, run="study")

        def spend() -> None:
            while not done.is_set():
                held.commit({"icu": Gaussian(1000.0)})

        thread = threading.Thread(target=spend)
        thread.start()
        try:
            for number in range(3):
                found = ledger.backup(tmp_path / f"{number}.backup")
                ledger.require(found.head)
        finally:
            done.set()
            thread.join()
        ledger.verify()


def test_a_ledger_in_postgresql_is_left_to_its_own_programs(postgres_url, tmp_path):
    with dpfed.Ledger(postgres_url) as ledger, pytest.raises(LedgerUnavailable, match="pg_dump"):
        ledger.backup(tmp_path / "copy")
    with pytest.raises(LedgerUnavailable, match="pg_restore"):
        dpfed.Ledger.restore(tmp_path / "copy", postgres_url)
