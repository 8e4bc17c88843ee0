"""Steps written out are those of torch.optim."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dpfed.training.many.descent import Descent
from dpfed.training.optimizing import OptimizerSettings

RECIPES = [
    OptimizerSettings(),
    OptimizerSettings(weight_decay=0.3),
    OptimizerSettings(momentum=0.9),
    OptimizerSettings(momentum=0.5, weight_decay=0.1),
    OptimizerSettings(optimizer="adam", weight_decay=0.1),
    OptimizerSettings(optimizer="adamw", weight_decay=0.1),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_steps_are_those_of_torch(recipe):
    generator = torch.Generator().manual_seed(3)
    first = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    ours, theirs = {"w": first.clone()}, first.clone().requires_grad_()
    descent, optimizer = Descent(recipe, ours, 0.1), recipe.optimizer_of([theirs], 0.1)
    for step in range(6):
        gradient = torch.randn(4, 5, dtype=torch.float64, generator=generator)
        rate = 0.1 / (1 + step)
        optimizer.param_groups[0]["lr"], theirs.grad = rate, gradient.clone()
        optimizer.step()
        descent.step({"w": gradient.clone()}, rate)
        torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-12)


def test_gradient_descent_loads_no_compiler():
    code = (
        "import sys, torch; from torch import nn; from dpfed import LocalPlan, train_many;"
        "plan = LocalPlan(size=9, batch_size=3, steps=2, clip_norm=1.0, noise_multiplier=1.0);"
        "train_many(nn.Linear(2, 2), [(torch.ones(9, 2), torch.zeros(9, dtype=int))] * 2, [plan] * 2,"
        " loss=nn.CrossEntropyLoss(reduction='none')); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
