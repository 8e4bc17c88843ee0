from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from clipped import require_parity
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules import conv, registry
from dpfed.training.engine.rules.contributions import Call

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
    "taps": nn.Conv1d(4, 6, 3, padding=5, dilation=4),
    "pointwise": nn.Conv2d(4, 6, 1, stride=(2, 1)),
    "by_channel": nn.Conv2d(4, 4, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=4),
    "grouped": nn.Conv2d(4, 6, 3, padding=2),
}


@pytest.mark.parametrize("method", CASES)
def test_every_method_gives_the_same(method):
    require_parity(*prepared(CASES[method], 1 if method == "taps" else 2), methods={"0": method})


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"output_padding": 0, "dilation": 2}], ids=str)
def test_a_transposed_convolution_point_by_point(options):
    require_parity(*prepared(nn.ConvTranspose1d(4, 6, 3, **options), 1), methods={"0": "taps"})


def test_points_of_a_kernel_that_meet_nothing_but_padding():
    require_parity(*prepared(nn.Conv1d(4, 6, 3, padding=30, dilation=25), 1), methods={"0": "taps"})


def test_a_large_layer_may_go_example_by_example():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 1, 16))
    require_parity(model, torch.randn(3, 16, 16, 16), methods={"0": "loop"})


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 6, 3, padding=1), nn.Conv1d(4, 6, 3, stride=2)], ids=["2d", "1d"])
def test_gradients_that_are_not_written_out_are_the_same(layer):
    model, inputs = prepared(layer, 2 if isinstance(layer, nn.Conv2d) else 1)
    require_parity(model, inputs, methods={"0": "ghost"}, bounds={torch.float32: 1e-5})


@pytest.mark.parametrize("positions", [1, 2048])
@pytest.mark.parametrize("method", ["kernel", "multiplied"])
@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 99, 3), nn.Conv2d(4, 99, 3, 2, 1, bias=False), nn.Conv1d(4, 9, 3), nn.Conv2d(4, 99, 1, 3)],
    ids=["2d", "stride", "1d", "pointwise"],
)
@pytest.mark.parametrize("channels", [1, 99], ids=["by pixels", "unfolded"])
def test_a_sum_apart_from_norms_is_the_same(monkeypatch, layer, method, positions, channels):
    monkeypatch.setattr(conv, "CACHED_BYTES", 1)
    monkeypatch.setattr(conv, "CHANNELS", channels)
    monkeypatch.setattr(conv, "POSITIONS", positions)
    model, inputs = prepared(layer, 2 if isinstance(layer, nn.Conv2d) else 1)
    require_parity(model, inputs, methods={"0": method}, bounds={torch.float32: 1e-3})


@pytest.mark.parametrize("method", ["ghost", "kernel", "multiplied"])
def test_a_record_whose_positions_cancel_moves_the_sum_by_no_more_than_the_clip(method):
    """Each of its positions is lost by two fifths in a float32 sum, and all together are zero."""
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


def call_of(layer, size, rows=8):
    shape = torch.Size((rows, layer.out_channels, size, size))
    x, g = torch.randn(rows, layer.in_channels, size, size), torch.randn(shape)
    return Call("", layer, (), {}, x, 0, ("weight",), None, shape, gradient=g)


@pytest.mark.parametrize(("size", "is_hidden"), [(2, True), (16, False)])
def test_which_methods_are_tried_follows_from_the_layer_and_not_from_the_size_of_the_batch(size, is_hidden):
    """Those that write nothing out leave room for rounding: one record more must not change it for all the others."""
    layer = nn.Conv2d(64, 64, 3, padding=1)
    for rows in (1, 7, 8, 500):
        call = call_of(layer, size, rows)
        tried = registry._keep_family(conv.methods(call), registry.CONV, call)
        assert set(tried) == {"kernel", "multiplied"} if is_hidden else not set(tried) & set(registry.GHOSTS)


@pytest.mark.parametrize("method", ["kernel", "multiplied"])
def test_the_room_of_a_norm_does_not_depend_on_how_many_examples_there_are(method):
    call = call_of(nn.Conv2d(64, 64, 3, padding=1), 2, 100)
    alone = replace(call, x=call.x[:1], gradient=call.gradient[:1])
    one, many = (conv.methods(each)[method](each).norms()[0] for each in (alone, call))
    assert float(one) == pytest.approx(float(many), rel=1e-12)


def test_records_whose_positions_cancel_are_cut_alike_with_one_record_less():
    """Of 64 equal records whose positions nearly cancel, one less moves the sum by one clip norm."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(96, 96, 3, padding=1, padding_mode="circular", bias=False), nn.Flatten(2))
    inputs = torch.randn(1, 96, 1, 1).expand(1, 96, 4, 4) + 1e-3 * torch.randn(1, 96, 4, 4)
    signs = torch.ones(96, 16)
    signs[:, ::2] = -1.0
    loss = lambda output, _: (1e4 * output * signs).sum((1, 2))  # noqa: E731
    found = []
    for rows in (64, 63):
        with ClippedGradients(model, clip_norm=1.0, is_tried=True) as gradients:
            values = inputs.expand(rows, -1, -1, -1).clone()
            found.append(gradients.clipped(make_forward(model, loss, values, torch.zeros(rows)))[0]["0.weight"])
    assert float((found[0] - found[1]).norm()) <= 1.0


@pytest.mark.parametrize("method", ["kernel", "multiplied"])
def test_an_image_so_large_that_scaled_gradients_are_rounded_up_is_clipped_all_the_same(method):
    model, clip_norm = nn.Conv2d(1, 1, 2, bias=False), 4.82e-7
    nn.init.constant_(model.weight, 1e-3)
    with ClippedGradients(model, clip_norm=clip_norm, methods={"": method}) as gradients:
        losses = model(torch.full((1, 1, 2, 2), 3.4e38)).flatten() * 1e-20
        assert float(gradients.sum(losses)["weight"].norm()) <= clip_norm
