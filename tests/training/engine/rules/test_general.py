from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import distance, found_sum, require_parity, squares
from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules.registry import rule_of
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


# Bare parameters of a module with children


class Token(nn.Module):
    """A class token and a layer scale, as in image transformers; the scale is also the last operation."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.inner(x) * self.scale + self.token


def test_parameters_beside_children():
    torch.manual_seed(0)
    require_parity(nn.Sequential(nn.Linear(4, 4), Token(), nn.Tanh(), nn.Linear(4, 2)), torch.randn(6, 3, 4))


def test_parameters_of_the_model_itself():
    torch.manual_seed(0)
    require_parity(Token(), torch.randn(6, 3, 4))


def test_a_parameter_that_is_one_number():
    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.warmth = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return x * self.warmth

    torch.manual_seed(0)
    require_parity(nn.Sequential(Warm(), nn.Linear(4, 2)), torch.randn(6, 4))


def test_an_owner_that_returns_what_its_child_returns():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.inner = nn.Parameter(torch.randn(4)), nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x + self.shift)

    torch.manual_seed(0)
    require_parity(nn.Sequential(Shifted(), nn.Tanh()), torch.randn(6, 4))


def test_an_owner_that_draws_random_numbers_needs_its_loss_beside_it():
    """It runs on one example at a time, with other random numbers than those that the losses were computed with."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.inner, self.dropout = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4), nn.Dropout()

        def forward(self, x):
            return self.dropout(self.inner(x)) / (2 + self.matrix.square().sum())

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Mixed()).double()
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    with ClippedGradients(model, clip_norm=0.5) as gradients:
        with pytest.raises(InvalidArgument, match=r"does not give the same twice.*step"):
            gradients.sum(model(x).square().flatten(1).sum(1))
        found, norms = gradients.clipped(make_forward(model, lambda output, _: output.square().flatten(1).sum(1), x, x))
    assert norms.shape == (6,)
    assert float(torch.cat([value.flatten() for value in found.values()]).norm()) <= 6 * 0.5
