from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training.own_loop import OwnLoop


def piece():
    return torch.randn(6, 3), torch.randn(6)


LOOPS = {
    "each output with each target": lambda model, x, y: (model(x) - y).square().mean(1),
    "another's target": lambda model, x, y: (model(x).squeeze(1) - y.flip(0)).square(),
    "sorted inputs": lambda model, x, y: (model(x[x[:, 0].argsort()]).squeeze(1) - y).square(),
    "mixed up": lambda model, x, y: (model(0.7 * x + 0.3 * x.roll(1, 0)).squeeze(1) - y).square(),
    "the largest as measure": lambda model, x, y: (model(x).squeeze(1) - y).square() / y.abs().max(),
    "weighted by the place": lambda model, x, y: (model(x).squeeze(1) - y).square() * torch.arange(6),
    "the mean left out": lambda model, x, y: (model(x).squeeze(1) - y).square() - y.mean().item(),
    "by numpy": lambda model, x, y: (model(torch.from_numpy(x.numpy()[::-1].copy())).squeeze(1) - y).square(),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_mixes_examples_is_refused(name):
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    x, y = piece()
    loop.begin((x, y))
    losses = LOOPS[name](model, x, y)
    with pytest.raises(InvalidArgument, match=r"examples apart|lets Python decide"):
        loop.require_apart(losses)
    loop.close()


def test_a_tidy_loop_is_left_alone_and_what_comes_after_it_is_not_watched():
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    for _ in range(2):
        x, y = piece()
        loop.begin((x, y))
        losses = nn.functional.binary_cross_entropy_with_logits(
            model(x * 2).squeeze(1), (y > 0).float(), reduction="none"
        )
        loop.require_apart(losses)
        assert losses.mean().item() > 0
    loop.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_a_single_example_can_meet_no_other():
    model = nn.Linear(3, 1)
    loop = OwnLoop(model)
    x, y = torch.randn(1, 3), torch.randn(1)
    loop.begin((x, y))
    loop.require_apart((model(x) - y).square().mean(1) / y.item())
    loop.close()
