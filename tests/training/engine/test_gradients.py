from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus import GradSampleModule
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import one_by_one
from clipped import Applied, data, distance, expected_sum, flat, found_sum, require_parity, small, squares
from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients

# What the sum is


@pytest.mark.parametrize("clip_norm", [1e-3, 1.0, 1e6])
def test_removing_one_example_moves_the_sum_by_at_most_the_clip(clip_norm):
    model, (x, y) = small(), data(64)
    total = flat(found_sum(model, x, y, clip_norm))
    for place in range(len(x)):
        kept = [row for row in range(len(x)) if row != place]
        assert float((total - flat(found_sum(model, x[kept], y[kept], clip_norm))).norm()) <= clip_norm


def test_one_more_of_a_thousand_examples_that_point_the_same_way_moves_the_float32_sum_by_at_most_the_clip():
    """Their sum is long, so its rounding is coarse: a few 1e-5 of the clip, for which the tolerance leaves room."""
    model, clip = nn.Linear(1, 1, bias=False), 1.3
    with ClippedGradients(model, clip_norm=clip) as gradients:
        sums = [gradients.sum(model(torch.full((size, 1), 3.0)).squeeze(1))["weight"] for size in range(924, 1025)]
    assert float(torch.cat(sums).double().flatten().diff().abs().max()) <= clip


def test_replacing_one_example_by_a_monstrous_one_moves_the_sum_by_at_most_twice_the_clip():
    model, (x, y) = small(), data(16)
    before = flat(found_sum(model, x, y, 1.0))
    y[3] = 1e15
    assert float((before - flat(found_sum(model, x, y, 1.0))).norm()) <= 2.0


def test_one_clipped_example_alone_has_exactly_the_stated_length():
    model, (x, y) = small(), data(1)
    assert float(flat(found_sum(model, x, y, 1e-3)).norm()) == pytest.approx(1e-3 * (1 - TOLERANCE), rel=1e-6)


def test_gradients_a_million_times_longer_leave_the_sum_unchanged():
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=1e-3) as gradients:
        once = gradients.sum(squares(model(x), y))
        again = gradients.sum(1e6 * squares(model(x), y))
    assert distance(again, once) < 1e-5


def test_an_example_below_the_clip_is_not_touched():
    model, (x, y) = small(), data()
    squares(model(x), y).sum().backward()
    plain = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert distance(found_sum(model, x, y, 1e6), plain) < 1e-6


def test_a_mask_leaves_out_padding():
    model, (x, y) = small(), data()
    mask = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1])
    x[2] = math.nan
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        found = gradients.sum(squares(model(x), y), weights=mask)
    kept = mask.bool()
    assert distance(found, expected_sum(model, x[kept], y[kept], 0.1)) < 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_counts_as_zero(value):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.PReLU(), nn.Linear(6, 5), nn.LayerNorm(5)).double()
    x, y = torch.randn(6, 2, 8).double(), torch.randn(6).double()
    x[2, 0, 3], y[4] = value, value
    good = [0, 1, 3, 5]
    assert distance(found_sum(model, x, y, 0.1), expected_sum(model, x[good], y[good], 0.1)) < 1e-10


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_example_that_is_not_finite_counts_as_zero_on_the_slow_way(value):
    """0·∞ spoils every example's gradient there: dropping them all would let one example move the sum by B·C."""
    model, (x, y) = small(), data()
    x[2], y[4] = value, value
    good = [0, 1, 3, 5, 6, 7]
    for methods in ({"0": "whole"}, {"0": "whole", "2": "whole"}):
        assert distance(found_sum(model, x, y, 0.1, methods), expected_sum(model, x[good], y[good], 0.1)) < 1e-5


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30, 1e38])
@pytest.mark.parametrize("place", ["input", "target"])
def test_an_example_of_any_value_moves_the_sum_by_at_most_the_clip(value, place):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.PReLU(), nn.Linear(6, 3), nn.LayerNorm(3))
    x, y = torch.randn(6, 2, 8), torch.randn(6)
    without = flat(found_sum(model, x[1:], y[1:], 0.1))
    (x if place == "input" else y)[0] = value
    assert float((flat(found_sum(model, x, y, 0.1)) - without).norm()) <= 0.1


