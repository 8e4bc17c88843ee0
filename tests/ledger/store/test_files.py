"""A ledger's files are moved, replaced or deleted under a live run: nothing is acknowledged that is not in them."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.events import Gaussian
from dpfed.ledger.store import log
from worlds import fork, points

MOVED = "moved, replaced or deleted"
PLAN = 100_000
PROMISE = {"epsilon": 8.0, "delta": 1e-5}


class Place:
    """A ledger in a folder of its own, with an older copy of it beside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self.aside = folder / "aside"
        self.folder.mkdir()
        self.file = self.folder / "ledger.db"
        self.log, self.index = Path(f"{self.file}-wal"), Path(f"{self.file}-shm")
        with dpfed.Ledger(self.file) as ledger:
            ledger.open("icu", epsilon=8.0, delta=1e-5)
        self.older = folder / "older.db"
        shutil.copyfile(self.file, self.older)

    def reserve(self, ledger: dpfed.Ledger, run: str = "study-12"):
        return ledger.reserve({"icu": {Gaussian(1000.0): PLAN}}, run=run)


STEP = {"icu": Gaussian(1000.0)}


def replace_file(place: Place) -> None:
    place.older.replace(place.file)


def delete_file(place: Place) -> None:
    place.file.unlink()


def delete_log(place: Place) -> None:
    place.log.unlink()


def delete_index(place: Place) -> None:
    place.index.unlink()


def delete_log_and_index(place: Place) -> None:
    place.log.unlink()
    place.index.unlink()


def replace_log(place: Place) -> None:
    shutil.copyfile(place.log, place.aside)
    place.aside.replace(place.log)


def delete_everything(place: Place) -> None:
    shutil.rmtree(place.folder)


def rename_folder(place: Place) -> None:
    place.folder.rename(place.aside)


def replace_folder(place: Place) -> None:
    place.folder.rename(place.aside)
    place.folder.mkdir()
    place.older.replace(place.file)


HARMS = [
    replace_file,
    delete_file,
    delete_log,
    delete_index,
    delete_log_and_index,
    replace_log,
    delete_everything,
    rename_folder,
    replace_folder,
]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_after_a_file_was_moved_nothing_is_acknowledged(place, harm):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        harm(place)
        for attempt in (
            lambda: held.commit(STEP),
            lambda: held.commit({"icu": {Gaussian(1000.0): 2}}),
            lambda: held.mark("icu"),
            lambda: held.release(),
            lambda: ledger.reserve(STEP, run="second"),
            lambda: ledger.balance("icu"),
            lambda: ledger.head(),
        ):
            with pytest.raises(LedgerUnavailable, match=MOVED):
                attempt()


def commit_fast(held) -> None:
    held.commit(STEP)


def commit_with_a_mark(held) -> None:
    held.mark("icu", STEP)


def is_acknowledged(place: Place, commit, harm, number: int, prepare=lambda held: None) -> bool | None:
    """Whether a commit was acknowledged although harm came at its n-th point; None if it has fewer points."""
    left = None

    def strike(_: int) -> None:
        nonlocal left
        if left is not None:
            left -= 1
            if left == 0:
                harm(place)

    with points(strike), dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        prepare(held)
        left = number
        try:
            commit(held)
        except LedgerUnavailable:
            return False if left <= 0 else pytest.fail("refused without a reason")
        finally:
            was_struck, left = left <= 0, None
        return True if was_struck else None


@pytest.mark.parametrize("commit", [commit_fast, commit_with_a_mark], ids=lambda commit: commit.__name__)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_a_commit_in_the_middle_of_which_a_file_is_moved_is_not_acknowledged(tmp_path, harm, commit):
    found = []
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(is_acknowledged(Place(folder), commit, harm, number))
        if found[-1] is None:
            break
    assert len(found) > 2
    assert set(found[:-1]) == {False}


def test_a_budget_is_not_spent_twice_when_a_backup_is_put_in_place_of_a_live_ledger(place):
    with dpfed.Ledger(place.file) as live:
        held = place.reserve(live)
        place.older.replace(place.file)
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)
        for path in (place.log, place.index):
            path.unlink()
        with dpfed.Ledger(place.file) as second:
            place.reserve(second, "second").commit(STEP)
            second.verify()
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)


