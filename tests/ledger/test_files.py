"""A ledger's files are moved, replaced or deleted under a live run: nothing is acknowledged that is not in them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.events import Gaussian
from dpfed.ledger.files import FilesMoved, LedgerFiles
from worlds import fork, points

MOVED = "moved, replaced or deleted"
PLAN = 100_000


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


def is_acknowledged(place: Place, commit, harm, number: int) -> bool | None:
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


def test_a_quiet_folder_in_which_a_name_changes_is_looked_at_again(place):
    files = LedgerFiles(str(place.file))
    files.trusts_folder = True
    for path in (place.log, place.index):
        path.touch()
    seen = files.look()
    time.sleep(0.1)
    files.require(seen)
    if files._quiet is None:
        pytest.skip("this file system has coarse times, so its folders are never trusted")
    files.require(seen)
    for path in (place.file, place.log, place.index):
        path.rename(place.aside)
        with pytest.raises(FilesMoved):
            files.require(seen)
        place.aside.rename(path)
        files.require(seen)
        time.sleep(0.1)
        files.require(seen)


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


def test_a_file_that_comes_back_is_used_again(place):
    with dpfed.Ledger(place.file) as ledger:
        held = place.reserve(ledger)
        place.folder.rename(place.aside)
        with pytest.raises(LedgerUnavailable, match=MOVED):
            held.commit(STEP)
        place.aside.rename(place.folder)
        held.commit(STEP)
        assert held.committed("icu") == 1
    with dpfed.Ledger(place.file) as again:
        again.verify()


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


@pytest.mark.parametrize("harm", [move_file_away, put_older_in_place, rename_folder, replace_folder])
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
