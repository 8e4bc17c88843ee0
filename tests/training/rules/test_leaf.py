from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import distance, found_sum, require_parity, squares
from dpfed.training.rules.registry import rule_of
from one_by_one import clipped, gradients


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


class Doubling(nn.Module):
    """Changes what it is given."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(4)), inner

    def forward(self, x):
        return self.inner(x.mul_(2) * self.scale)


@pytest.mark.parametrize("inner", [nn.Linear(4, 4), nn.Identity()], ids=["parameter", "leaf"])
@pytest.mark.parametrize("methods", [None, {"1": "whole"}])
def test_a_module_that_changes_its_own_input_goes_the_slow_way(inner, methods):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Doubling(inner))
    x, y = torch.randn(6, 4), torch.zeros(6)
    expected = clipped(gradients(squares(model(x), y), model), 0.1)
    assert distance(found_sum(model, x, y, 0.1, methods), expected) < 1e-5