class Picky(nn.Module):
    """A model that fails on one kind of record, as many do on a token or a length that they do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise ValueError("no such token")
        return self.layer(x)


@pytest.mark.parametrize("place", [0, 3])
def test_a_record_on_which_the_pass_fails_counts_as_zero_and_stops_nobody(place):
    """If it stopped the step, or others with it, that would tell that it was drawn."""
    torch.manual_seed(0)
    model, (x, y) = Picky(), data()
    bad = x.clone()
    bad[place] = 1000.0
    rest = [row for row in range(len(x)) if row != place]
    with ClippedGradients(model, clip_norm=0.5) as gradients:
        gradients.clipped(make_forward(model, squares, x, y))
        expected, _ = gradients.clipped(make_forward(model, squares, x[rest], y[rest]))
        try:
            found, norms = gradients.clipped(make_forward(model, squares, bad, y))
        except (ValueError, InvalidArgument) as error:
            pytest.fail(f"one record stopped the step: {error}")
    assert distance(found, expected) < 1e-6
    assert norms.isinf().nonzero().flatten().tolist() == [place]


class Worded(nn.Module):
    """A word beside each position: one that is not in the table fails."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(64, 64, bias=False), nn.Embedding(3, 64).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[..., 1:]) + self.table(x[..., 0].long())


def test_a_record_on_which_the_pass_fails_changes_nothing_of_how_others_are_served():
    """Where positions cancel, Gram matrices leave much room: served otherwise, all others together would move."""
    torch.manual_seed(0)
    model, row = Worded(), torch.randn(1, 1, 65)
    x = (torch.cat([row * (1 + 1e-5 * torch.randn(1, 1, 65)), row], 1) * 1e6).repeat(32, 1, 1)
    x[..., 0] = 1.0
    bad = torch.cat([x, torch.full((1, 2, 65), 99.0)])
    found = []
    for values in (x, bad):
        with ClippedGradients(model, clip_norm=1.0, methods={"layer": "ghost"}, is_tried=True) as gradients:
            loss = lambda output, _: (output[:, 0] - output[:, 1]).sum(1)  # noqa: E731
            found.append(gradients.clipped(make_forward(model, loss, values, torch.zeros(len(values))))[0])
    assert float((flat(found[0]) - flat(found[1])).norm()) < 1e-4


def test_a_norm_beyond_the_range_of_floats_counts_as_not_finite():
    model, (x, y) = small(), data()
    y[2] = 1e30
    good = [row for row in range(8) if row != 2]
    assert distance(found_sum(model, x, y, 0.1), expected_sum(model, x[good], y[good], 0.1)) < 1e-5


