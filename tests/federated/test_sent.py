"""What a site keeps: the value that left and the state with it, encrypted, together or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.sent import MEASURED, ROUND, Kept, SentStore, make_key, read_key
from dpfed.federated.wire import Message


@pytest.fixture
def store(tmp_path):
    return SentStore(tmp_path / "sent", bytes(range(32)))


def test_value_and_state_come_back_bit_for_bit_in_another_process(store, tmp_path):
    kept = Kept("plan", "model", np.array([0.1, -0.0]), {"dual": np.array([7.0])})
    store.keep("study-1", 3, kept)
    again = SentStore(tmp_path / "sent", bytes(range(32))).read("study-1", 3)
    assert (again.plan, again.model) == ("plan", "model")
    assert again.value.tobytes() == kept.value.tobytes()
    assert again.state["dual"].tolist() == [7.0]


def test_a_round_asked_for_with_another_model_replaces_value_and_state_together(store):
    store.keep("study-1", 1, Kept("plan", "first", np.zeros(2), {"dual": np.zeros(2)}))
    store.keep("study-1", 1, Kept("plan", "second", np.ones(2), {"dual": np.ones(2)}))
    found = store.read("study-1", 1)
    assert (found.model, found.value.sum(), found.state["dual"].sum()) == ("second", 2, 2)


def test_no_value_can_be_read_from_the_disk_without_the_key(store, tmp_path):
    value = np.arange(100.0)
    store.keep("study-1", 1, Kept("plan", "model", value))
    content = (tmp_path / "sent" / "study-1" / "round-000001").read_bytes()
    assert value.tobytes()[:80] not in content
    assert b"model" not in content
    with pytest.raises(InvalidArgument, match="was changed, or the site's key is another"):
        SentStore(tmp_path / "sent", bytes(32)).read("study-1", 1)


def test_a_file_that_was_changed_or_moved_is_refused(store, tmp_path):
    store.keep("study-1", 1, Kept("plan", "model", np.zeros(2)))
    folder = tmp_path / "sent" / "study-1"
    (folder / "round-000002").write_bytes((folder / "round-000001").read_bytes())
    with pytest.raises(InvalidArgument, match="was changed"):
        store.read("study-1", 2)
    (folder / "round-000001").write_bytes((folder / "round-000001").read_bytes()[:-1])
    with pytest.raises(InvalidArgument, match="was changed"):
        store.read("study-1", 1)


def test_numbers_only_go_up_also_after_a_restart(store, tmp_path):
    assert store.advance("study-1", 5)
    again = SentStore(tmp_path / "sent", bytes(range(32)))
    assert [again.advance("study-1", number) for number in (4, 5, 6)] == [False, False, True]
    assert again.last("study-2") == 0


def test_confirming_deletes_values_and_keeps_the_state_that_counts(store):
    for number in (1, 2, 3):
        store.keep("study-1", number, Kept("plan", "model", np.ones(2), {"dual": np.full(2, number)}))
    store.confirm("study-1", 3, counted=2)
    assert store.read("study-1", 1) is None
    assert store.read("study-1", 2) is not None
    assert store.read("study-1", 2).value is None
    assert store.read("study-1", 2).state["dual"].tolist() == [2, 2]
    assert store.read("study-1", 3).value is not None


def test_forgetting_a_run_leaves_a_note_that_it_ended_and_the_others_alone(store, tmp_path):
    for run in ("study-1", "study-2"):
        store.keep_plan(run, Message({"plan": "text"}))
    store.forget("study-1")
    assert store.runs() == ("study-2",)
    assert [path.name for path in (tmp_path / "sent" / "study-1").iterdir()] == ["ended"]
    assert (store.has_ended("study-1"), store.has_ended("study-2")) == (True, False)


def test_an_owner_asks_for_a_release_and_forgetting_the_run_settles_it(store, tmp_path):
    store.keep_plan("study-1", Message({}))
    store.ask_release("study-1", "it was stopped")
    again = SentStore(tmp_path / "sent", bytes(range(32)))
    assert (again.asked_releases(), again.runs()) == ({"study-1": "it was stopped"}, ("study-1",))
    again.forget("study-1")
    assert store.asked_releases() == {}


def test_values_without_noise_are_counted_by_kind_also_after_a_restart(store, tmp_path):
    assert [store.take_raw("study-1", ROUND, 2) for _ in range(2)] == [True, True]
    again = SentStore(tmp_path / "sent", bytes(range(32)))
    assert (again.take_raw("study-1", ROUND, 2), again.take_raw("study-1", MEASURED, 2)) == (False, True)


def test_values_without_noise_are_counted_over_all_runs_also_over_those_that_have_ended(store, tmp_path):
    assert [store.take_raw("study-1", ROUND, 2) for _ in range(3)] == [True, True, False]
    store.forget("study-1")
    strict = SentStore(tmp_path / "sent", bytes(range(32)), most_raw=3)
    assert [strict.take_raw("study-2", kind, 9) for kind in (ROUND, MEASURED)] == [True, False]
    assert "all" not in [path.name for path in (tmp_path / "sent").iterdir()]
    (tmp_path / "sent" / ".raw").write_bytes(bytes(40))
    with pytest.raises(InvalidArgument, match="was changed"):
        strict.take_raw("study-3", ROUND, 9)


@pytest.mark.parametrize("run", ["..", "a/../../b", "", "/etc"])
def test_the_name_of_a_run_is_no_path(store, run):
    with pytest.raises(InvalidArgument, match="run must be the name of a run"):
        store.forget(run)


def test_a_key_is_made_for_its_owner_and_read_again(tmp_path):
    make_key(tmp_path / "sent.key")
    assert len(read_key(tmp_path / "sent.key")) == 32
    assert (tmp_path / "sent.key").stat().st_mode & 0o077 == 0
    (tmp_path / "sent.key").write_text("xyz")
    with pytest.raises(InvalidArgument, match="holds no key that `dpfed site init` made"):
        read_key(tmp_path / "sent.key")
    with pytest.raises(InvalidArgument, match="must have 32 bytes"):
        SentStore(tmp_path, b"short")
