"""Small private runs of torch models, for tests of what a run and its loop do."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dpfed.plan.plan import LocalPlan
from dpfed.training.private import make_private

LOSS = nn.MSELoss(reduction="none")
SIZE = 40


def per_example(outputs, targets):
    """One loss for each example."""
    return LOSS(outputs[:, 0], targets)


def a_model(features=3):
    """A small model, always the same."""
    torch.manual_seed(0)
    return nn.Linear(features, 1)


def some_data(size=SIZE, features=3):
    """Records of such a model, always the same."""
    torch.manual_seed(1)
    return TensorDataset(torch.randn(size, features), torch.randn(size))


def a_plan(**others):
    """Four steps of ten in forty records, or others."""
    defaults = {"size": SIZE, "batch_size": 10, "steps": 4, "clip_norm": 1.0, "noise_multiplier": 2.0}
    return LocalPlan(**{**defaults, **others})


def made(plan=None, *, data=None, model=None, lr=1.0, **others):
    """A private run of the plan on the data."""
    model = model or a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    arguments = {"loss": per_example, **others}
    return make_private(model, optimizer, some_data() if data is None else data, plan or a_plan(), **arguments)


def train(private):
    """Take every step."""
    for batch in private.loader:
        private.step(batch)


def flat(model):
    """All parameters in one row."""
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()]).clone()


def own_loop(private):
    """Train by a loop that computes its losses itself."""
    for batch in private.loader:
        for inputs, targets in batch:
            private.backward(per_example(private.model(inputs), targets))
        private.optimizer.step()