class Directed(nn.Module):
    """Directions, over a scale that no rule knows: for zeros there is no direction."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True) / self.scale


@pytest.mark.parametrize("layer", [Directed, lambda: nn.LayerNorm(4, eps=0.0)])
def test_an_example_that_is_not_finite_counts_as_zero_where_zeros_in_its_place_give_no_number(layer):
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(layer(), nn.Linear(4, 2)), data()
    good = [row for row in range(8) if row != 2]
    expected = expected_sum(model, x[good], y[good], 0.1)
    y[2] = math.nan
    assert distance(found_sum(model, x, y, 0.1), expected) < 1e-5


def test_examples_count_as_zero_where_the_way_to_a_parameter_has_no_slope():
    """The root of a weight that is zero: every gradient is ∞, or 0·∞, and alone each would count as zero."""
    model = Applied(lambda x, layer: x * layer.weight[0].abs().sqrt(), layer=nn.Linear(4, 1, bias=False))
    with torch.no_grad():
        model.layers["layer"].weight[0, 1] = 0.0
    assert not flat(found_sum(model, *data(), 1.0)).any()


@pytest.mark.parametrize("length", [1e15, 1e20, 1e25])
def test_a_long_gradient_is_cut_and_not_dropped_by_every_method(length):
    """The choice follows from the batch: cut here and dropped there, it would move the sum beside whoever left."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3, bias=False), torch.randn(2, 5, 4)
    x[0], x[1] = x[0] * length, 0.0
    found = []
    for method in ("direct", "ghost", "whole"):
        with ClippedGradients(model, clip_norm=1.0, methods={"": method}) as gradients:
            found.append(gradients.sum(model(x).abs().flatten(1).sum(1)))
    assert all(distance(each, found[0]) < 1e-4 for each in found[1:])
    assert float(flat(found[0]).norm()) == pytest.approx(1.0, abs=1e-3)
    with ClippedGradients(nn.Linear(4, 3, bias=False), clip_norm=1.0) as gradients:  # without positions
        losses = gradients._model(x[:, 0]).abs().sum(1)
        assert float(flat(gradients.sum(losses)).norm()) == pytest.approx(1.0, abs=1e-3)


def test_an_empty_batch_gives_zeros_for_every_parameter():
    model = small()
    with ClippedGradients(model, clip_norm=1.0) as gradients:
        found = gradients.sum(squares(model(torch.zeros(0, 4)), torch.zeros(0)))
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert not flat(found).any()


def test_parameters_and_their_gradients_are_left_alone():
    model, (x, y) = small(), data()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found_sum(model, x, y, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


# Any architecture


@st.composite
def architectures(draw) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 2**16)))
    size, channels, side = draw(st.integers(2, 5)), draw(st.sampled_from([2, 4])), draw(st.integers(4, 6))
    shape = (channels, side, side)
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        inputs = shape[0]
        outputs = draw(st.sampled_from([2, 4]))
        layer = draw(
            st.sampled_from(
                [
                    nn.Conv2d(inputs, outputs, 3, padding=1, groups=2),
                    nn.Conv2d(inputs, outputs, 2, padding=1, stride=2),
                    nn.Conv2d(inputs, outputs, 1, bias=False),
                    nn.ConvTranspose2d(inputs, outputs, 2, stride=2),
                    nn.Linear(shape[2], shape[2]),
                    nn.GroupNorm(1, inputs),
                    nn.LayerNorm(shape[1:]),
                    nn.RMSNorm(shape),
                    nn.PReLU(inputs),
                ]
            )
        )
        layers += [layer, draw(st.sampled_from([nn.Tanh(), nn.Softplus(), nn.SiLU(inplace=True)]))]
        shape = tuple(nn.Sequential(*layers)(torch.zeros(1, channels, side, side)).shape[1:])
    head = nn.Linear(math.prod(shape), 2)
    return nn.Sequential(*layers, nn.Flatten(1), head), torch.randn(size, channels, side, side)


@given(architectures())
def test_random_architectures_agree_with_vmap(case):
    require_parity(*case)


def test_operations_in_place_after_a_layer_are_allowed():
    torch.manual_seed(0)
    act = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 1))
    x, y = torch.randn(6, 3, 4), torch.randn(6)
    plain = nn.Sequential(*[nn.ReLU() if isinstance(layer, nn.ReLU) else layer for layer in act])
    expected = expected_sum(plain, x, y, 0.1)
    assert distance(found_sum(act, x, y, 0.1), expected) < 1e-5
    assert distance(found_sum(act, x[:, 0], y, 0.1), expected_sum(plain, x[:, 0], y, 0.1)) < 1e-5


