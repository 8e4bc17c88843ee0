"""In a simulation the last clients attack, all others are as they were, and everything is marked."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfed.config.run import RunConfig
from dpfed.errors import BreakdownError, InvalidArgument
from dpfed.federated import launch
from dpfed.federated.runners.attacked import AttackedRunner, choose_faulty
from dpfed.plan.plan import Plan

IRIS = """
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: quantity, sizes: [20, 20, 20, 20, 20, 20]}}
model: {kind: logistic}
rounds: 2
local: {steps: 2, batch_size: 10, learning_rate: 0.5}
seed: 7
"""
STYLES = {
    "none": "privacy: {style: none}",
    "sample": "privacy: {style: sample, record: {noise_multiplier: 1, delta: 1e-5, clip_norm: 1}}",
    "user": "privacy: {style: user, client: {noise_multiplier: 1, delta: 1e-5, clip_norm: 1}}",
    "local": "privacy: {style: local, client: {noise_multiplier: 1, delta: 1e-5, clip_norm: 1}}",
}
ROBUST = "aggregation: {max_faulty: 2}"


def run(tmp_path, attack, style="none", extra=ROBUST):
    text = "\n".join([IRIS, STYLES[style], extra, f"attack_sim: {attack}" if attack else ""])
    prepared = launch.prepare(RunConfig.parse(text))
    with prepared.ledger(tmp_path) as ledger:
        return list(prepared.federation(tmp_path, ledger))


def test_the_last_clients_are_faulty_and_one_is_honest_at_least():
    assert choose_faulty("abcd", {"nan": 1, "scaling": 2}) == {"b": "nan", "c": "scaling", "d": "scaling"}
    with pytest.raises(InvalidArgument, match="one at least must be honest"):
        choose_faulty("abcd", {"nan": 4})


@pytest.mark.parametrize("runner", ["one_by_one", "together", "processes"])
def test_each_runner_lets_malformed_updates_be_refused_and_none_reach_the_rule(tmp_path, runner, monkeypatch):
    seen, combined = [], Plan.combined

    def record(plan, updates, size, **released):
        seen.extend(updates.items())
        return combined(plan, updates, size, **released)

    monkeypatch.setattr(Plan, "combined", record)
    extra = f"{ROBUST}\nrunner: {runner}".replace("2", "1")
    results = run(tmp_path, "nan:1,wrong_shape:1", extra=extra)
    assert all(result.participation.refused == {"5": "not_finite", "6": "shape"} for result in results)
    assert {name for name, _ in seen} == {"1", "2", "3", "4"}
    assert all(np.isfinite(update).all() and update.shape == (15,) for _, update in seen)


@pytest.mark.parametrize("style", STYLES)
def test_a_simulation_is_marked_in_every_round_and_other_runs_are_not(tmp_path, style):
    for result in run(tmp_path / "attacked", "sign_flip:1", style):
        assert result.facts().get("simulation") == "SIMULATION: some clients were made to attack (sign_flip:1)."
    lines = (tmp_path / "attacked" / "rounds.jsonl").read_text().splitlines()
    assert all("SIMULATION" in json.loads(line)["simulation"] for line in lines)
    assert all("simulation" not in result.facts() for result in run(tmp_path / "plain", "", style))


def test_poisoned_clients_train_on_other_labels_and_send_what_they_learned(tmp_path):
    plain, flipped = run(tmp_path / "a", ""), run(tmp_path / "b", "label_flip:2")
    assert not np.allclose(plain[0].weights, flipped[0].weights)
    assert flipped[0].participation.refused == {}


def test_attackers_alone_are_left_as_they_are():
    """Where no honest client of the cohort answered, there is nothing to attack with."""
    runner = AttackedRunner(SilentRunner(), {"a": "nan"}, "SIMULATION")
    assert list(runner.train(None, ["a"])) == []


class SilentRunner:
    """A runner whose clients send nothing."""

    is_private = True

    def train(self, task, cohort):
        return iter(())


def test_too_few_updates_stop_a_run_that_protects_nobody(tmp_path):
    with pytest.raises(BreakdownError, match="trimmed_mean needs 5 updates to bear 2 faulty ones, and 4 came"):
        run(tmp_path, "nan:2")


@pytest.mark.parametrize("style", ["sample", "local"])
def test_too_few_updates_leave_the_model_as_it_is_where_somebody_is_protected(tmp_path, style):
    """A stop would tell that a client failed, which no noise covers; the owner's file has the reason."""
    results = run(tmp_path, "nan:2", style)
    assert (results[0].weights == results[1].weights).all()
    assert all("needs 5 updates" in result.participation.breakdown for result in results)
    line = json.loads((tmp_path / "owner.jsonl").read_text().splitlines()[0])
    assert "needs 5 updates" in line["breakdown"]


def test_the_server_with_noise_goes_on_whoever_fails(tmp_path):
    assert len(run(tmp_path, "nan:4", "user")) == 2


def test_a_sum_that_is_centred_takes_the_last_release_from_the_checkpoint(tmp_path):
    text = "\n".join([IRIS, STYLES["user"], ROBUST])
    prepared = launch.prepare(RunConfig.parse(text))
    with prepared.ledger(tmp_path) as ledger:
        first = next(prepared.federation(tmp_path, ledger))
    with prepared.ledger(tmp_path) as ledger:
        federation = prepared.federation(tmp_path, ledger)
        released = first.weights.astype(float) - prepared.weights
        assert np.allclose(federation._checkpoint.centre, released, rtol=0, atol=1e-6)
        assert [result.number for result in federation] == [2]