def test_a_ledger_that_is_reached_by_a_link_notices_when_the_link_leads_elsewhere(place, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(place.file)
    with dpfed.Ledger(link) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        link.unlink()
        link.symlink_to(place.older)
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)


def test_a_process_that_changes_its_directory_keeps_its_ledger(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place.folder)
    with dpfed.Ledger("sqlite:///ledger.db") as ledger:
        held = place.reserve(ledger)
        monkeypatch.chdir(tmp_path)
        held.commit(STEP)
        ledger.close()
        held.commit(STEP)
        assert ledger.head().sequence == 5
    assert not (tmp_path / "ledger.db").exists()


def test_a_file_that_is_gone_is_not_made_anew_by_who_had_it(place):
    ledger = dpfed.Ledger(place.file)
    ledger.close()
    place.file.unlink()
    with pytest.raises(LedgerUnavailable, match=MOVED):
        ledger.open("other", epsilon=1.0, delta=1e-5)
    assert not place.file.exists()


def away_and_back(*paths: Path):
    """Harm that moves the paths away, and puts them back when something else was there."""

    def harm(place: Place, meanwhile) -> None:
        moved = [(path, path.with_name(f"{path.name}.away")) for path in (path(place) for path in paths)]
        for path, aside in moved:
            path.rename(aside)
        meanwhile()
        for path, aside in moved:
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            aside.rename(path)

    return harm


AWAY = {
    "file": away_and_back(lambda place: place.file),
    "log": away_and_back(lambda place: place.log),
    "index": away_and_back(lambda place: place.index),
    "all": away_and_back(lambda place: place.file, lambda place: place.log, lambda place: place.index),
    "folder": away_and_back(lambda place: place.folder),
    "folder above": away_and_back(lambda place: place.folder.parent),
}


@pytest.mark.parametrize("which", AWAY)
def test_files_that_were_away_for_a_while_are_used_no_more_by_who_has_missed_them(tmp_path, which):
    (tmp_path / "above").mkdir()
    place = Place(tmp_path / "above")
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        AWAY[which](place, lambda: None)
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match=MOVED):
                held.commit(STEP)
            with pytest.raises(LedgerUnavailable, match=MOVED):
                ledger.balance("icu")
    with dpfed.Ledger(place.file) as again:
        again.verify()
        resumed = again.resume("study-12")
        assert resumed.committed("icu") == 1
        resumed.commit(STEP)


def test_a_run_notices_that_another_spent_on_what_was_in_its_ledgers_place(place):
    with dpfed.Ledger(place.file) as live:
        held = place.reserve(live)
        held.commit(STEP)

        def spend() -> None:
            place.older.replace(place.file)
            child = fork(lambda say: place.reserve(dpfed.Ledger(place.file), "second").commit(STEP))
            assert child.end()[0] == 0

        AWAY["all"](place, spend)
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)


def test_what_others_do_beside_the_ledger_and_to_it_as_a_ledger_disturbs_nobody(place):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        (place.folder / "other").touch()
        (place.folder / "other").rename(place.folder / "another")
        place.file.chmod(0o640)
        shutil.copyfile(place.file, place.aside)
        held.commit(STEP)
        child = fork(lambda say: [place.reserve(dpfed.Ledger(place.file), f"r{n}").commit(STEP) for n in range(3)])
        assert child.end()[0] == 0
        with sqlite3.connect(place.file, isolation_level=None) as other:
            for way in ("PASSIVE", "FULL", "RESTART", "TRUNCATE"):
                held.commit(STEP)
                other.execute(f"PRAGMA wal_checkpoint({way})").fetchall()
        other.close()
        held.commit(STEP)
        ledger.verify()
        assert held.committed("icu") == 7


def test_a_number_that_sqlite_has_closed_and_others_use_disturbs_nobody(place):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        held.commit(STEP)
        files = ledger._store.database._files
        read, write = os.pipe()
        other = os.open(place.older, os.O_RDONLY)
        for wrong in ((read, write), (other, other), (987, 988)):
            files._numbers = wrong
            for _ in range(3):
                held.commit(STEP)
        for number in (read, write, other):
            os.close(number)
        assert held.committed("icu") == 10