def test_a_module_called_twice_is_added_before_the_norm():
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(a(a(x).tanh()).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    require_parity(model, torch.randn(6, 4))


def test_two_forward_passes_in_one_loss_are_added_before_the_norm():
    model, (x, y) = small().double(), data()
    x, y = x.double(), y.double()
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        losses = squares(model(x), y) + squares(model(-x), 2 * y)
        rows = one_by_one.gradients(losses, model)
        found = gradients.sum(losses)
    norms = torch.cat([r.flatten(1) for r in rows.values()], dim=1).norm(dim=1)
    coefficients = (0.1 * (1 - TOLERANCE) / norms).clamp(max=1)
    assert distance(found, {n: torch.tensordot(coefficients, r, dims=1) for n, r in rows.items()}) < 1e-10


def test_weights_tied_between_modules_are_added_before_the_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    require_parity(model, torch.randn(6, 4))


def test_a_weight_used_as_a_function_besides_its_module_is_noticed():
    """No hook sees the second use; the count of uses in autograd's graph does."""
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(a(x).tanh() @ a.weight), a=nn.Linear(4, 3), b=nn.Linear(4, 2))
    require_parity(model, torch.randn(6, 4))


def test_a_module_that_does_not_call_its_children():
    """MultiheadAttention uses its projections as functions."""
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(4, 2, batch_first=True)
    model = Applied(lambda x, a, b: b(a(x, x, x, need_weights=False)[0]), a=attend, b=nn.Linear(4, 2))
    require_parity(model, torch.randn(5, 3, 4))


def test_a_weight_that_is_computed_from_others():
    torch.manual_seed(0)
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2))
    require_parity(model, torch.randn(5, 4))


def test_a_frozen_model_with_adapters():
    torch.manual_seed(0)
    model = Applied(
        lambda x, base, down, up, head: head(base(x) + up(down(x))).tanh(),
        base=nn.Linear(4, 4).requires_grad_(False),
        down=nn.Linear(4, 2, bias=False),
        up=nn.Linear(2, 4, bias=False),
        head=nn.Linear(4, 2).requires_grad_(False),
    )
    require_parity(model, torch.randn(5, 4))


def test_layers_that_run_again_in_the_backward_pass():
    torch.manual_seed(0)
    part = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    plain = nn.ModuleDict({"part": part, "head": nn.Linear(4, 2)})
    saving = Applied(lambda x, part, head: head(checkpoint(part, x, use_reentrant=False)), **plain)
    usual = Applied(lambda x, part, head: head(part(x)), **plain)
    x, y = data(6)
    assert distance(found_sum(saving, x, y, 0.1), expected_sum(usual, x, y, 0.1)) < 1e-5


# What is refused


@pytest.mark.parametrize("weights", [torch.ones(7), torch.full((8,), 0.5), torch.full((8,), math.nan), -torch.ones(8)])
def test_weights_other_than_a_mask_are_refused(weights):
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=1.0) as gradients, pytest.raises(InvalidArgument, match="0 or 1"):
        gradients.sum(squares(model(x), y), weights=weights)


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.nan, math.inf, "1"])
def test_a_clip_that_is_no_length_is_refused(clip_norm):
    with pytest.raises(InvalidArgument, match="clip_norm must be"):
        ClippedGradients(small(), clip_norm=clip_norm)


def test_a_parameter_without_any_use_is_named():
    model, (x, y) = small(), data()
    model.extra = nn.Linear(2, 2)
    model.forward = lambda x: model[2](model[1](model[0](x)))
    with pytest.raises(InvalidArgument, match=r"do not depend on extra\.weight, extra\.bias: freeze"):
        found_sum(model, x, y, 1.0)


def test_a_parameter_hidden_by_reentrant_checkpointing_is_named():
    torch.manual_seed(0)
    model = Applied(lambda x, a, b: b(checkpoint(a, x, use_reentrant=True)), a=nn.Linear(4, 4), b=nn.Linear(4, 2))
    x, y = data()
    with pytest.raises(InvalidArgument, match=r"layers\.a\.weight.*use_reentrant"):
        found_sum(model, x.requires_grad_(), y, 1.0)


