"""A rule of aggregation is what a plan names, what a round executes and what the server's noise is added to."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.mean import ClippedMean
from dpfed.aggregation.rules import RULES, Mean, from_plain, to_plain
from dpfed.errors import InvalidArgument
from dpfed.federated import round
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan

UPDATES = {"a": np.array([3.0, 4.0]), "b": np.array([0.0, 0.5])}


def test_a_mean_is_that_of_its_weights_and_a_total_is_clipped():
    mean = Mean()
    assert mean.combined(UPDATES, 2, {"a": 0.25, "b": 0.5}).tolist() == [0.75, 1.25]
    whole = ClippedMean(clip_norm=1.0, denominator=1.0, weights={"a": 2, "b": 1}).total(UPDATES, 2)
    assert mean.total(UPDATES, 2, {"a": 2, "b": 1}, clip_norm=1.0).tolist() == whole.tolist()


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_comes_back_from_plain_values(kind):
    rule = RULES[kind]()
    assert from_plain(to_plain(rule)) == rule
    with pytest.raises(InvalidArgument, match="aggregation must be of kind"):
        from_plain({"kind": "krum"})


class Unclipped(Mean):
    """Adds up what came, however long."""

    def total(self, updates, size, weights, clip_norm):
        return sum(updates.values())


@pytest.mark.parametrize("rule", [Unclipped(), Mean, "mean", None], ids=repr)
def test_a_plan_takes_no_rule_of_ones_own_for_which_no_noise_is_proved(rule):
    local = LocalPlan(size=9, batch_size=3, steps=1)
    with pytest.raises(InvalidArgument, match="noise is proved for no other"):
        Plan("study", 2, {"a": local}, style="user", client=ClientPlan(clip_norm=1.0), aggregation=rule)


def test_the_rule_of_the_plan_is_the_one_that_is_executed(monkeypatch):
    """By the server's release, which is what noise is added to, and by the mean of released updates."""
    local = LocalPlan(size=9, batch_size=3, steps=1)
    plan = Plan("study", 2, {"a": local, "b": local}, style="user", client=ClientPlan(clip_norm=1.0))
    assert plan.server.rule is plan.aggregation
    monkeypatch.setattr(Mean, "total", lambda *_: "the plan's own")
    assert plan.server.query(UPDATES, 2) == "the plan's own"
    assert not hasattr(round, "ClippedMean")
