"""Attacks on a model: all get the same records, and one that cannot be made says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.audit.membership import WITHOUT_SHADOWS, attack_model, attack_run
from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated.launch import prepare
from dpfed.federated.torch.model import TorchModel
from dpfed.models.mlp import MLP
from dpfed.plan.local import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.many.train import train_many

PLAN = LocalPlan(size=30, batch_size=15, steps=60, learning_rate=0.5)


@pytest.fixture
def overfitted():
    """A model that learned 30 random labels by heart, its records, and others."""
    draws, model = SeededSource(1), TorchModel(lambda: MLP(20, (32,), 2), "cross_entropy")
    members, others = ((draws.normal((size, 20)), draws.integers(2, size)) for size in (30, 60))
    (trained,) = train_many(model.module, [members], [PLAN], loss=model.loss, source=draws)
    return model, np.concatenate([trained[name].numpy().ravel() for name in model.layout.names]), members, others


def test_a_model_that_learned_by_heart_gives_its_members_away(overfitted):
    found = attack_model(*overfitted, PLAN, shadows=8, source=SeededSource(2))
    assert [each.failure for each in found] == [""] * 7
    assert (found[0].members, found[0].others) == (30, 30)
    assert found[0].auc > 0.7
    assert max(each.auc for each in found) > 0.8


def test_without_shadow_models_the_attacks_that_need_them_are_left_out_and_are_no_coins(overfitted):
    found = attack_model(*overfitted, PLAN, shadows=0, source=SeededSource(2))
    assert [each.name for each in found if not each.failure] == [each.name for each in found] == [*WITHOUT_SHADOWS]


def test_one_shadow_model_is_refused_as_nothing_can_be_compared_with_it(overfitted):
    with pytest.raises(InvalidArgument, match="train 2 or more, or 0"):
        attack_model(*overfitted, PLAN, shadows=1, source=SeededSource(2))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_all_attacks_on_a_model_that_diverged_fail_and_none_is_a_coin(overfitted, value):
    model, weights, members, others = overfitted
    found = attack_model(model, np.full_like(weights, value), members, others, PLAN, shadows=2, source=SeededSource(2))
    assert all(each.failure and each.auc is None for each in found)


def test_shadow_models_that_diverge_fail_the_attacks_that_need_them_and_no_other(overfitted):
    wild = replace(PLAN, learning_rate=1e30)
    found = attack_model(*overfitted, wild, shadows=2, source=SeededSource(2))
    assert [each.name for each in found if not each.failure] == [*WITHOUT_SHADOWS]
    assert all("no shadow models could be trained" in each.failure for each in found[2:])


def test_a_run_that_held_nothing_out_cannot_be_attacked():
    launch = prepare(
        RunConfig.parse("""
name: flowers
data: {source: "sklearn:iris", feature_bounds: [0, 8], partition: {kind: iid, clients: 1}, sizes: 150, test_fraction: 0}
model: {kind: logistic}
rounds: 1
local: {steps: 5, batch_size: 20, learning_rate: 0.5}
privacy: {style: none}
""")
    )
    with pytest.raises(InvalidArgument, match="no records were held out"):
        attack_run(launch, launch.weights)
