"""What a round has released survives a crash bit by bit, runs nothing, and is told from what is damaged."""

from __future__ import annotations

import os

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.messages import Update
from dpfed.federated.state.unfinished import UnfinishedRound, group_by_time
from dpfed.plan.plan import Released
from dpfed.runs.directory import RunDirectory

HOSTILE = ("../../etc/passwd", "Ωμέγα", "a" * 5000, "a/b", "round-000001")


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def stored(run):
    return UnfinishedRound(run)


def test_updates_come_back_bit_by_bit_with_the_head_they_were_charged_at(run, stored):
    value = np.array([0.1, -1e-300, 3.0])
    stored.write_updates(2, [Update("west", 2, value, "12:ab")])
    (found,) = UnfinishedRound(run).updates(2).values()
    assert (found.client, found.value.tobytes(), found.head) == ("west", value.tobytes(), "12:ab")
    assert UnfinishedRound(run).heads(2) == ["12:ab"]
    assert stored.updates(1) == {}


def test_several_files_are_one_round_and_the_first_update_of_a_client_counts(stored):
    stored.write_updates(1, [Update("a", 1, np.zeros(1), "1:a"), Update("b", 1, np.ones(1), "1:a")])
    stored.write_updates(1, [Update("a", 1, np.full(1, 9.0), "2:b"), Update("c", 1, np.ones(1), "2:b")])
    found = stored.updates(1)
    assert {name: update.value[0] for name, update in found.items()} == {"a": 0.0, "b": 1.0, "c": 1.0}


def test_a_clients_name_never_becomes_a_path(tmp_path, stored):
    stored.write_updates(1, [Update(name, 1, np.zeros(1), "1:a") for name in HOSTILE])
    stored.write_cohort(1, HOSTILE)
    stored.write_release(1, Released(np.zeros(1)), "1:a", HOSTILE)
    assert set(stored.updates(1)) == set(stored.cohort(1, HOSTILE)) == set(stored.release(1)[2]) == set(HOSTILE)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("count", [None, 12.5])
def test_a_release_comes_back_bit_by_bit(run, stored, count):
    average = np.array([0.1, -1e-300])
    stored.write_release(3, Released(average, count), "7:cd", ["a", "b"])
    released, head, asked, _ = UnfinishedRound(run).release(3)
    assert (released.average.tobytes(), released.noisy_count, head, asked) == (
        average.tobytes(),
        count,
        "7:cd",
        ("a", "b"),
    )
    assert stored.heads(3) == ["7:cd"]
    assert stored.release(2) is None


def test_an_empty_cohort_is_told_from_none(stored):
    assert stored.cohort(1, ()) is None
    stored.write_cohort(1, ())
    assert stored.cohort(1, ()) == ()


def test_a_round_that_is_forgotten_leaves_no_file_and_takes_no_other_with_it(run, stored):
    for number in (1, 2):
        stored.write_cohort(number, ["a"])
        stored.write_updates(number, [Update("a", number, np.zeros(1), "1:a")])
        stored.write_release(number, Released(np.zeros(1)), "1:a", ())
    stored.forget(1)
    assert (stored.cohort(1, ()), stored.updates(1), stored.release(1)) == (None, {}, None)
    assert (stored.cohort(2, "ab"), set(stored.updates(2))) == (("a",), {"a"})
    stored.forget(2)
    assert list((run.path / "released").iterdir()) == list((run.path / "owner").iterdir()) == []


def test_a_file_that_holds_a_pickle_is_refused_and_nothing_in_it_runs(run, stored):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(run.path / "trapped"),)

    np.savez(run.path / "released" / "round-000001.npz", average=np.array([Trap()], dtype=object), head="1:a")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        stored.release(1)
    assert not (run.path / "trapped").exists()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file"])
def test_a_damaged_file_is_refused_with_what_to_do(run, stored, damage):
    stored.write_updates(1, [Update("north", 1, np.zeros(2), "1:a")])
    (path,) = (run.path / "released").iterdir()
    path.write_bytes(damage)
    with pytest.raises(InvalidArgument, match="put back a copy"):
        stored.updates(1)


def test_a_flipped_bit_in_a_stored_update_is_noticed(run, stored):
    stored.write_updates(1, [Update("north", 1, np.arange(100.0), "1:a")])
    (path,) = (run.path / "released").iterdir()
    content = bytearray(path.read_bytes())
    content[content.index(np.arange(100.0).tobytes()) + 400] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        stored.updates(1)


def test_updates_that_come_slowly_are_grouped_one_by_one_and_quick_ones_together():
    updates = [Update(str(number), 1, np.zeros(1), "1:a") for number in range(5)]
    assert [len(group) for group in group_by_time(updates, seconds=0.0)] == [1] * 5
    assert [len(group) for group in group_by_time(updates, seconds=1e9)] == [5]
    assert list(group_by_time([], seconds=0.0)) == []


def test_names_that_differ_in_zeros_at_their_end_stay_those_of_two_clients(stored):
    names = ("a", "a\0", "a\0\0", "\0", "a\x1f", "a\x1f\x1f", "a\0\x1f")
    stored.write_updates(1, [Update(name, 1, np.full(1, float(place)), "1:a") for place, name in enumerate(names)])
    assert {name: update.value[0] for name, update in stored.updates(1).items()} == {n: p for p, n in enumerate(names)}
    stored.write_release(2, Released(np.zeros(2), None), "3:ab", names, names[1:])
    assert stored.release(2)[2:] == (names, names[1:])
    assert stored.contributed(2) == names[1:]
