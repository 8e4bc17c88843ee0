from __future__ import annotations

import torch
from torch import nn

from clipped import require_parity
from dpfed.training.rules.registry import rule_of


class Squared(nn.Linear):
    """Not the layer it derives from."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight**2, self.bias)


def test_an_unknown_layer_is_served_by_vmap():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.PReLU(3), Squared(3, 3), nn.Linear(3, 2))
    assert rule_of(model[2]).name == "leaf"
    require_parity(model, torch.randn(6, 4))


def test_a_layer_with_a_forward_pass_of_its_own_is_not_taken_for_the_known_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    layer = model[0]
    layer.forward = lambda x: nn.functional.linear(x * 3, layer.weight, layer.bias)
    assert rule_of(layer).name == "leaf"
    require_parity(model, torch.randn(6, 4))


def test_a_subclass_that_changes_nothing_keeps_the_rule():
    assert rule_of(type("Mine", (nn.Linear,), {})(2, 2)).name == "linear"
