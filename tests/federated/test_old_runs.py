"""Run directories that an earlier version left behind are shown, reported, exported and resumed by this one.

`old/` holds three of them, made by the version before digests, each with its ledger: one that finished, and two (styles
sample and user) that ended in the middle of round 2, with what that round had released. Two more such, `digested`, are
of the version with digests whose plans named no rule of aggregation, and so is one with a seed. From now on they are
kept.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpfed.cli.main import main
from dpfed.errors import InvalidArgument
from dpfed.federated import launch
from dpfed.federated.state.checkpoint import Checkpoints
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.ledger.ledger import Ledger
from dpfed.runs.directory import RunDirectory
from studies import committed

OLD = Path(__file__).parent / "old"
STOPPED = ["stopped", "stopped-user"]
SCORE = '"accuracy"'
HELD = {
    "1": [16.5, -8.8, -5.55, -29.075],
    "2": [16.525, -9.175, -5.825, -29.225],
    "3": [20.125, -9.75, -0.375, -27.575],
}


@pytest.fixture
def old(tmp_path):
    """Copies an old run into the test's own folder."""

    def copy(name: str) -> Path:
        found = Path(shutil.copytree(OLD / name, tmp_path / name))
        (found / "owner" / "origin").write_text(str(tmp_path))
        return found

    return copy


def called(*arguments: str | Path) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)), standalone_mode=False, catch_exceptions=False)
    return result.output


def newest(path: Path):
    return Checkpoints(RunDirectory(path), launch.resume_run(path).model.layout).newest()


@pytest.mark.parametrize("name", ["finished", *STOPPED])
def test_an_old_run_is_shown_and_reported(old, name):
    path = old(name)
    assert ("finished" if name == "finished" else "unfinished") in called("runs", path.parent)
    assert "Privacy report of run old" in called("report", path, "--markdown")
    assert "Owner's report of run old" in called("report", path, "--markdown", "--owner")
    assert "wrote" in called("report", path)


@pytest.mark.parametrize("name", ["finished", *STOPPED])
def test_the_model_of_an_old_run_is_exported_and_measured(old, tmp_path, name):
    path = old(name)
    assert "wrote" in called("export", path, tmp_path / "model.safetensors")
    assert "loss" in called("evaluate", path)


def test_a_finished_old_run_is_over(old):
    path = old("finished")
    before = newest(path)
    assert "finished after 3 of 3 rounds" in called("resume", path)
    assert newest(path).weights.tobytes() == before.weights.tobytes()


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_old_run_goes_on_to_its_end_and_what_it_had_released_costs_nothing(old, name):
    path = old(name)
    with Ledger(path / "ledger.db") as ledger:
        paid = committed(ledger)
    assert "finished after 3 of 3 rounds" in called("resume", path)
    assert newest(path).round == 3
    with Ledger(path / "ledger.db") as ledger:
        ledger.verify()
        now = committed(ledger)
    rounds = {account: sum(charges.values()) for account, charges in now.items()}
    more = sum(rounds.values()) - sum(sum(charges.values()) for charges in paid.values())
    # Round 3 alone: two clients, or one release, which is paid for already if it asks nobody more often than before.
    assert more in ((2,) if name == "stopped" else (0, 1))
    assert [record["round"] for record in RunDirectory(path).rounds()] == [1, 2, 3]


@pytest.mark.parametrize("name", STOPPED)
def test_the_round_that_was_under_way_is_made_of_what_it_had_released(old, name):
    path = old(name)
    before, stored = newest(path), UnfinishedRound(RunDirectory(path))
    prepared = launch.resume_run(path)
    if name == "stopped":
        weights = prepared.plan.weights
        mean = sum(weights[client] * update.value for client, update in stored.updates(2).items())
    else:
        mean = stored.release(2)[0].average
    with prepared.ledger(path) as ledger:
        result = next(prepared.federation(path, ledger))
    assert result.number == 2
    np.testing.assert_allclose(result.weights, before.weights + mean, rtol=1e-6)


@pytest.mark.parametrize("style", ["sample", "user"])
def test_a_stopped_run_of_the_version_before_rules_of_aggregation_goes_on_to_its_end(tmp_path, style):
    name = "digested" if style == "sample" else "digested-user"
    path = Path(shutil.copytree(OLD / name, tmp_path / name))
    before, stored = checkpoint_of(path, tmp_path), UnfinishedRound(RunDirectory(path))
    assert before.round == 1
    if style == "sample":
        weights = RunDirectory(path).plan.weights
        mean = sum(weights[client] * update.value for client, update in stored.updates(2).items())
    else:
        mean = stored.release(2)[0].average
    prepared = launch.resume_run(path, moved_to=tmp_path)
    with prepared.ledger(path) as ledger:
        second, third = prepared.federation(path, ledger)
        ledger.verify()
    assert (second.number, third.number, third.status) == (2, 3, "finished")
    np.testing.assert_allclose(second.weights, before.weights + mean, rtol=1e-6)
    assert "Privacy report of run old" in called("report", path, "--markdown")


def test_a_seeded_run_of_an_earlier_version_is_refused_and_nothing_is_charged(tmp_path):
    path = Path(shutil.copytree(OLD / "digested-seeded", tmp_path / "run"))
    prepared = launch.resume_run(path, moved_to=tmp_path)
    with prepared.ledger(path) as ledger:
        head = ledger.head()
        with pytest.raises(InvalidArgument, match="begun with a seed by an earlier version"):
            prepared.federation(path, ledger)
        assert ledger.head() == head
    assert "unfinished" in called("runs", tmp_path)
    assert "Privacy report of run old" in called("report", path, "--markdown")


def checkpoint_of(path: Path, folder: Path):
    return Checkpoints(RunDirectory(path), launch.resume_run(path, moved_to=folder).model.layout).newest()


def test_an_old_runs_clients_hold_the_records_that_they_held(old):
    """Dealt anew, a record could move to another client, and be charged at one and released at both."""
    clients = launch.resume_run(old("stopped")).clients
    held = {client.name: np.asarray(client.data[0]).sum(axis=0).round(4).tolist() for client in clients}
    assert held == HELD


def test_scores_on_private_records_of_an_old_run_are_for_its_owner_alone(old):
    path = old("finished")
    assert SCORE in (path / "rounds.jsonl").read_text()  # the earlier version wrote them for everyone
    assert "accuracy" not in called("report", path, "--json")
    assert "accuracy" not in called("runs", path.parent)
    assert "accuracy" in called("report", path, "--json", "--owner")
