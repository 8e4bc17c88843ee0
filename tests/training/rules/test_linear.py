from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import require_parity
from dpfed.training.rules.linear import Ghost, Outer
from dpfed.training.rules.pieces import square_norms


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_without_positions(bias):
    torch.manual_seed(0)
    require_parity(nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3, bias=bias)), torch.randn(7, 5))


@pytest.mark.parametrize("method", ["direct", "ghost"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("positions", [(6,), (2, 3)])
def test_a_layer_with_positions(method, bias, positions):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3, bias=bias))
    require_parity(model, torch.randn(7, *positions, 5), methods={"0": method, "2": method})


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize(("positions", "method"), [((), "outer"), ((6,), "direct"), ((6,), "ghost")])
def test_a_layer_of_which_one_half_is_frozen(frozen, positions, method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].get_parameter(frozen).requires_grad_(False)
    require_parity(model, torch.randn(7, *positions, 5), methods={"0": method})


def test_a_norm_without_gradients_is_not_too_small_when_positions_cancel():
    """Two positions with opposite gradients: the float32 sum keeps rounding that the exact norm does not know."""
    torch.manual_seed(0)
    x = torch.randn(64, 1, 50).repeat(1, 2, 1) + 1e-6 * torch.randn(64, 2, 50)
    g = torch.randn(64, 1, 30) * torch.tensor([1.0, -1.0]).view(1, 2, 1)
    piece = Ghost(x, g, ("weight",), torch.Size([30, 50]))
    norms = piece.square_norms().sqrt()
    alone = torch.stack([piece.weighted(row)["weight"].norm() for row in torch.eye(64)])
    assert bool((alone <= norms * (1 + 1e-6)).all())


def test_norms_of_rank_one_neither_overflow_nor_lose_the_bias():
    x, g = torch.full((1, 4), 1e15), torch.full((1, 2), 1e15)
    assert float(Outer(x, g, ("weight", "bias")).square_norms().sqrt()) == pytest.approx(8**0.5 * 1e30, rel=1e-6)
    assert float(Outer(x * 0, g, ("weight", "bias")).square_norms().sqrt()) == pytest.approx(2**0.5 * 1e15, rel=1e-6)


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 300_007])
def test_a_float32_norm_of_any_length_is_right_to_eight_millionths(length):
    torch.manual_seed(0)
    for rows in (torch.rand(3, length), torch.full((3, length), 0.1), torch.randn(3, length).exp()):
        error = square_norms(rows).sqrt() / rows.double().norm(dim=1) - 1
        assert float(error.abs().max()) < 8e-6