def overwrite(path: Path, content: bytes) -> None:
    """Write over the file as cp does: it stays the same file."""
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)


def cut(path: Path, part: float) -> None:
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))


# What is done to a file in place; "older" is as it was some commits before.
IN_PLACE = {
    "older file": lambda place, older: overwrite(place.file, older[0]),
    "older log": lambda place, older: overwrite(place.log, older[1]),
    "older file and log": lambda place, older: [overwrite(place.file, older[0]), overwrite(place.log, older[1])],
    "empty file": lambda place, older: cut(place.file, 0.0),
    "half a file": lambda place, older: cut(place.file, 0.5),
    "empty log": lambda place, older: cut(place.log, 0.0),
    "half a log": lambda place, older: cut(place.log, 0.5),
    "most of a log": lambda place, older: cut(place.log, 0.999),
    "garbage in the file": lambda place, older: overwrite(place.file, os.urandom(place.file.stat().st_size)),
    "garbage in the log": lambda place, older: overwrite(place.log, os.urandom(place.log.stat().st_size)),
}


def older_of(place: Place, held, many: int) -> tuple[bytes, bytes]:
    """The file and the log, and after that so many commits."""
    held.commit(STEP)
    older = place.file.read_bytes(), place.log.read_bytes()
    for _ in range(many):
        held.commit(STEP)
    return older


# A log that was begun anew is shorter than its file, whose end nobody needs.
LATER = [harm for harm in IN_PLACE if "of a log" not in harm]


@pytest.fixture
def hasty(monkeypatch):
    """Nobody waits for another process that takes the log into the file: there is none."""
    monkeypatch.setattr(log, "_PATIENCE", 0.1)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("harm", "many"), [*((harm, 3) for harm in IN_PLACE), *((harm, 1500) for harm in LATER)])
