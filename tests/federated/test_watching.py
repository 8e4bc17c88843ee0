"""Quarantine in real rounds: decisions are entries, standings are in the checkpoint, who is aside does not count."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfed.aggregation.adversaries import ATTACKS
from dpfed.aggregation.quarantine import Quarantine, Standing
from dpfed.aggregation.robust_rules import CenteredClipping, CoordinateMedian
from dpfed.aggregation.rules import choose_rule
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.fedopt import FedOpt
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Update
from dpfed.federated.runners.attacked import AttackedRunner
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.watching import select_counted
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.randomness import SeededSource

LOCAL = LocalPlan(size=8, batch_size=4, steps=1)


class Ward:
    """Goes a step of its own towards one."""

    account = ""

    def __init__(self, name):
        self.name = name

    def rehearse(self, local, weights):
        """Any plan fits."""

    def train(self, local, objective, source):
        return 0.1 * (1 - objective.start) + 0.01 * SeededSource(ord(self.name)).normal(4)


def open_run(folder, attack="scaling", names="abcdefg", rounds=6):
    rule, watch = choose_rule("none", 2), Quarantine(strikes=3, clean_rounds=2)
    plan = Plan(
        "study",
        rounds,
        dict.fromkeys(names, LOCAL),
        style="none",
        weighting="equal",
        aggregation=rule,
        quarantine=watch,
    )
    runner = AttackedRunner(LocalRunner([Ward(name) for name in names]), {"a": attack}, "SIMULATION", SeededSource(1))
    return Federation(plan, np.zeros(4), runner, folder)


@pytest.mark.parametrize("attack", ["scaling", "gaussian", "nan"])
def test_an_attacker_is_put_aside_and_its_entry_says_why(tmp_path, attack):
    results = list(open_run(tmp_path, attack))
    entries = [entry for result in results for entry in result.participation.quarantine]
    assert [(entry["round"], entry["kind"]) for entry in entries] == [(1, "strike"), (2, "strike"), (3, "quarantined")]
    assert all(entry["client"] == "a" and entry["reason"] for entry in entries)
    lines = [json.loads(line) for line in (tmp_path / "owner.jsonl").read_text().splitlines()]
    assert lines[2]["quarantine"][0]["kind"] == "quarantined"
    assert "quarantine" not in lines[4]
    assert "quarantine" not in (tmp_path / "rounds.jsonl").read_text()


def test_a_resumed_run_remembers_its_strikes(tmp_path):
    whole = list(open_run(tmp_path / "whole"))
    for _ in range(6):
        last = next(open_run(tmp_path / "again"))  # one round, and a new process
    assert open_run(tmp_path / "again")._checkpoint.standings.get("a") == Standing(3, is_aside=True)
    assert (last.weights == whole[-1].weights).all()


def test_whoever_is_aside_does_not_count_and_is_scored_on(tmp_path, monkeypatch):
    seen, combined = [], Plan.combined

    def record(plan, updates, size, **released):
        seen.append("".join(updates))
        return combined(plan, updates, size, **released)

    monkeypatch.setattr(Plan, "combined", record)
    monkeypatch.setitem(ATTACKS, "pausing", Pausing())
    results = list(open_run(tmp_path, "pausing", rounds=8))
    assert seen == ["abcdefg"] * 3 + ["bcdefg"] * 2 + ["abcdefg"] * 3
    kinds = [entry["kind"] for result in results for entry in result.participation.quarantine]
    assert kinds == ["strike", "strike", "quarantined", "readmitted"]


class Pausing:
    """Attacks in the first three rounds."""

    def __init__(self):
        self.rounds = 0

    def __call__(self, honest, count, source):
        self.rounds += 1
        return [-100 * honest.mean(axis=0) if self.rounds <= 3 else honest.mean(axis=0)] * count


def test_those_aside_are_left_out():
    assert select_counted({"a": Standing(is_aside=True), "b": Standing(2)}, {"a": 1, "b": 2, "c": 3}) == {
        "b": 2,
        "c": 3,
    }


class BrokenOnce(LocalRunner):
    """Sends an update without numbers in round 2."""

    def train(self, task, cohort):
        for place, each in enumerate(super().train(task, cohort)):
            value = np.full(each.value.shape, np.nan) if place == 0 and task.round == 2 else each.value
            yield Update(each.client, each.round, value, each.head)


def test_too_few_updates_leave_the_model_as_it_is_whatever_momentum_it_has(open_study):
    rule = CoordinateMedian(max_faulty=1)
    study = open_study("sample", rounds=3, weighting="equal", aggregation=rule)

    first, second, third = study.federation(study.runner(BrokenOnce), algorithm=FedOpt())
    assert second.participation.breakdown
    assert (first.weights == second.weights).all()
    assert (second.weights != third.weights).all()


def test_a_round_that_broke_down_keeps_the_centre_and_what_clients_kept_before(open_study):
    """Clipped around zero instead, the next round would forget the last release; states of no use would be counted."""
    rule = CenteredClipping(max_faulty=1, clip_norm=0.5)
    study = open_study("sample", rounds=3, weighting="equal", aggregation=rule)

    federation = study.federation(study.runner(BrokenOnce), algorithm=FedDyn(alpha=0.1))
    next(federation)
    before = federation._checkpoint
    assert next(federation).participation.breakdown
    after = federation._checkpoint
    assert np.any(before.centre)
    assert np.array_equal(before.centre, after.centre)
    assert dict(before.counted) == dict(after.counted) == dict.fromkeys(study.plan.local, 1)
    next(federation)
    assert set(federation._checkpoint.counted.values()) == {3}


def test_whoever_is_aside_keeps_the_state_of_its_last_update_that_counted(open_study):
    rule = CoordinateMedian(max_faulty=1)
    sizes = dict.fromkeys("abcdefg", 10)
    study = open_study("sample", sizes=sizes, rounds=5, weighting="equal", aggregation=rule, quarantine=Quarantine())

    class Flipping(LocalRunner):
        def train(self, task, cohort):
            for each in super().train(task, cohort):
                value = -1000 * each.value if each.client == "a" else each.value
                yield Update(each.client, each.round, value, each.head)

    federation = study.federation(study.runner(Flipping, source=SeededSource(1)), algorithm=FedDyn(alpha=0.1))
    list(federation)
    assert federation._checkpoint.standings["a"].is_aside
    assert federation._checkpoint.counted == {**dict.fromkeys("bcdefg", 5), "a": 3}
