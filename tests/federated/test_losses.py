"""A loss for many models at once is the loss of each, to the bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dpfed.federated.losses import KINDS, stacked

SHAPES = {"logits": ((6, 4), (6,)), "pixels": ((6, 4, 5, 5), (6, 5, 5))}


@pytest.mark.parametrize(("outputs", "targets"), SHAPES.values(), ids=SHAPES)
def test_cross_entropy_and_its_gradient_are_the_same(outputs, targets):
    torch.manual_seed(0)
    scores, wanted = torch.randn(outputs, requires_grad=True), torch.randint(0, 4, targets)
    plain, many = KINDS["cross_entropy"](scores, wanted), stacked(KINDS["cross_entropy"])(scores, wanted)
    assert torch.equal(plain, many)
    gradients = [torch.autograd.grad(loss.square().sum(), scores)[0] for loss in (plain, many)]
    assert torch.equal(*gradients)


def test_any_other_loss_is_itself():
    assert all(stacked(loss) is loss for name, loss in KINDS.items() if name != "cross_entropy")


def test_many_models_at_once_load_no_algebra_system():
    code = """
import sys, torch
from dpfed.federated.losses import KINDS, stacked
loss = stacked(KINDS["cross_entropy"])
torch.vmap(loss)(torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.long))
print("sympy" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
