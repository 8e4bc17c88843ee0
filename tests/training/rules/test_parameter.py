from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import require_parity
from dpfed.errors import InvalidArgument
from dpfed.training.forward import of_model
from dpfed.training.gradients import ClippedGradients


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
            return self.dropout(self.inner(x)) @ self.matrix

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Mixed()).double()
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    with ClippedGradients(model, clip_norm=0.5) as gradients:
        with pytest.raises(InvalidArgument, match=r"does not give the same twice.*step"):
            gradients.sum(model(x).square().flatten(1).sum(1))
        found, norms = gradients.clipped(of_model(model, lambda output, _: output.square().flatten(1).sum(1), x, x))
    assert norms.shape == (6,)
    assert float(torch.cat([value.flatten() for value in found.values()]).norm()) <= 6 * 0.5