def test_a_file_that_is_written_over_in_place_is_noticed(place, harm, many):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        older = older_of(place, held, many)
        IN_PLACE[harm](place, older)
        for attempt in (lambda: held.commit(STEP), lambda: held.mark("icu"), lambda: ledger.open("b", **PROMISE)):
            with pytest.raises(LedgerUnavailable, match=MOVED):
                attempt()


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("part", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("which", ["file", "log"])
def test_a_file_that_is_cut_short_by_its_name_alone_is_noticed(place, which, part):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        for _ in range(4):
            held.commit(STEP)
        path = place.file if which == "file" else place.log
        os.truncate(path, int(path.stat().st_size * part))  # opens nothing
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("commit", [commit_fast, commit_with_a_mark], ids=lambda commit: commit.__name__)
@pytest.mark.parametrize("harm", IN_PLACE)
def test_a_commit_in_the_middle_of_which_a_file_is_written_over_is_not_acknowledged(tmp_path, harm, commit):
    found = []
    for number in range(1, 100):
        folder = tmp_path / str(number)
        folder.mkdir()
        place, older = Place(folder), []

        def strike(place: Place, older=older) -> None:
            IN_PLACE[harm](place, older[0])

        def prepare(held, place=place, older=older) -> None:
            older.append(older_of(place, held, 3))

        found.append(is_acknowledged(place, commit, strike, number, prepare))
        if found[-1] is None:
            break
    assert len(found) > 2
    assert set(found[:-1]) == {False}


@pytest.mark.usefixtures("hasty")
def test_where_nobody_can_watch_the_files_they_are_looked_at_each_time(place, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(place.file)
    for harm in ("older log", "half a log", "older file"):
        with dpfed.Ledger(link) as ledger:
            held = place.reserve(ledger, harm.replace(" ", "-"))
            older = older_of(place, held, 3)
            kept = place.file.read_bytes(), place.log.read_bytes()
            IN_PLACE[harm](place, older)
            with pytest.raises(LedgerUnavailable, match=MOVED):
                held.commit(STEP)
            overwrite(place.file, kept[0])
            overwrite(place.log, kept[1])


VICTIM = """
import sys
import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.events import Gaussian

ledger = dpfed.Ledger(sys.argv[1])
held = ledger.reserve({"icu": {Gaussian(1000.0): 9}}, run="victim")
held.commit({"icu": Gaussian(1000.0)})
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "try":
    try:
        held.commit({"icu": Gaussian(1000.0)})
    except LedgerUnavailable:
        print("refused", flush=True)
if sys.argv[2] != "exit":
    ledger.close()
"""


@pytest.mark.parametrize("way", ["try", "close", "exit"])
def test_who_lost_its_log_does_not_delete_the_log_of_the_next(place, way):
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, f"sqlite:///{place.file}", way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdout.readline() == "ready\n"
    delete_log_and_index(place)

    def spend(say) -> None:
        ledger = dpfed.Ledger(place.file)
        held = place.reserve(ledger, "next")
        for _ in range(5):
            held.commit(STEP)
            say("acknowledged")
        while True:
            time.sleep(1.0)

    child = fork(spend)
    while child.heard.count(b"\n") < 5:
        child.hear()
    child.kill()
    _, facts = child.end()
    out, _ = victim.communicate("go\n")
    assert victim.returncode == 0
    assert out == ("refused\n" if way == "try" else "")
    with dpfed.Ledger(place.file) as ledger:
        ledger.verify()
        assert len(facts) == 5 == ledger.resume("next").committed("icu")


def put_back_together(place: Place) -> Path:
    """The ledger that the run had open, with its log, wherever it is now."""
    if place.aside.is_dir():
        return place.aside / "ledger.db"
    if place.aside.exists():
        for path in (place.log, place.index):
            if path.exists():
                path.rename(Path(str(path).replace(str(place.file), str(place.aside))))
        return place.aside
    return place.file


def move_file_away(place: Place) -> None:
    place.file.rename(place.aside)


def put_older_in_place(place: Place) -> None:
    os.link(place.file, place.aside)
    place.older.replace(place.file)


def move_all_away_and_back(place: Place) -> None:
    AWAY["all"](place, lambda: None)


def move_folder_away_and_back(place: Place) -> None:
    AWAY["folder"](place, lambda: None)


SWAPS = [
    move_file_away,
    put_older_in_place,
    rename_folder,
    replace_folder,
    move_all_away_and_back,
    move_folder_away_and_back,
]


@pytest.mark.parametrize("harm", SWAPS)
def test_kill_9_while_the_file_is_swapped_loses_no_acknowledged_commit(tmp_path, harm):
    luck = random.Random(harm.__name__)  # noqa: S311 - when to strike
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = Place(folder)

        def spend(say, place=place) -> None:
            held = place.reserve(dpfed.Ledger(place.file))
            while True:
                began = time.monotonic()
                held.commit(STEP)
                say(began)

        child = fork(spend)
        child.hear()
        time.sleep(luck.uniform(0.0, 0.05))
        harm(place)
        swapped = time.monotonic()
        time.sleep(luck.choice([0.0, 0.002, 0.05]))
        child.kill()
        _, facts = child.end()
        acknowledged = [fact[0] for fact in facts if fact[0] != "error"]
        assert all(began < swapped for began in acknowledged), "acknowledged after the swap"
        with dpfed.Ledger(put_back_together(place)) as ledger:
            ledger.verify()
            spent = ledger.resume("study-12").committed("icu")
        assert len(acknowledged) <= spent <= len(acknowledged) + 1


@pytest.mark.parametrize("harm", [delete_file, delete_log, delete_index, delete_log_and_index, delete_everything])
def test_nothing_is_acknowledged_after_a_file_was_deleted_under_a_busy_run(tmp_path, harm):
    place = Place(tmp_path)

    def spend(say) -> None:
        held = place.reserve(dpfed.Ledger(place.file))
        while True:
            began = time.monotonic()
            held.commit(STEP)
            say(began)

    child = fork(spend)
    child.hear()
    harm(place)
    deleted = time.monotonic()
    _, facts = child.end()
    assert facts[-1][:2] == ["error", "LedgerUnavailable"]
    assert all(fact[0] < deleted for fact in facts[:-1])
