"""Our cross entropy is torch's, to the bit, and the one for many models is the one that was given."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.training.many.entropy import adapt_loss, cross_entropy

TORCH = nn.CrossEntropyLoss(reduction="none")
SHAPES = {"logits": ((6, 4), (6,)), "pixels": ((6, 4, 5, 5), (6, 5, 5))}


@pytest.mark.parametrize(("outputs", "targets"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ours", [cross_entropy, adapt_loss(TORCH)])
def test_values_and_gradients_are_those_of_torch(ours, outputs, targets):
    torch.manual_seed(0)
    scores, wanted = torch.randn(outputs, requires_grad=True), torch.randint(0, 4, targets)
    losses = [loss(scores, wanted) for loss in (TORCH, ours)]
    assert torch.equal(*losses)
    assert torch.equal(*(torch.autograd.grad(loss.square().sum(), scores)[0] for loss in losses))


def test_what_torch_leaves_out_is_left_out():
    scores, wanted = torch.randn(3, 4), torch.tensor([1, -100, 0])
    assert torch.equal(adapt_loss(TORCH)(scores, wanted), TORCH(scores, wanted))


def test_shares_of_classes_are_targets_too():
    scores, shares = torch.randn(3, 4), torch.full((3, 4), 0.25)
    assert torch.equal(adapt_loss(TORCH)(scores, shares), TORCH(scores, shares))


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.ones(4), reduction="none"),
        nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
        nn.CrossEntropyLoss(ignore_index=0, reduction="none"),
        nn.CrossEntropyLoss(),
        nn.MSELoss(reduction="none"),
        functional.mse_loss,
    ],
    ids=["weighted", "smoothed", "ignoring", "mean", "mse", "function"],
)
def test_any_other_loss_is_itself(loss):
    assert adapt_loss(loss) is loss


def test_many_models_at_once_load_no_algebra_system():
    code = """
import sys, torch
from dpfed.training.many.entropy import adapt_loss
loss = adapt_loss(torch.nn.CrossEntropyLoss(reduction="none"))
torch.vmap(loss)(torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.long))
print("sympy" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
