from __future__ import annotations

import torch
from torch import nn

from dpfed.training.own_loop import OwnLoop
from dpfed.training.reading import MicroBatch


def test_a_single_example_can_meet_no_other():
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    x, y = torch.randn(1, 3), torch.randn(1)
    loop.begin(MicroBatch((x, y), 1))
    loop.require_apart((model(x) - y).square().mean(1) / y.item())
    loop.close()


def test_rows_that_come_alone_may_use_what_all_have_in_common():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    loop, table = OwnLoop(model), torch.ones(2)
    for _ in range(3):
        x = torch.randn(1, 3)
        loop.begin(MicroBatch((x,), 1))
        losses = (model(x) * table * model.weight.sum()).square().sum(1) / x.abs().max().item()
        loop.require_apart(losses)
    loop.close()