@pytest.mark.parametrize("positions", [3, 8])
def test_positions_in_front_of_examples_are_no_examples(positions):
    """Also when there happen to be as many positions as examples, where shapes alone say nothing."""
    torch.manual_seed(0)
    model = Applied(lambda x, a: a(x.transpose(0, 1)).transpose(0, 1), a=nn.Linear(4, 2))
    require_parity(model, torch.randn(8, positions, 4))


def test_positions_folded_into_the_batch_are_no_examples():
    torch.manual_seed(0)
    model = Applied(lambda x, a: a(x.flatten(0, 1)).view(len(x), -1), a=nn.Linear(4, 2))
    require_parity(model, torch.randn(8, 3, 4))


def broadcast() -> nn.Module:
    torch.manual_seed(0)
    place = torch.arange(3).unsqueeze(0)
    return Applied(lambda x, a, b: b(x + a(place)).tanh(), a=nn.Embedding(3, 4), b=nn.Linear(4, 2))


@pytest.mark.parametrize("methods", [None, {"layers.a": "whole"}])
def test_a_layer_that_is_broadcast_over_examples(methods):
    require_parity(broadcast(), torch.randn(8, 3, 4), methods=methods)


def test_one_example_without_batch_axis_is_refused():
    torch.manual_seed(0)
    model = nn.Conv1d(4, 4, 1)
    with (
        ClippedGradients(model, clip_norm=1.0) as gradients,
        pytest.raises(InvalidArgument, match="examples may meet in the model"),
    ):
        gradients.sum(model(torch.randn(4, 7)).sum(1))


def test_batch_norm_is_refused_at_the_door():
    with pytest.raises(InvalidArgument, match="1 is a BatchNorm1d"):
        ClippedGradients(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), clip_norm=1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    model, (x, y) = small().to(dtype), data()
    with pytest.raises(InvalidArgument, match="float32"):
        found_sum(model, x.to(dtype), y.to(dtype), 1.0)


def test_autocast_is_refused():
    model, (x, y) = small(), data()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(InvalidArgument, match="without autocast"):
        found_sum(model, x, y, 1.0)


def test_a_model_without_trainable_parameters_is_refused():
    model, (x, y) = small().requires_grad_(False), data()
    with pytest.raises(InvalidArgument, match="no trainable parameter"):
        found_sum(model, x, y, 1.0)


def test_methods_for_nothing_are_refused():
    with pytest.raises(InvalidArgument, match="does not have: 7"):
        ClippedGradients(small(), clip_norm=1.0, methods={"7": "outer"})
    model, (x, y) = small(), data()
    with pytest.raises(InvalidArgument, match="0 has the methods outer or whole, not 'ghost'"):
        found_sum(model, x, y, 1.0, {"0": "ghost"})


# Its manners


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), (4,)),
        (
            nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(1), nn.Linear(64, 2)),
            (2, 6, 6),
        ),
    ],
    ids=["perceptron", "convolutions"],
)
def test_opacus_gives_the_same_sum(model, shape):
    torch.manual_seed(0)
    x, y = torch.randn(8, *shape), torch.randn(8)
    found = found_sum(model, x, y, 0.1)
    theirs = GradSampleModule(model, loss_reduction="sum")
    squares(theirs(x), y).sum().backward()
    rows = {name.removeprefix("_module."): p.grad_sample for name, p in theirs.named_parameters()}
    theirs.remove_hooks()
    norms = torch.cat([r.flatten(1) for r in rows.values()], dim=1).norm(dim=1)
    coefficients = (0.1 * (1 - TOLERANCE) / norms).clamp(max=1)
    assert distance(found, {n: torch.tensordot(coefficients, r, dims=1) for n, r in rows.items()}) < 1e-5
