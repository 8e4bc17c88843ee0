"""The twelve traps of a fast DP-SGD engine, one test for each, through what users call."""

from __future__ import annotations

import logging
import math
import re

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import SeededSource
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules.registry import GHOSTS
from dpfed.training.private import make_private

SIZE = 8


class Applied(nn.Module):
    """A model whose forward pass is any function of its layers."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._forward = forward

    def forward(self, x):
        return self._forward(x, **self.layers)


class Records(Dataset):
    """Inputs and targets that nobody can look at all at once."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().mean(1)


def data(*shape: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(SIZE, *shape).double(), torch.randn(SIZE).double()


def by_hand(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, loss=squares) -> Tensor:
    """Σ min(1, clip/‖gᵢ‖)·gᵢ by one backward pass for each example alone."""
    total = torch.zeros(sum(value.numel() for value in model.parameters())).double()
    for one in range(len(x)):
        part = torch.autograd.grad(loss(model(x[one : one + 1]), y[one : one + 1]).sum(), list(model.parameters()))
        vector = torch.cat([value.flatten() for value in part])
        total += vector * min(1.0, clip_norm / float(vector.norm()))
    return total


def one_step(model, x, y, clip_norm=1.0, loss=squares, **others):
    """A run of one step in which every record is drawn, with next to no noise."""
    plan = LocalPlan(size=SIZE, batch_size=SIZE, steps=1, clip_norm=clip_norm, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return make_private(model, optimizer, Records(x, y), plan, loss=loss, **others)


def released(model, x, y, clip_norm=1.0, loss=squares, **others) -> Tensor:
    """The sum that one step of training releases."""
    private = one_step(model, x, y, clip_norm, loss, **others)
    before = torch.cat([value.detach().flatten() for value in model.parameters()]).clone()
    private.step(next(private.loader))
    after = torch.cat([value.detach().flatten() for value in model.parameters()])
    for value, old in zip(
        model.parameters(), before.split([value.numel() for value in model.parameters()]), strict=True
    ):
        value.data.copy_(old.view_as(value))
    private.close()
    return (before - after) * SIZE


def clipped_sum(model, x, y, clip_norm=1.0, methods=None, loss=squares) -> Tensor:
    with ClippedGradients(model, clip_norm=clip_norm, methods=methods) as gradients:
        return torch.cat([value.flatten() for value in gradients.sum(loss(model(x), y)).values()])


def methods_of(model: nn.Module, path: str, x: Tensor, y: Tensor) -> list[str]:
    """The ways in which the layer's gradients can be made, as the refusal of another one lists them."""
    with pytest.raises(InvalidArgument) as refusal:
        clipped_sum(model, x, y, methods={path: "?"})
    listed = re.search(r"has the methods (.*) or whole", str(refusal.value))
    return [*listed[1].split(", "), "whole"]


def require_right(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float = 0.3) -> None:
    """Fails unless the release is the sum made by hand; the engine cuts a little shorter than the clip."""
    expected = by_hand(model, x, y, clip_norm)
    assert float((released(model, x, y, clip_norm) - expected).norm() / expected.norm()) < 1e-3


def refused(model, x, y, match, loss=squares):
    """Fails unless it is refused by make_private, or at the latest by the first step and before its charge."""
    taken = []

    def train():
        private = one_step(model, x, y, loss=loss)
        taken.append(private)
        private.step(next(private.loader))

    with pytest.raises(InvalidArgument, match=match):
        train()
    assert all(private.steps_taken == 0 for private in taken)


def test_trap_01_a_parameter_that_no_rule_saw_is_an_error_or_counted_and_never_missing():
    torch.manual_seed(0)
    unused = Applied(lambda x, a, b: a(x), a=nn.Linear(3, 2), b=nn.Linear(3, 2)).double()
    refused(unused, *data(3), match=r"layers\.b\.weight")
    unseen = Applied(lambda x, a: nn.functional.linear(a(x).tanh(), a.weight), a=nn.Linear(3, 3)).double()
    require_right(unseen, *data(3))


def test_trap_02_an_activation_changed_in_place_after_its_use_is_an_error_where_autograd_needs_it():
    def spoiled(x, a, b):
        hidden = a(x)
        out = b(hidden)
        return out + hidden.mul_(3)

    torch.manual_seed(0)
    model = Applied(spoiled, a=nn.Linear(3, 3), b=nn.Linear(3, 3)).double()
    refused(model, *data(3), match="fails on one example alone")


def test_trap_03_uses_of_one_weight_are_added_before_the_norm():
    torch.manual_seed(0)
    twice = Applied(lambda x, a: a(a(x).tanh()), a=nn.Linear(3, 3)).double()
    require_right(twice, *data(3))
    tied = Applied(lambda x, a, b: b(a(x).tanh()), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    tied.layers.b.weight = tied.layers.a.weight
    require_right(tied.double(), *data(3))


@pytest.mark.parametrize(
    "forward",
    [
        lambda x, a: a(x.transpose(0, 1)).transpose(0, 1),
        lambda x, a: a(x.flatten(0, 1)).view(len(x), -1),
        lambda x, a: x[..., :2] + a(torch.ones(1, 4, 3, dtype=x.dtype)),
    ],
    ids=["positions in front", "folded into the batch", "broadcast"],
)
def test_trap_04_where_the_example_is_not_the_first_axis_of_a_layer_examples_run_alone(forward):
    torch.manual_seed(0)
    require_right(Applied(forward, a=nn.Linear(3, 2)).double(), *data(4, 3))


def test_trap_05_what_mixes_examples_is_refused_with_or_without_a_gradient():
    torch.manual_seed(0)
    with pytest.raises(InvalidArgument, match="BatchNorm1d"):
        one_step(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double(), *data(3))

    def contrastive(outputs, targets):
        return (outputs @ outputs.t()).logsumexp(1) - targets

    def weighted(outputs, targets):
        return squares(outputs, targets) / targets.abs().mean()

    plain = nn.Linear(3, 2).double()
    centred = Applied(lambda x, a: a(x - x.mean(0)), a=nn.Linear(3, 2)).double()
    for model, loss in ((plain, contrastive), (plain, weighted), (centred, squares)):
        refused(model, *data(3), match="another|other examples", loss=loss)


def test_trap_06_a_loss_is_one_number_per_example_and_its_scale_never_moves_the_bound():
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(3, 2).double(), data(3)
    refused(model, x, y, match='reduction="none"', loss=lambda outputs, targets: squares(outputs, targets).mean())
    for scale in (1e-6, 1.0, 1e6):
        scaled = [released(model, x, y, loss=lambda o, t, by=scale: by * squares(o, t))]
        scaled.append(by_hand(model, x, y, 1.0, loss=lambda o, t, by=scale: by * squares(o, t)))
        assert torch.allclose(*scaled, rtol=1e-3, atol=1e-6)
        assert float(scaled[0].norm()) <= SIZE


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e6, 1e18])
def test_trap_07_norms_are_never_low_and_an_example_that_is_not_finite_counts_as_zero(scale):
    """Each example alone is at most clip_norm long in float32, also where its positions all but cancel."""
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    x = scale * torch.randn(SIZE, 6, 5)
    x[:, 3:] = -x[:, :3] * (1 + 1e-6 * torch.randn(SIZE, 3, 5))
    y = torch.zeros(SIZE)
    for one in range(SIZE):
        for method in methods_of(model, "", x, y):
            alone = clipped_sum(model, x[one : one + 1], y[one : one + 1], 1e-6, {"": method})
            assert float(alone.double().norm()) <= 1e-6

    x, y = data(3)
    kept = [one for one in range(SIZE) if one != 2]
    for bad in (math.nan, math.inf):
        spoiled = x.clone()
        spoiled[2] = bad
        model = nn.Linear(3, 2).double()
        assert torch.allclose(released(model, spoiled, y), by_hand(model, x[kept], y[kept], 1.0), rtol=1e-3, atol=1e-6)


def test_trap_08_an_empty_draw_gets_noise_counts_and_is_divided_by_the_planned_batch():
    """400 draws of noise on no data: their mean square has a spread of 7 %, and none is off by ten times that."""
    model = nn.Linear(99, 1)
    plan = LocalPlan(size=1000, batch_size=50, steps=4, clip_norm=1.0, noise_multiplier=5.0)
    data = TensorDataset(torch.empty(0, 99), torch.empty(0))
    private = make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), data, plan, loss=squares)
    before = torch.cat([value.detach().flatten() for value in model.parameters()]).clone()
    for batch in private.loader:
        assert batch.is_empty
        private.step(batch)
    moved = torch.cat([value.detach().flatten() for value in model.parameters()]) - before
    assert private.steps_taken == 4
    assert bool((moved != 0).all())
    assert 0.3 < float(moved.square().mean()) / (4 * (5.0 / 50) ** 2) < 1.7


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 4), (4, 5)),
        (nn.LayerNorm(5), (4, 5)),
        (nn.Conv1d(4, 3, 2), (4, 5)),
        (nn.Conv2d(2, 3, 2, groups=1), (2, 4, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trap_09_every_way_that_reads_private_parts_of_torch_has_a_public_twin(layer, shape):
    """The last of the ways is "whole", which is autograd alone; all agree with it."""
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(layer, nn.Tanh()).double(), data(*shape)
    *fast, public = methods_of(model, "0", x, y)
    expected = clipped_sum(model, x, y, 0.1, {"0": public})
    assert fast
    for method in fast:
        assert torch.allclose(clipped_sum(model, x, y, 0.1, {"0": method}), expected, rtol=1e-10, atol=1e-12)


def test_trap_10_autocast_and_hidden_checkpoints_are_refused_other_layouts_are_right_and_pinned_runs_repeat():
    torch.manual_seed(0)
    x, y = data(3)
    with torch.autocast("cpu", torch.bfloat16):
        refused(nn.Linear(3, 2), x.float(), y.float(), match="autocast")

    def again(reentrant):
        return lambda x, a, b: b(checkpoint(a, x.requires_grad_(), use_reentrant=reentrant).tanh())

    layers = {"a": nn.Linear(3, 3).double(), "b": nn.Linear(3, 2).double()}
    refused(Applied(again(True), **layers), x, y, match="use_reentrant")
    require_right(Applied(again(False), **layers), x.detach(), y)

    images, y = data(2, 6, 6)
    conv = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3)).double()
    last = conv.to(memory_format=torch.channels_last)
    require_right(last, images.contiguous(memory_format=torch.channels_last), y)

    for method in methods_of(conv, "0", images, y):
        pinned = {"0": method, "2": "grouped"}
        runs = [clipped_sum(conv.float(), images.float(), y.float(), 0.3, pinned) for _ in range(2)]
        assert torch.equal(*runs)


