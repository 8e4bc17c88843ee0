from __future__ import annotations

import torch
from torch import Tensor, nn

from clipped import Applied, data, distance, expected_sum, require_parity, small, squares
from dpfed.training.engine.gradients import ClippedGradients


def test_a_parameter_that_is_unfrozen_or_replaced_later_counts_from_then_on():
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), data(6)
    model[0].weight.requires_grad_(False)
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        gradients.sum(squares(model(x), y))
        for _ in range(2):
            model[0].weight = nn.Parameter(torch.randn(3, 4))
            assert distance(gradients.sum(squares(model(x), y)), expected_sum(model, x, y, 0.1)) < 1e-5


def test_calls_that_the_losses_do_not_use_are_ignored():
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        model(torch.randn(3, 4))  # a look at other data, of another size
        found = gradients.sum(squares(model(x), y))
    assert distance(found, expected_sum(model, x, y, 0.1)) < 1e-5


def test_an_input_changed_in_place_after_use_goes_the_slow_way():
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: _spoiled(a(x), b), a=nn.Linear(4, 4), b=nn.Linear(4, 4, bias=False))
    model.layers["b"].weight.requires_grad_(False)  # autograd itself needs the input for a weight that is trained
    require_parity(model, data()[0])


def _spoiled(hidden: Tensor, layer: nn.Module) -> Tensor:
    out = layer(hidden)
    return out + hidden.mul_(3)


def test_after_closing_the_model_has_no_hooks():
    model = small()
    with ClippedGradients(model, clip_norm=1.0):
        assert any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_evaluation_without_gradients_records_nothing():
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        with torch.no_grad():
            model(torch.randn(1000, 4))
        assert gradients._programs.capture.take() == []
        assert distance(gradients.sum(squares(model(x), y)), expected_sum(model, x, y, 0.1)) < 1e-5
