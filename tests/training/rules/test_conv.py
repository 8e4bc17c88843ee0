from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from clipped import require_parity
from dpfed.training.gradients import ClippedGradients
from dpfed.training.rules import conv

SIZES = {1: (9,), 2: (7, 6), 3: (4, 5, 4)}
KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
BACK = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
OPTIONS = [
    {},
    {"bias": False},
    {"stride": 2},
    {"padding": 1},
    {"dilation": 2, "padding": 2},
    {"groups": 2},
    {"stride": 2, "padding": 1, "groups": 2},
]


def nested(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(1), nn.LazyLinear(2))


def prepared(layer: nn.Module, dimensions: int) -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(5, 4, *SIZES[dimensions])
    model = nested(layer)
    model(inputs)
    return model, inputs


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_convolution_in_every_dimension(dimensions, options):
    kernel = {1: 3, 2: (3, 2), 3: (2, 3, 1)}[dimensions]
    if "padding" in options and dimensions > 1:
        options = {**options, "padding": (1, 0, 0)[:dimensions]}
    require_parity(*prepared(KINDS[dimensions](4, 6, kernel, **options), dimensions))


@pytest.mark.parametrize("options", [*OPTIONS, {"stride": 2, "output_padding": 1}], ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_a_transposed_convolution_in_every_dimension(dimensions, options):
    require_parity(*prepared(BACK[dimensions](4, 6, 3, **options), dimensions))


def test_a_transposed_convolution_with_outputs_beyond_its_reach():
    require_parity(*prepared(nn.ConvTranspose2d(4, 6, 2, stride=1, dilation=3, output_padding=2), 2))


@pytest.mark.parametrize("padding", ["same", "valid", 1])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular", "replicate"])
def test_padding_by_word_and_of_every_mode(padding, mode):
    require_parity(*prepared(nn.Conv2d(4, 6, (3, 2), padding=padding, padding_mode=mode), 2))


CASES = {
    "unfold": nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2),
    "channels_last": nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)),
    "shift": nn.Conv2d(4, 6, (3, 2), padding=(1, 1), dilation=(2, 1)),
    "pointwise": nn.Conv2d(4, 6, 1, stride=(2, 1)),
    "grouped": nn.Conv2d(4, 6, 3, padding=2),
}


@pytest.mark.parametrize("method", CASES)
def test_every_method_gives_the_same(method):
    require_parity(*prepared(CASES[method], 2), methods={"0": method})


def test_a_large_layer_may_go_example_by_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 1, 16))
    require_parity(model, torch.randn(3, 16, 16, 16), methods={"0": "loop"})


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3, padding=1), nn.Conv1d(4, 6, 3, stride=2)], ids=["2d", "1d"])
def test_gradients_that_would_not_fit_are_not_written_out(monkeypatch, layer):
    monkeypatch.setattr(conv, "DIRECT_BYTES", 1)
    model, inputs = prepared(layer, 2 if isinstance(layer, nn.Conv2d) else 1)
    require_parity(model, inputs, methods={"0": "ghost"}, bounds={torch.float32: 1e-5})


@pytest.mark.parametrize("positions", [1, 2048])
@pytest.mark.parametrize("layer", [nn.Conv2d(4, 99, 3), nn.Conv2d(4, 99, 3, 2, 1, bias=False), nn.Conv1d(4, 9, 3)])
def test_a_sum_by_the_kernel_of_plain_training_is_the_same(monkeypatch, layer, positions):
    monkeypatch.setattr(conv, "CACHED_BYTES", 1)
    monkeypatch.setattr(conv, "POSITIONS", positions)
    model, inputs = prepared(layer, 2 if isinstance(layer, nn.Conv2d) else 1)
    require_parity(model, inputs, methods={"0": "kernel"}, bounds={torch.float32: 1e-3})


@pytest.mark.parametrize("method", ["ghost", "kernel"])
def test_a_record_whose_positions_cancel_moves_the_sum_by_no_more_than_the_clip(monkeypatch, method):
    """Each of its positions is lost by two fifths in a float32 sum, and all together are zero."""
    monkeypatch.setattr(conv, "CACHED_BYTES", 1)
    monkeypatch.setattr(conv, "DIRECT_BYTES", 1)
    positions = 512
    steps = torch.full((positions,), 1.4 * 2.0**-23)
    steps[0] = 1.0
    steps[-1] = -steps[:-1].double().sum()
    model = nn.Sequential(nn.Conv2d(4100, 65, (1, 2), bias=False), nn.Flatten(2))
    inputs = torch.ones(1, 4100, 1, positions + 1)
    with ClippedGradients(model, clip_norm=1.0, methods={"0": method}) as gradients:
        losses = (model(inputs) * 1e9 * steps).sum((1, 2))
        assert float(gradients.sum(losses)["0.weight"].norm()) <= 1.0


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_convolution_of_which_one_half_is_frozen(frozen):
    model, inputs = prepared(nn.Conv2d(4, 6, 3), 2)
    model[0].get_parameter(frozen).requires_grad_(False)
    require_parity(model, inputs)


def test_the_public_twin_of_the_grouped_kernel(monkeypatch):
    def gone(view: conv.Geometry) -> conv.Rows:
        raise AttributeError("convolution_backward")

    monkeypatch.setattr(conv, "grouped", gone)
    require_parity(*prepared(nn.Conv3d(4, 6, 2, groups=2), 3), methods={"0": "grouped"})


def test_every_convolution_of_torch_has_a_rule():
    kinds = {kind for kind in vars(nn).values() if isinstance(kind, type) and issubclass(kind, _ConvNd)}
    assert {kind for kind in kinds if not kind.__name__.startswith("Lazy")} == set(conv.KINDS)
