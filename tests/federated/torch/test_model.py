from __future__ import annotations

import pickle
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.model import TorchModel, layout_of
from dpfed.models.logistic import Logistic
from dpfed.plan import LocalPlan
from dpfed.randomness import SeededSource

small = partial(Logistic, features=4, classes=3)
DATA = (np.random.default_rng(1).normal(size=(6, 4)), np.arange(6) % 3)


def test_the_layout_is_of_what_is_trained_and_of_nothing_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    assert layout_of(model).names == ("1.weight", "1.bias")
    with pytest.raises(InvalidArgument, match="must have trainable parameters"):
        layout_of(model.requires_grad_(False))
    with pytest.raises(InvalidArgument, match="must all be float32 or all float64"):
        layout_of(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()))


def test_whoever_borrows_the_model_finds_the_weights_it_brings_and_nothing_of_the_one_before():
    model = TorchModel(lambda: nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1)), "mse")
    with model.borrow(np.ones(3)) as row:
        model.module(torch.randn(8, 2)).sum().backward()
        row += 5.0
    with model.borrow(np.zeros(3)) as row:
        assert not row.any()
        assert not model.module[0].running_mean.any()
        assert all(parameter.grad is None for parameter in model.parameters)
    with pytest.raises(InvalidArgument, match="must have 3 numbers"), model.borrow(np.zeros(4)):
        pass


class Noting(nn.Module):
    """Lets what it has seen before into its outputs, and stops training at a large input."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 3), {"all": []}

    def forward(self, x):
        if x.abs().max() > 5:
            self.seen["all"].append(float(x.max()))
            self.linear.requires_grad_(False)
            torch.set_grad_enabled(False)
        return self.linear(x) * (1 + sum(self.seen["all"]))


class NotingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.worst = 0.0

    def forward(self, outputs, targets):
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none") * (1 + self.worst)
        self.worst = max(self.worst, float(losses.detach().max()) - 1000)
        return losses


@pytest.mark.parametrize(("make", "loss"), [(Noting, "cross_entropy"), (small, NotingLoss())], ids=["model", "loss"])
def test_no_data_of_a_client_move_the_update_of_the_next_one(make, loss):
    changes = []
    for size in (1.0, 1e4):
        model = TorchModel(make, loss)
        first, second = (TorchClient(name, DATA, "", model) for name in ("first", "second"))
        first.examples.inputs[:] = size
        plan = LocalPlan(size=6, batch_size=6, steps=2, learning_rate=0.1)
        with suppress(RuntimeError):  # its own data may stop its training
            first.train(plan, model.first_weights, SeededSource(1))
        changes.append(second.train(plan, model.first_weights, SeededSource(2)))
    assert changes[0].any()
    np.testing.assert_array_equal(*changes)


def test_a_seed_decides_the_first_weights_also_in_another_process():
    model, other = (TorchModel(partial(nn.Linear, 4, 3), "cross_entropy", seed=seed) for seed in (1, 2))
    twin = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert twin.first_weights.tobytes() == model.first_weights.tobytes() != other.first_weights.tobytes()


def test_scores_are_means_over_all_records_and_marked_unless_the_records_are_public():
    model = TorchModel(small, "cross_entropy")
    loss, accuracy = model.evaluate(np.zeros(15), DATA, is_public=False)
    assert (loss.name, loss.value) == ("loss", pytest.approx(np.log(3)))
    assert accuracy.value == pytest.approx(1 / 3)
    assert [score.is_public for score in (loss, accuracy)] == [False, False]
    with pytest.raises(InvalidArgument, match="no record to measure on"):
        model.evaluate(np.zeros(15), (DATA[0][:0], DATA[1][:0]), is_public=True)


def test_a_label_without_a_class_and_a_model_that_mixes_records_are_refused_before_a_run():
    model = TorchModel(small, "cross_entropy")
    model.require_fitting(model.examples(DATA), "north")
    with pytest.raises(InvalidArgument, match="labels of north must be whole numbers from 0 to 2"):
        model.require_fitting(model.examples((DATA[0], DATA[1] + 1)), "north")
    mixing = TorchModel(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), "cross_entropy")
    with pytest.raises(InvalidArgument):
        mixing.rehearse(mixing.examples(DATA), mixing.first_weights, is_private=True)


def test_a_factory_that_fails_or_makes_no_module_is_refused():
    with pytest.raises(InvalidArgument, match="the model cannot be made"):
        _ = TorchModel(lambda: nn.Linear(-1, 2), "mse").layout
    with pytest.raises(InvalidArgument, match="must make a torch module, got int"):
        _ = TorchModel(lambda: 3, "mse").layout
