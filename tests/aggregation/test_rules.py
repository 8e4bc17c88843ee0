"""A rule of aggregation is what a plan names, what a round executes and what the server's noise is added to."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from dpfed.aggregation.mean import ClippedMean
from dpfed.aggregation.robust_rules import Bucketing, NearestNeighbourMixing
from dpfed.aggregation.rules import (
    RULES,
    CenteredClipping,
    Krum,
    Mean,
    TrimmedMean,
    choose_rule,
    from_plain,
    is_noisable,
    require_unmasked,
    to_plain,
)
from dpfed.errors import InvalidArgument
from dpfed.federated import round
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan, ServerRelease

UPDATES = {"a": np.array([3.0, 4.0]), "b": np.array([0.0, 0.5])}


def test_a_mean_is_that_of_its_weights_and_a_total_is_clipped():
    mean = Mean()
    assert mean.combined(UPDATES, 2, {"a": 0.25, "b": 0.5}).tolist() == [0.75, 1.25]
    whole = ClippedMean(clip_norm=1.0, denominator=1.0, weights={"a": 2, "b": 1}).total(UPDATES, 2)
    assert mean.total(UPDATES, 2, {"a": 2, "b": 1}, clip_norm=1.0).tolist() == whole.tolist()


def make_rule(kind, **options):
    if kind == "mean":
        return Mean()
    clip = {"clip_norm": 1.5} if kind in ("norm_bounded_mean", "centered_clipping") else {}
    return RULES[kind](max_faulty=2, **clip, **options)


@pytest.mark.parametrize("before", [None, NearestNeighbourMixing(), Bucketing(3)])
@pytest.mark.parametrize("kind", RULES)
def test_a_rule_comes_back_from_plain_values(kind, before):
    rule = make_rule(kind) if kind == "mean" else make_rule(kind, before=before)
    assert from_plain(json.loads(json.dumps(to_plain(rule)))) == rule


@pytest.mark.parametrize(
    "plain", [{"kind": "median"}, {}, {"kind": "krum", "max_faulty": 1, "before": {"kind": "mixing"}}]
)
def test_a_rule_that_there_is_not_is_refused(plain):
    with pytest.raises(InvalidArgument, match="must be of kind"):
        from_plain(plain)


@pytest.mark.parametrize("style", ["none", "sample", "local"])
def test_where_no_rule_is_named_updates_are_mixed_and_trimmed(style):
    assert choose_rule(style, 2) == TrimmedMean(max_faulty=2, before=NearestNeighbourMixing())


@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_where_the_server_noises_one_step_of_centred_clipping_is_chosen(style):
    assert choose_rule(style, 2) == CenteredClipping(max_faulty=2)
    assert is_noisable(choose_rule(style, 2))


@pytest.mark.parametrize("kind", RULES)
def test_noise_is_proved_behind_clipped_sums_alone_and_so_are_masks(kind):
    rule = make_rule(kind)
    assert is_noisable(rule) == (kind == "mean")
    if kind == "mean":
        return require_unmasked(rule)
    with pytest.raises(InvalidArgument, match="of masked updates nobody knows more than the sum"):
        require_unmasked(rule)
    return None


@pytest.mark.parametrize("options", [{"steps": 2}, {"clip_norm": 1.0}, {"before": NearestNeighbourMixing()}])
def test_centred_clipping_of_another_form_is_no_clipped_sum(options):
    assert not is_noisable(CenteredClipping(max_faulty=1, **options))
    require_unmasked(CenteredClipping(max_faulty=1))


def test_a_server_adds_no_noise_behind_a_rule_it_is_not_proved_for():
    with pytest.raises(InvalidArgument, match="noise is not proved behind krum"):
        ServerRelease(ClientPlan(clip_norm=1.0), {"a": 1}, Fraction(1), Krum(max_faulty=0))


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
