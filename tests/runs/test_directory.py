"""A run's directory survives a crash at any point, keeps each round once and its owner's view to the owner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import pytest

from begun_runs import confirm, plan
from dpfed.errors import InvalidArgument
from dpfed.runs import rounds as round_files
from dpfed.runs.directory import OWNER_ONLY, RunDirectory, write_durably


def test_the_plan_is_written_once_and_another_one_is_refused(run):
    run.begin(plan())
    with pytest.raises(InvalidArgument, match="another plan"):
        RunDirectory(run.path).begin(plan(rounds=4))
    assert RunDirectory(run.path).plan == plan()


def test_records_are_kept_in_order_and_a_repeated_round_counts_once(run):
    for record in ({"round": 1, "head": "1:a"}, {"round": 2, "head": "2:b"}, {"round": 2, "head": "3:c"}):
        run.append(record)
    confirm(run, 2)
    assert run.rounds() == [{"round": 1, "head": "1:a"}, {"round": 2, "head": "3:c"}]


def test_a_round_that_is_done_again_from_an_old_copy_takes_the_place_of_all_that_followed(run):
    for number in (1, 2, 3, 4, 3):
        run.append({"round": number})
    confirm(run, 3)
    assert [record["round"] for record in run.rounds()] == [1, 2, 3]


def test_following_a_run_yields_each_round_once_until_the_last(run):
    run.append({"round": 1})
    confirm(run, 1)
    records = run.follow(poll_seconds=0.001)
    assert next(records) == {"round": 1}

    def write() -> None:
        for numbers in ((2, 2), (3,)):
            for number in numbers:
                run.append({"round": number})
            confirm(run, numbers[0])

    writer = threading.Thread(target=write)
    writer.start()
    assert list(records) == [{"round": 2}, {"round": 3}]
    writer.join()


def test_a_writer_killed_at_any_point_leaves_whole_files_only(run):
    path = run.path / "whole"
    for delay in (0.02, 0.03, 0.05, 0.08):
        child = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(run, path))
        child.start()
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert not path.exists() or len(set(path.read_bytes())) == 1
        assert not path.exists() or path.stat().st_size == 50_000
        lines = round_files.read(run.path / "rounds.jsonl")
        assert all(set(record) == {"round", "head"} for record, _ in lines)


def write_for_ever(run: RunDirectory, path) -> None:
    number = 0
    while True:
        number += 1
        write_durably(path, bytes([number % 7]) * 50_000)
        run.append({"round": number % 7, "head": "1:a" * 50})


def test_what_is_for_the_owner_is_readable_by_nobody_else(run):
    before = os.umask(0)
    try:
        run.append_owner({"round": 1})
        write_durably(run.folder("owner") / "secret", b"x", mode=OWNER_ONLY)
    finally:
        os.umask(before)
    assert (run.path / "owner.jsonl").stat().st_mode & 0o777 == 0o600
    assert (run.path / "owner").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (run.path / "owner").iterdir()} == {0o600}


def test_a_new_directory_is_listed_by_its_owner_alone(tmp_path):
    # The length of a file for the owner tells how many took part, whatever its own mode.
    assert RunDirectory(tmp_path / "runs" / "study").path.stat().st_mode & 0o777 == 0o700


def test_a_directory_without_a_run_says_so(tmp_path):
    with pytest.raises(InvalidArgument, match="holds no run"):
        _ = RunDirectory(tmp_path).plan


def test_the_status_is_that_of_the_end_once_there_is_one(run):
    assert run.status == "running"
    run.append({"round": 1, "status": "running"})
    confirm(run, 1)
    assert run.status == "running"
    run.end("budget_exhausted")
    confirm(run, 1, has_ended=True)
    assert run.status == "budget_exhausted"


def test_an_end_that_no_checkpoint_knows_of_is_none(run):
    run.append({"round": 1, "status": "running"})
    confirm(run, 1)
    run.end("finished")
    assert run.status == "running"
    run.append({"round": 2, "status": "running"})
    confirm(run, 2)
    assert run.status == "running"


def test_a_line_that_no_checkpoint_knows_of_is_no_round_for_anybody(run):
    for number in (1, 2):
        run.append({"round": number, "status": "running"})
        confirm(run, number)
    run.append({"round": 3, "status": "finished"})  # with a right digest: the chain has no secret
    assert [record["round"] for record in run.rounds()] == [1, 2]
    assert run.status == "running"


def test_a_file_that_is_changed_while_the_run_goes_on_is_noticed_all_the_same(run):
    """The next checkpoint has the digest of the file as it was when the run began."""
    run.write_origin(run.path)
    first = run.digests({}, "")
    (run.path / "owner" / "origin").write_text("/")
    assert run.digests(first, "") == first


def test_lines_that_are_not_those_of_the_last_checkpoint_are_refused(run):
    for number in (1, 2):
        run.append({"round": number})
        run.append_owner({"round": number})
    confirm(run, 2)
    run.append({"round": 2, "spent": []})  # in the place of what was done
    with pytest.raises(InvalidArgument, match=r"rounds.jsonl is not what this run wrote"):
        run.rounds()
    assert [record["round"] for record in run.owner_rounds()] == [1, 2]
