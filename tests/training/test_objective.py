"""A client's objective: terms of any size are added after clipping and noise, alone and in the ensemble engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.mlp import MLP
from dpfed.plan.plan import ClientPlan, LocalPlan, ServerRelease
from dpfed.randomness import SeededSource
from dpfed.training.many.batch_tuner import BatchTuner
from dpfed.training.many.ensemble import Ensemble
from dpfed.training.many.train import Member, train_together
from dpfed.training.objective import LocalObjective

PLAIN = LocalPlan(size=20, batch_size=10, steps=3, learning_rate=0.05)
PRIVATE = replace(PLAIN, clip_norm=0.5, noise_multiplier=0.5)
NAMES = ("a", "b", "c")


@pytest.fixture
def clients():
    model = TorchModel(lambda: MLP(features=6, hidden=(4,), classes=3), "cross_entropy")
    draws = np.random.default_rng(3)
    return [TorchClient(name, (draws.normal(size=(20, 6)), draws.integers(0, 3, 20)), name, model) for name in NAMES]


def at_once(clients, plan, objectives, one_pass):
    """The changes of all clients, trained together by the ensemble engine."""
    model = clients[0].model
    first = {name: value.detach().clone() for name, value in model.module.named_parameters()}
    members = [
        Member(client.examples.inputs, client.examples.targets, plan, SeededSource(number), objective)
        for number, (client, objective) in enumerate(zip(clients, objectives, strict=True))
    ]
    tuner = BatchTuner(Ensemble(model.module, model.loss, clients[0].examples.fetch(torch.arange(4))))
    found = {}
    for places, parameters in train_together(tuner, members, first, model.recipe, one_pass=one_pass):
        rows = torch.cat([value.flatten(1) for value in parameters.values()], dim=1).double().numpy()
        found |= dict(zip(places, rows - model.first_weights, strict=True))
    return [found[place] for place in range(len(clients))]


def objectives_of(weights, kind):
    draws = np.random.default_rng(7)
    other = weights + draws.normal(size=weights.shape).astype(weights.dtype)
    made = {
        "shifts": [LocalObjective(weights, shift=draws.normal(size=weights.shape)) for _ in NAMES],
        "one shift": [LocalObjective(weights), LocalObjective(weights, shift=np.ones(weights.shape)), None],
        "a pull": [LocalObjective(weights, pull=3.0)] * 3,
        "unequal pulls": [LocalObjective(weights, pull=pull) for pull in (0.5, 0.0, 3.0)],
        "anchors": [LocalObjective(weights, anchor, 2.0) for anchor in (other, weights, other - 1)],
        "all of it": [LocalObjective(weights, other, 2.0, draws.normal(size=weights.shape)) for _ in NAMES],
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["shifts", "one shift", "a pull", "unequal pulls", "anchors", "all of it"])
@pytest.mark.parametrize("plan", [PLAIN, PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize("one_pass", [False, True])
def test_the_terms_of_each_model_are_its_own_in_the_ensemble_engine(clients, plan, kind, one_pass):
    weights = clients[0].model.first_weights
    objectives = objectives_of(weights, kind)
    found = at_once(clients, plan, objectives, one_pass)
    for number, (client, objective) in enumerate(zip(clients, objectives, strict=True)):
        alone = client.train(plan, weights if objective is None else objective, SeededSource(number))
        np.testing.assert_allclose(found[number], alone, rtol=1e-4, atol=1e-5)
        assert np.abs(alone).max() > 1e-3


def test_terms_are_added_after_clipping_and_noise_in_the_ensemble_engine(clients):
    """At the same draws the first step differs by −η·(shift + pull·(w₀ − anchor)), however large these are."""
    weights, one = clients[0].model.first_weights, replace(PRIVATE, steps=1)
    shift = 1e6 * np.arange(1.0, 1.0 + weights.size)
    plain = at_once(clients, one, [None] * 3, None)
    moved = at_once(clients, one, [LocalObjective(weights, weights - 2, 1e5, shift)] * 3, None)
    for before, after in zip(plain, moved, strict=True):
        np.testing.assert_allclose(after - before, -one.learning_rate * (shift + 2e5), rtol=1e-5)


def test_a_shift_of_a_million_from_a_clients_own_data_is_held_by_the_clip_of_its_update(clients):
    weights = clients[0].model.first_weights
    server = ServerRelease(ClientPlan(clip_norm=0.25, noise_multiplier=1.0), dict.fromkeys(NAMES, 1), 3)
    updates = {
        client.name: client.train(PLAIN, LocalObjective(weights, shift=1e6 * sign * np.ones(weights.size)), source)
        for client, sign, source in zip(clients, (1, 1, -1), map(SeededSource, range(3)), strict=True)
    }
    assert all(np.linalg.norm(update) > 1e5 for update in updates.values())
    without = {name: update for name, update in updates.items() if name != "b"}
    moved = server.query(updates, weights.size) - server.query(without, weights.size)
    assert 0.24 < np.linalg.norm(moved) <= 0.25


def test_what_does_not_fit_the_weights_is_refused():
    weights = np.zeros(3)
    for terms in ({"anchor": np.zeros(2)}, {"shift": np.zeros((3, 1))}, {"shift": np.array([0, np.nan, 0])}):
        with pytest.raises(InvalidArgument, match="must hold finite numbers"):
            LocalObjective(weights, **terms)
    for pull in (-1.0, np.inf, "much"):
        with pytest.raises(InvalidArgument, match="pull"):
            LocalObjective(weights, pull=pull)


@pytest.mark.parametrize("name", ["start", "anchor", "shift"])
def test_a_client_that_trains_in_place_changes_nothing_that_others_share(name):
    vectors = {each: np.zeros(2) for each in ("start", "anchor", "shift")}
    objective = LocalObjective(**vectors)
    with pytest.raises(ValueError, match="read-only"):
        getattr(objective, name)[:] = 1e6
    assert vectors[name].tolist() == [0.0, 0.0]


def test_weights_stand_for_the_loss_alone():
    objective = LocalObjective.of(np.ones(2))
    assert objective.is_plain
    assert objective.anchor is objective.start
    assert LocalObjective.of(objective) is objective


def test_what_an_objective_holds_cannot_be_written_into_and_a_copy_shares_no_memory():
    start, shift = np.zeros(2), np.ones(2)
    for anchor in (None, np.ones(2)):
        objective = LocalObjective(start, anchor=anchor, shift=shift)
        copied = objective.copied()
        assert (copied.anchor is copied.start) == (anchor is None)
        for name in ("start", "anchor", "shift"):
            one, other = getattr(objective, name), getattr(copied, name)
            assert not one.flags.writeable
            assert not other.flags.writeable
            assert not np.shares_memory(one, other)
            assert one.tolist() == other.tolist()
