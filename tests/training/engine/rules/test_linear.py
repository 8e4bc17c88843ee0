from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import BOUNDS, found_sum, require_parity
from dpfed.errors import InvalidArgument
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules.linear import Ghost, OuterProduct, balance


def bounds_of(method: str) -> dict[torch.dtype, float]:
    """Gram matrices serve float32 only."""
    return {dtype: bound for dtype, bound in BOUNDS.items() if method != "ghost" or dtype == torch.float32}


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
    methods = {"0": method, "2": method}
    require_parity(model, torch.randn(7, *positions, 5), methods=methods, bounds=bounds_of(method))


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize(("positions", "method"), [((), "outer"), ((6,), "direct"), ((6,), "ghost")])
def test_a_layer_of_which_one_half_is_frozen(frozen, positions, method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].get_parameter(frozen).requires_grad_(False)
    require_parity(model, torch.randn(7, *positions, 5), methods={"0": method}, bounds=bounds_of(method))


def test_a_norm_without_gradients_is_not_too_small_when_positions_cancel():
    """Two positions with opposite gradients: the float32 sum keeps rounding that the exact norm does not know."""
    torch.manual_seed(0)
    x = torch.randn(64, 1, 50).repeat(1, 2, 1) + 1e-6 * torch.randn(64, 2, 50)
    g = torch.randn(64, 1, 30) * torch.tensor([1.0, -1.0]).view(1, 2, 1)
    piece = Ghost(x, g, ("weight",), torch.Size([30, 50]))
    norms = piece.norms()
    alone = torch.stack([piece.sum_weighted(row)["weight"].norm() for row in torch.eye(64)])
    assert bool((alone <= norms * (1 + 1e-6)).all())


@pytest.mark.parametrize("positions", [64, 128, 512, 1024])
def test_a_record_made_of_rounding_errors_moves_the_sum_by_no_more_than_the_clip(positions):
    """Each of its positions is lost by two fifths in a float32 sum, and all together are zero."""
    steps = torch.full((positions,), 1.4 * 2.0**-23)
    steps[0] = 1.0
    steps[-1] = -steps[:-1].double().sum()
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    for method in ("direct", "ghost"):
        with ClippedGradients(model, clip_norm=1.0, methods={"0": method}) as gradients:
            losses = (model(torch.ones(1, positions, 8)) * 1e9 * steps.view(1, -1, 1)).sum((1, 2))
            assert float(gradients.sum(losses)["0.weight"].norm()) <= 1.0


@pytest.mark.parametrize("apart", [1e-7, 1e-8, 1e-9, 1e-10, 1e-12])
def test_positions_that_nearly_cancel_in_float64_are_written_out(apart):
    """Their Gram matrix says that the gradient is zero."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8, bias=False)).double()
    x, slope = torch.rand(8, dtype=torch.float64).expand(1, 2, 8), torch.rand(8, dtype=torch.float64)
    with ClippedGradients(model, clip_norm=1.0) as gradients:
        losses = (model(x) * 1e12 * torch.stack([slope, -slope * (1 + apart)])).sum((1, 2))
        assert float(gradients.sum(losses)["0.weight"].norm()) <= 1.0
        with pytest.raises(InvalidArgument, match="direct or whole, not 'ghost'"):
            found_sum(model, x, torch.zeros(1, dtype=torch.float64), 1.0, {"0": "ghost"})


def test_norms_of_rank_one_neither_overflow_nor_lose_the_bias():
    x, g = torch.full((1, 4), 1e15), torch.full((1, 2), 1e15)
    assert float(OuterProduct(x, g, ("weight", "bias")).norms()) == pytest.approx(8**0.5 * 1e30, rel=1e-6)
    assert float(OuterProduct(x * 0, g, ("weight", "bias")).norms()) == pytest.approx(2**0.5 * 1e15, rel=1e-6)


def test_inputs_too_short_for_a_float32_norm_do_not_hide_a_long_gradient():
    x, g = torch.full((1, 4), 1e-24), torch.full((1, 2), 1e30)
    assert float(OuterProduct(x, g, ("weight",)).norms()) >= float(x.double().norm() * g.double().norm())


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("clip_norm", [1.7e-7, 2.41e-7, 1e-6])
def test_an_input_so_large_that_scaled_gradients_are_rounded_up_is_clipped_all_the_same(norm, clip_norm):
    """2.41e-7/3.4e38 is 0.51 of the least float32 above zero."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1e-3)
    with ClippedGradients(model, clip_norm=clip_norm, norm=norm) as gradients:
        losses = model(torch.tensor([[3.4e38], [1.0]])).squeeze(1) * torch.tensor([1e-20, 0.0])
        assert float(gradients.sum(losses)["weight"].abs()) == pytest.approx(clip_norm, rel=2e-4)
        assert float(gradients.sum(model(torch.zeros(1, 1)).squeeze(1))["weight"].abs()) == 0.0


@pytest.mark.parametrize("width", [4096, 65536])
def test_many_small_inputs_whose_squares_are_flushed_to_zero_do_not_hide_a_long_gradient(width):
    x, g = torch.full((1, width), 1.08e-19), torch.full((1, 1), 1e18)
    truth = float(x.double().norm() * g.double().norm())
    torch.set_flush_denormal(True)  # where the processor can
    try:
        assert float(OuterProduct(x, g, ("weight",)).norms()) >= truth
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("large", [2.0**59, 2.0**60, 2.0**60 * (1 + 2.0**-23), 1e30, -3.4e38])
def test_one_large_input_among_many_is_balanced_by_a_power_of_two(large):
    """None above 2⁶⁰ is left, however little it adds to the length of all, and no product changes."""
    torch.manual_seed(0)
    x, g = torch.randn(64, 30), torch.randn(64, 5) * 1e-30
    x[7, 3] = large
    balanced_x, balanced_g = balance(x, g)
    assert float(balanced_x.abs().max()) <= 2.0**60
    others = torch.arange(64) != 7
    assert torch.equal(balanced_x[others], x[others])
    assert torch.equal(balanced_g[others], g[others])
    assert torch.equal(balanced_x[7].double().outer(balanced_g[7].double()), x[7].double().outer(g[7].double()))


def test_many_inputs_that_are_long_together_and_small_alone_stay_as_they_are():
    x, g = torch.full((64, 64), 2.0**56), torch.ones(64, 5)
    found = balance(x, g)
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], g)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_no_inputs_are_balanced(shape):
    x, g = torch.zeros(shape), torch.ones(shape[0], 5)
    found = balance(x, g)
    assert found[0] is x
    assert found[1] is g
