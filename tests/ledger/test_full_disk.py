"""On a full disk a commit is refused or is there: nothing is acknowledged that a reopened ledger does not have."""

from __future__ import annotations

import contextlib
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpfed
from dpfed.errors import LedgerUnavailable
from dpfed.events import Gaussian
from postgres import Cluster, NoPostgres
from worlds import Say, fork, told

STEP = {"icu": Gaussian(1000.0)}
MEGABYTE = 2**20
FULL = "the disk is full or failing"


class SmallDisk:
    """A folder on which little fits: a file system of its own where this user may mount one, else a limit to files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.is_mounted = self._mount("size=1m")

    def limit(self) -> None:
        """Limit the files of this process, where there is no small file system."""
        if not self.is_mounted:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (MEGABYTE, most))

    def make_room(self) -> None:
        """Let more fit, also for this process."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        if self.is_mounted:
            assert self._mount("remount,size=64m")

    def remove(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    def _mount(self, options: str) -> bool:
        command = ["mount", "-t", "tmpfs", "-o", options, "dpfed-test", str(self.folder)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "small")
    yield made
    made.remove()


@pytest.fixture
def limited_disk(tmp_path, monkeypatch) -> SmallDisk:
    """What a user without rights to mount has."""
    monkeypatch.setattr(SmallDisk, "_mount", lambda *_: False)
    return SmallDisk(tmp_path / "limited")


def spend(url: str, say: Say) -> None:
    """Commit for ever, however often it is refused."""
    with dpfed.Ledger(url) as ledger:
        held = ledger.reserve({"icu": {Gaussian(1000.0): 100_000}}, run="study")
        while True:
            try:
                held.commit(STEP)
            except LedgerUnavailable as error:
                say("refused", str(error))
            else:
                say("acknowledged")


def begin(url: str) -> None:
    with dpfed.Ledger(url) as ledger:
        ledger.open("icu", epsilon=8.0, delta=1e-5)


def require_all_there(url: str, facts: list[list[str]]) -> None:
    """Every commit that was acknowledged is in the ledger, which is sound and goes on."""
    acknowledged = [fact for fact in facts if fact[0] == "acknowledged"]
    with dpfed.Ledger(url) as ledger:
        ledger.verify()
        held = ledger.resume("study")
        assert held.committed("icu") >= len(acknowledged) > 100
        before = held.committed("icu")
        held.commit(STEP)
        assert held.committed("icu") == before + 1


@contextlib.contextmanager
def killed_when_full(url: str, luck: random.Random, prepare) -> Iterator[list[list[str]]]:
    """What a process was told that is killed some time after its disk was full."""

    def work(say: Say) -> None:
        prepare()
        spend(url, say)

    child = fork(work)
    while b"refused" not in child.heard:
        assert b"error" not in child.heard, child.heard[-2000:]
        child.hear()
    time.sleep(luck.uniform(0.0, 0.05))
    child.kill()
    _, facts = child.end()
    refusals = [fact[1] for fact in facts if fact[0] == "refused"]
    assert all(FULL in refusal for refusal in refusals), refusals
    yield facts


@pytest.mark.parametrize("kind", ["disk", "limited_disk"])
def test_kill_9_on_a_full_disk_loses_no_acknowledged_commit_of_a_sqlite_ledger(request, kind):
    disk = request.getfixturevalue(kind)
    url = f"sqlite:///{disk.folder / 'ledger.db'}"
    begin(url)
    with killed_when_full(url, random.Random(kind), disk.limit) as facts:  # noqa: S311 - when to strike
        disk.make_room()
        require_all_there(url, facts)


def test_a_process_that_was_refused_on_a_full_disk_goes_on_when_there_is_room(disk):
    url = f"sqlite:///{disk.folder / 'ledger.db'}"
    begin(url)

    def work(say: Say) -> None:
        disk.limit()
        ledger = dpfed.Ledger(url)
        held, acknowledged = ledger.reserve({"icu": {Gaussian(1000.0): 100_000}}, run="study"), 0
        with contextlib.suppress(LedgerUnavailable):
            while True:
                held.commit(STEP)
                acknowledged += 1
        disk.make_room()
        before = held.committed("icu")
        held.commit(STEP)
        ledger.verify()
        say(acknowledged, before, held.committed("icu"))

    ((acknowledged, before, after),) = told(work)
    assert 100 < acknowledged <= before == after - 1


@pytest.fixture
def small_cluster() -> Iterator[Cluster]:
    """A server whose own files have one megabyte, so that no other has more when files are limited."""
    try:
        cluster = Cluster("--wal-segsize=1")
    except NoPostgres as error:
        pytest.skip(str(error))
    yield cluster
    cluster.remove()


def test_kill_9_on_a_full_disk_loses_no_acknowledged_commit_of_a_ledger_in_postgresql(small_cluster):
    url = small_cluster.url(small_cluster.new_database())
    begin(url)
    small_cluster.stop()
    small_cluster.start(largest_file=MEGABYTE)
    with killed_when_full(url, random.Random(url), lambda: None) as facts:  # noqa: S311 - when to strike
        with dpfed.Ledger(url) as ledger:
            ledger.verify()
        small_cluster.stop()  # as in a crash
        small_cluster.start()
        require_all_there(url, facts)
