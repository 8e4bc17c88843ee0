"""A run's directory survives a crash at any point, reads no pickle and keeps each round once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.plan import LocalPlan, Plan
from dpfed.runs import Checkpoint, RunDirectory, Update

LOCAL = LocalPlan(size=100, batch_size=16, steps=2, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.5)
HOSTILE = ("../../etc/passwd", "a/b\0", "Ωμέγα", "a" * 5000)


def plan(*clients: str, rounds: int = 3) -> Plan:
    return Plan("study", rounds=rounds, local=dict.fromkeys(clients or ("north", "west"), LOCAL))


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.begin(plan())
    return directory


def test_the_plan_is_written_once_and_another_one_is_refused(run):
    run.begin(plan())
    with pytest.raises(InvalidArgument, match="another plan"):
        RunDirectory(run.path).begin(plan(rounds=4))
    assert RunDirectory(run.path).plan == plan()


def test_updates_come_back_bit_by_bit_with_the_head_they_were_charged_at(run):
    value = np.array([0.1, -1e-300, 3.0])
    run.write_update(2, Update("west", value, "12:ab"))
    (found,) = RunDirectory(run.path).updates(2).values()
    assert (found.client, found.value.tobytes(), found.head) == ("west", value.tobytes(), "12:ab")
    assert run.updates(1) == {}


def test_a_clients_name_never_becomes_a_path(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.begin(plan(*HOSTILE))
    for number, name in enumerate(HOSTILE):
        run.write_update(1, Update(name, np.array([float(number)]), "1:a"))
    found = RunDirectory(run.path).updates(1)
    assert {name: update.value.tolist() for name, update in found.items()} == {
        name: [float(number)] for number, name in enumerate(HOSTILE)
    }
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_newest_checkpoint_is_the_one_of_the_highest_round(run):
    assert run.checkpoint() is None
    for number in (0, 1, 2):
        run.write_checkpoint(Checkpoint(number, np.full(2, float(number)), f"{number}:a"))
    assert run.checkpoint().round == 2
    assert [checkpoint.weights[0] for checkpoint in run.checkpoints()] == [0.0, 1.0, 2.0]


def test_a_file_that_holds_a_pickle_is_refused_and_nothing_in_it_runs(run):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(run.path / "trapped"),)

    np.savez(run.path / "checkpoints" / "round-0001.npz", weights=np.array([Trap()], dtype=object), head="1:a")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        run.checkpoint()
    assert not (run.path / "trapped").exists()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file"])
def test_a_damaged_file_is_refused_with_what_to_do(run, damage):
    run.write_update(1, Update("north", np.zeros(2), "1:a"))
    (path,) = (run.path / "released").iterdir()
    path.write_bytes(damage)
    with pytest.raises(InvalidArgument, match="put back a copy"):
        run.updates(1)


def test_a_flipped_bit_in_a_stored_update_is_noticed(run):
    run.write_update(1, Update("north", np.arange(100.0), "1:a"))
    (path,) = (run.path / "released").iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        run.updates(1)


def test_records_are_kept_in_order_and_a_repeated_round_counts_once(run):
    for record in ({"round": 1, "head": "1:a"}, {"round": 2, "head": "2:b"}, {"round": 2, "head": "3:c"}):
        run.append(record)
    assert run.rounds() == [{"round": 1, "head": "1:a"}, {"round": 2, "head": "3:c"}]


def test_half_a_line_of_a_crash_is_ignored_and_then_cut_off(run):
    run.append({"round": 1})
    with (run.path / "rounds.jsonl").open("ab") as stream:
        stream.write(b'{"round": 2, "contr')
    assert run.rounds() == [{"round": 1}]
    run.append({"round": 2})
    assert run.rounds() == [{"round": 1}, {"round": 2}]
    assert (run.path / "rounds.jsonl").read_bytes().count(b"\n") == 2


def test_values_that_are_no_numbers_are_not_written(run):
    with pytest.raises(ValueError, match="JSON"):
        run.append({"round": 1, "loss": float("nan")})


def test_following_a_run_yields_each_round_once_until_the_last(run):
    run.append({"round": 1})
    records = run.follow(poll_seconds=0.001)
    assert next(records) == {"round": 1}
    writer = threading.Thread(target=lambda: [run.append({"round": number}) for number in (2, 2, 3)])
    writer.start()
    assert list(records) == [{"round": 2}, {"round": 3}]
    writer.join()


def test_a_writer_killed_at_any_point_leaves_whole_files_only(run):
    for delay in (0.02, 0.03, 0.05, 0.08):
        child = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(run,))
        child.start()
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        for checkpoint in RunDirectory(run.path).checkpoints():
            assert checkpoint.weights.tolist() == [float(checkpoint.round)] * 5000
        assert all(set(record) == {"round", "head"} for record in run.rounds())


def write_for_ever(run: RunDirectory) -> None:
    number = 0
    while True:
        number += 1
        run.write_checkpoint(Checkpoint(number % 7, np.full(5000, float(number % 7)), "1:a"))
        run.append({"round": number % 7, "head": "1:a" * 50})
