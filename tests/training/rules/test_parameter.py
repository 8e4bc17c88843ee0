from __future__ import annotations

import torch
from torch import nn

from clipped import require_parity
from dpfed.training.clip import TOLERANCE
from dpfed.training.gradients import ClippedGradients
from dpfed.training.rules import whole


class Token(nn.Module):
    """A class token and a layer scale, as in image transformers; the scale is also the last operation."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.inner = nn.Linear(4, 4)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        return self.dropout(self.inner(x)) * self.scale + self.token


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


def test_an_owner_that_draws_random_numbers_goes_the_whole_way():
    """Its forward pass cannot be run again with the same numbers, so autograd's own graph decides."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Token(dropout=0.5)).double()
    with ClippedGradients(model, clip_norm=0.5) as gradients:
        losses = model(torch.randn(6, 3, 4, dtype=torch.float64)).square().flatten(1).sum(1)
        rows = whole.gradients(losses, dict(model.named_parameters()))
        found = gradients.sum(losses)
    norms = torch.stack([r.flatten(1).square().sum(1) for r in rows.values()]).sum(0).sqrt()
    coefficients = (0.5 * (1 - TOLERANCE) / norms).clamp(max=1)
    for name, values in rows.items():
        assert torch.allclose(found[name], torch.tensordot(coefficients, values, dims=1), atol=1e-12)
