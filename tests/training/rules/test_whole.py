from __future__ import annotations

import torch
from torch import nn

from dpfed.training.rules import whole
from one_by_one import gradients


def losses(output, targets):
    return (output.squeeze(1) - targets).square()


def test_the_oracle_agrees_with_one_backward_pass_per_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x, y = torch.randn(5, 3).double(), torch.randn(5).double()
    by_vmap = whole.per_example(model, losses, x, y)
    for name, rows in gradients(losses(model(x), y), model).items():
        assert torch.allclose(rows, by_vmap[name], atol=1e-14)


def test_the_oracle_clips_by_hand_computed_norms():
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    x, y = torch.tensor([[3.0, 4.0], [0.1, 0.0]]), torch.tensor([-0.5, -0.5])
    found = whole.clipped_sum(model, losses, x, y, clip_norm=1.0)["weight"]  # gradients (3, 4) and (0.1, 0)
    assert torch.allclose(found, torch.tensor([[0.7, 0.8]]))
