"""Two processes never run in one directory; a process that ends, by whatever means, leaves no lock behind."""

from __future__ import annotations

import gc
import os
import shutil
import time

import pytest

from dpfed.errors import LeaseHeld
from dpfed.federated.state.run_lock import hold
from studies import Study
from worlds import fork, told


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in sorted((folder / "run").rglob("*"))}


@pytest.mark.parametrize("style", ["none", "sample"])
def test_a_run_that_another_process_runs_is_refused_and_goes_on_when_that_has_ended(tmp_path, style):
    def work(say) -> None:
        federation = Study(tmp_path, style).federation()
        next(federation)
        say("running")
        time.sleep(3600)

    child = fork(work)
    child.hear()
    try:
        before = contents(tmp_path)
        with pytest.raises(LeaseHeld, match="another process is running"):
            Study(tmp_path, style).federation()
        assert contents(tmp_path) == before
    finally:
        child.kill()
        child.end()
    assert [result.number for result in Study(tmp_path, style).federation()] == [2, 3, 4]


def test_a_process_may_open_its_own_run_again(open_study):
    study = open_study("none")
    first = study.federation()
    next(first)
    assert next(study.federation()).number == 2


def test_the_lock_ends_with_whoever_holds_it(open_study, tmp_path):
    federation = open_study("none").federation()

    def refused(say) -> None:
        try:
            hold(tmp_path / "run")
        except LeaseHeld:
            say("refused")

    assert told(refused) == [["refused"]]
    del federation
    gc.collect()
    assert told(refused) == []


def test_a_directory_that_was_put_back_is_locked_anew(open_study, tmp_path):
    study = open_study("none")
    first = study.federation()
    next(first)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    os.rename(tmp_path / "copy", tmp_path / "run")  # noqa: PTH104 - the same name, another directory
    assert hold(tmp_path / "run") is not first._lock
    assert next(study.federation()).number == 2
