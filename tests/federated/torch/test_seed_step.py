"""Seed 004's step, Laplace noise on one full-batch step of clipped gradients, is style sample with an L1 clip."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpfed import accounting
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.guarantee import Guarantee
from dpfed.mechanisms.sensitivity import fedavg_step
from dpfed.models.logistic import Logistic
from dpfed.plan import LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.objective import LocalObjective

FALSE_ALARM = 1e-6
RECORDS, FEATURES, CLIP, RATE, EPSILON = 40, 300, 2.0, 0.3, 0.8
DRAWS = 20


def the_data():
    chance = np.random.default_rng(4)
    inputs = chance.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(int)


def the_step(inputs, labels):
    """The step without noise at weights of zero: −η/I times the sum of softmax gradients, each clipped to C in L1."""
    errors = 0.5 - np.eye(2)[labels]
    gradients = [np.concatenate([np.outer(e, x).ravel(), e]) for e, x in zip(errors, inputs.astype(float), strict=True)]
    clipped = [gradient * min(1.0, CLIP / np.abs(gradient).sum()) for gradient in gradients]
    return -RATE / RECORDS * np.sum(clipped, axis=0)


def a_plan():
    part = LocalPlan(size=RECORDS, batch_size=RECORDS, steps=1, learning_rate=RATE, clip_norm=CLIP, norm="l1")
    promise = Guarantee(EPSILON, 1e-5, "record", "replace_one")
    return Plan("seed-004", 1, {"ward": part}).calibrated_per_round(promise)


def test_one_full_batch_with_an_l1_clip_has_the_distribution_of_the_seeds_output_perturbation():
    # The noise of the sum is z·C on every number, divided by I and times η on the model. Replacing a record moves the
    # sum by 2C, so ε = 2/z: the scale is z·C·η/I = 2Cη/(I·ε), the seed's sensitivity over its ε.
    scale = 2 * CLIP * RATE / (RECORDS * EPSILON)
    assert scale == pytest.approx(fedavg_step(CLIP, RATE, RECORDS) / EPSILON)
    inputs, labels = the_data()
    client = TorchClient("ward", (inputs, labels), "", TorchModel(lambda: Logistic(FEATURES), "cross_entropy"))
    local, model = a_plan().local["ward"], client.model
    weights = np.zeros(2 * FEATURES + 2, dtype=np.float32)
    client.rehearse(local, weights)
    assert model.layout.size == weights.size
    sent = [client.train(local, LocalObjective(weights), SeededSource(seed)) for seed in range(DRAWS)]
    step = the_step(inputs, labels)
    seeds = np.random.default_rng(9).laplace(step, scale, size=(DRAWS, step.size))  # z_p + Laplace, as the seed has it
    ours, theirs = np.ravel(np.array(sent) - step), np.ravel(seeds - step)
    assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM
    assert stats.ks_2samp(ours, 1.25 * theirs).pvalue < FALSE_ALARM  # it would notice a quarter
    assert np.abs(np.mean(sent, axis=0) - step).mean() < scale  # around the same step


def test_the_round_costs_the_seeds_epsilon_purely_and_several_add_up_by_the_accountant():
    plan = a_plan()
    (cost, delta), event = plan.round_cost(plan.guarantee), plan.local["ward"].event
    assert EPSILON * (1 - 2e-5) < cost <= EPSILON
    assert delta == 0.0
    assert accounting.epsilon(event, 0.0, adjacency="replace_one") == pytest.approx(2 / event.noise_multiplier)