def test_trap_11_norms_and_shares_of_clipped_examples_are_nowhere_to_be_read(caplog, capfd):
    """Twice the same run, in which all examples are clipped or none: what can be read of it is the same."""
    shown = []
    for scale in (1e-3, 1e3):
        torch.manual_seed(0)
        model, (x, y) = nn.Linear(3, 2).double(), data(3)
        with caplog.at_level(logging.DEBUG):
            private = one_step(model, x * scale, y * scale, source=SeededSource(3))
            private.step(next(private.loader))
        kept = ("model", "optimizer", "loader")
        names = [name for name in dir(private) if not name.startswith("_") and name not in kept]
        shown.append({name: repr(getattr(private, name)) for name in names if not callable(getattr(private, name))})
        assert not any(value.grad is not None for value in model.parameters())
    assert shown[0] == shown[1]
    assert "steps_taken" in shown[0]
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
    with ClippedGradients(nn.Linear(3, 2), clip_norm=1.0) as gradients:
        assert [name for name in vars(gradients) if not name.startswith("_")] == ["clip", "is_exact"]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6)), (nn.Linear(5, 4), (7, 5)), (nn.GroupNorm(2, 4), (4, 5))],
    ids=lambda value: type(value).__name__,
)
def test_trap_12_what_the_clock_chooses_changes_the_time_and_not_the_result(layer, shape):
    """A busy machine makes the measured choice arbitrary, so any choice must do."""
    torch.manual_seed(0)
    model, (x, y) = nn.Sequential(layer, nn.Tanh()).float(), data(*shape)
    x, y = x.float(), y.float()
    chosen = clipped_sum(model, x, y, 0.1).double()
    for method in set(methods_of(model, "0", x, y)) - set(GHOSTS):  # the clock never chooses between these and others
        other = clipped_sum(model, x, y, 0.1, {"0": method}).double()
        assert float((other - chosen).norm() / chosen.norm()) < 1e-5
