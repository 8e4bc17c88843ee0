"""Clipped sums of many models at once against autograd, one example of one model at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.many.ensemble import Ensemble, Unsupported

MODELS, EXAMPLES = 3, 5
CLIPS = torch.tensor([0.5, 2.0, 1e-3], dtype=torch.float64)


def squares(outputs, targets):
    return (outputs.flatten(1) * (1 + targets.unsqueeze(1))).square().sum(1)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, padding_idx=1)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.table(tokens)).sum(1)


# Every layer with a rule, with the shape of one example.
LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "without bias": (lambda: nn.Linear(6, 3, bias=False), (6,)),
    "sequence": (lambda: nn.Linear(6, 3), (4, 6)),
    "deep": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)), (6,)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), (2, 6, 6)),
    "conv2d circular": (lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="circular"), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 4, 4)),
    "group norm": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), (2, 5, 5)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)), (6,)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 5), nn.RMSNorm(5)), (6,)),
    "instance norm": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, affine=True)), (2, 6)),
    "embedding": (Tokens, "tokens"),
}


def batch(shape, dtype, *extra, seed=0):
    draws = torch.Generator().manual_seed(seed)
    if shape == "tokens":
        inputs = torch.randint(0, 6, (*extra, 7), generator=draws)
    else:
        inputs = torch.randn((*extra, *shape), dtype=dtype, generator=draws)
    return inputs, torch.randint(0, 2, extra, generator=draws)


def world(case, dtype=torch.float64):
    factory, shape = LAYERS[case]
    torch.manual_seed(1)
    model = factory().to(dtype)
    ensemble = Ensemble(model, squares, batch(shape, dtype, 4, seed=9))
    weights = ensemble.stacked(MODELS)
    for value in weights.values():
        value += 0.3 * torch.randn_like(value)
    mask = torch.ones(MODELS, EXAMPLES, dtype=torch.float64)
    mask[0, 2] = mask[2, 0] = 0
    return model, ensemble, weights, *batch(shape, dtype, MODELS, EXAMPLES), mask


def expected(model, weights, inputs, targets, mask, clips=CLIPS):
    """One example of one model at a time, all in float64."""
    model = model.double()
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in weights.items()}
    for k, i in mask.nonzero().tolist():
        own = {name: value[k].double().requires_grad_() for name, value in weights.items()}
        x = inputs[k, i : i + 1]
        outputs = functional_call(model, own, (x.double() if x.is_floating_point() else x,))
        found = torch.autograd.grad(squares(outputs, targets[k, i : i + 1]).sum(), list(own.values()))
        length = sum(float(value.square().sum()) for value in found) ** 0.5
        for name, value in zip(own, found, strict=True):
            sums[name][k] += value * min(1.0, float(clips[k]) * (1 - TOLERANCE) / length)
    return sums


def apart(one, other, models=range(MODELS)) -> float:
    """The largest difference, in units of the model's largest number."""
    return max(
        max(float((one[n][k] - other[n][k]).abs().max()) for n in one)
        / max(float(other[n][k].abs().max()) for n in one)
        for k in models
    )


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_clipped_sums_are_those_of_one_example_at_a_time(case, dtype, within):
    model, ensemble, weights, *examples = world(case, dtype)
    found = ensemble.clipped_sums(weights, *examples, CLIPS)
    assert apart(found, expected(model, weights, *examples)) < within


def shared(weights):
    """The first model's weights, alone and for all models."""
    one = {name: value[0] for name, value in weights.items()}
    return one, {name: value.expand(MODELS, *value.shape).clone() for name, value in one.items()}


@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_one_pass_through_one_model_is_all_of_them(case, dtype, within):
    model, ensemble, weights, inputs, targets, mask = world(case, dtype)
    one, same = shared(weights)
    found = ensemble.clipped_sums(one, inputs, targets, mask, CLIPS, is_shared=True)
    means = ensemble.mean_gradients(one, inputs, targets, mask, is_shared=True)
    assert apart(means, ensemble.mean_gradients(same, inputs, targets, mask)) < within
    assert list(found) == list(means) == list(one)
    assert apart(found, expected(model, same, inputs, targets, mask)) < within


@pytest.mark.parametrize(("case", "is_better"), [("deep", True), ("embedding", False), ("conv2d", False)])
def test_one_pass_is_taken_unless_plain_gradients_would_be_written_out(case, is_better):
    _, ensemble, *_ = world(case)
    assert ensemble.is_better_shared(is_private=True)
    assert ensemble.is_better_shared(is_private=False) is is_better


@pytest.mark.parametrize("case", ["deep", "conv2d", "embedding"])
def test_one_model_alone_is_that_model_among_others(case):
    _, ensemble, weights, *examples = world(case)
    found = ensemble.clipped_sums(weights, *examples, CLIPS)
    for k in range(MODELS):
        own = {name: value[k : k + 1] for name, value in weights.items()}
        alone = ensemble.clipped_sums(own, *(part[k : k + 1] for part in examples), CLIPS[k : k + 1])
        assert all(torch.allclose(alone[name][0], found[name][k], rtol=1e-10, atol=1e-15) for name in own)


@pytest.mark.parametrize("case", ["deep", "conv2d", "group norm", "embedding"])
@pytest.mark.parametrize("models", [1, MODELS])
def test_mean_gradients_are_those_of_autograd(case, models):
    model, ensemble, weights, inputs, targets, mask = world(case)
    weights = {name: value[:models] for name, value in weights.items()}
    found = ensemble.mean_gradients(weights, inputs[:models], targets[:models], mask[:models])
    for k in range(models):
        there = mask[k] > 0
        own = {name: value[k].clone().requires_grad_() for name, value in weights.items()}
        losses = squares(functional_call(model, own, (inputs[k][there],)), targets[k][there])
        wanted = torch.autograd.grad(losses.mean(), list(own.values()))
        assert all(torch.allclose(found[name][k], v, rtol=1e-9) for name, v in zip(own, wanted, strict=True))


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("case", LAYERS)
def test_one_example_moves_its_models_sum_by_the_clip_norm_and_no_other_by_a_bit(case, is_shared):
    _, ensemble, weights, inputs, targets, mask = world(case, torch.float32)
    weights = shared(weights)[0] if is_shared else weights
    before = ensemble.clipped_sums(weights, inputs, targets, mask, CLIPS, is_shared=is_shared)
    changes = {"removed": inputs, "replaced": inputs.clone(), "long": inputs.clone(), "infinite": inputs.clone()}
    if inputs.is_floating_point():
        changes["replaced"][1, 3] = 5 - inputs[1, 3]
        changes["long"][1, 3] *= 1e6
        changes["infinite"][1, 3] = torch.inf
    else:
        changes = {"removed": inputs, "replaced": inputs.clone()}
        changes["replaced"][1, 3] = 5
    for change, examples in changes.items():
        fewer = mask.clone()
        fewer[1, 3] = 0 if change == "removed" else 1
        after = ensemble.clipped_sums(weights, examples, targets, fewer, CLIPS, is_shared=is_shared)
        moved = sum(float((after[name][1] - before[name][1]).double().square().sum()) for name in after) ** 0.5
        assert 0 < moved <= (1 if change in ("removed", "infinite") else 2) * float(CLIPS[1]), change
        for name in after:
            assert torch.equal(after[name][0], before[name][0]), change
            assert torch.equal(after[name][2], before[name][2]), change


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_padding_may_hold_anything(value, is_shared):
    _, ensemble, weights, inputs, targets, mask = world("deep", torch.float32)
    weights = shared(weights)[0] if is_shared else weights
    before = ensemble.clipped_sums(weights, inputs, targets, mask, CLIPS, is_shared=is_shared)
    inputs = inputs.clone()
    inputs[0, 2] = value
    after = ensemble.clipped_sums(weights, inputs, targets, mask, CLIPS, is_shared=is_shared)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_model_without_examples_has_a_sum_of_zero():
    _, ensemble, weights, inputs, targets, mask = world("deep")
    mask[1] = 0
    for found in (
        ensemble.clipped_sums(weights, inputs, targets, mask, CLIPS),
        ensemble.mean_gradients(weights, inputs, targets, mask),
    ):
        assert all(not part[1].any() for part in found.values())
        assert any(part[0].any() for part in found.values())


def test_frozen_parameters_are_left_out_and_used():
    model, (inputs, targets) = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).double(), batch((6,), torch.float64, 4)
    model[0].weight.requires_grad_(False)
    ensemble = Ensemble(model, squares, (inputs, targets))
    weights = ensemble.stacked(2)
    assert set(weights) == {"0.bias", "1.weight", "1.bias"}
    examples = (inputs.expand(2, -1, -1), targets.expand(2, -1), torch.ones(2, 4, dtype=torch.float64))
    found = ensemble.clipped_sums(weights, *examples, CLIPS[:2])
    assert apart(found, expected(model, weights, *examples, CLIPS[:2]), range(2)) < 1e-10


class Model(nn.Module):
    """A layer, used as `way` says."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.linear, self.way = nn.Linear(6, 6), way
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.way == "tied":
            return self.linear(torch.tanh(self.linear(x)))
        if self.way == "functional":
            return nn.functional.linear(self.linear(x), self.linear.weight)
        if self.way == "in place":
            x = x.clone()
            outputs = self.linear(x)
            return outputs * x.mul_(2)
        if self.way == "dropout":
            return nn.functional.dropout(self.linear(x), 0.01)
        if self.way == "random":
            return self.linear(x) + 0 * torch.rand_like(x)
        if self.way == "branch":
            return self.linear(x) if float(x.sum()) > 0 else self.linear(-x)
        if self.way == "remembers":
            self.seen = self.seen + x.detach().sum()
            return self.linear(x)
        return self.linear(x - x.mean(0))


@pytest.mark.parametrize("way", ["tied", "functional", "in place", "dropout", "random"])
def test_models_that_cannot_be_stacked_are_refused(way):
    with pytest.raises(Unsupported, match="cannot be trained at once"):
        Ensemble(Model(way), squares, batch((6,), torch.float32, 4))


@pytest.mark.parametrize(("way", "reason"), [("remembers", "stores"), ("branch", "moved"), ("mixes", "moved")])
def test_models_that_no_clipping_protects_are_refused(way, reason):
    with pytest.raises(InvalidArgument, match=reason):
        Ensemble(Model(way), squares, batch((6,), torch.float32, 4))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(6), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), nn.LSTM(6, 6), nn.Bilinear(6, 6, 2)]
)
def test_layers_without_a_rule_are_refused(layer):
    with pytest.raises((InvalidArgument, TypeError, AttributeError)):
        Ensemble(layer, squares, batch((6,), torch.float32, 4))


def test_a_model_without_trainable_parameters_is_refused():
    model = nn.Linear(6, 2).requires_grad_(False)
    with pytest.raises(InvalidArgument, match="no trainable parameter"):
        Ensemble(model, squares, batch((6,), torch.float32, 4))


def mixed_by_value(outputs, targets):
    return squares(outputs, targets) / squares(outputs, targets).detach().sum()


def mixed_by_gradient(outputs, targets):
    return squares(outputs - outputs.mean(0), targets)


@pytest.mark.parametrize("loss", [mixed_by_value, mixed_by_gradient])
def test_a_loss_that_mixes_examples_is_refused(loss):
    with pytest.raises(InvalidArgument, match="moved"):
        Ensemble(nn.Linear(6, 2), loss, batch((6,), torch.float32, 4))


def test_what_is_zero_at_first_hides_nothing():
    class Late(nn.Module):
        """Changes the input of its first layer in place; at its first weights nobody would notice."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
            nn.init.zeros_(self.last.weight)

        def forward(self, x):
            x = x.clone()
            hidden = self.first(x)
            x.mul_(3)
            return self.last(hidden) + 0 * x.sum(1, keepdim=True)

    with pytest.raises(Unsupported):
        Ensemble(Late(), squares, batch((6,), torch.float32, 4))


def test_bytes_are_those_of_parameters_and_of_what_an_example_holds():
    ensemble = Ensemble(nn.Linear(6, 2), squares, batch((6,), torch.float32, 4))
    assert ensemble.bytes_per_model == 4 * 14
    assert ensemble.bytes_per_example == 4 * (6 + 2 * 2)
    written = Ensemble(nn.Conv1d(2, 3, 2), squares, batch((2, 6), torch.float32, 4))
    assert written.bytes_per_example == 4 * (12 + 2 * 15 + 15)


def test_a_token_beyond_the_table_is_not_looked_up_in_the_next_models_table():
    """Under vmap tables stand behind each other, and so did their gradients: the last example's reached the next."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(1), nn.Linear(18, 2))
    targets = torch.zeros(2, 4, dtype=torch.long)
    ensemble = Ensemble(model, nn.CrossEntropyLoss(reduction="none"), (torch.randint(0, 2, (4, 6)), targets[0]))
    many = {name: value + torch.randn_like(value) for name, value in ensemble.stacked(2).items()}
    inputs = torch.randint(0, 5, (2, 4, 6))
    beyond = inputs.clone()
    beyond[0, 3, 0] = 7
    clips, mask = torch.ones(2), torch.ones(2, 4)
    for before, after in (
        [ensemble.clipped_sums(many, given, targets, mask, clips) for given in (inputs, beyond)],
        [ensemble.mean_gradients(many, given, targets, mask) for given in (inputs, beyond)],
    ):
        assert all(torch.equal(before[name][1], after[name][1]) for name in before)


class Reordered(nn.Module):
    """Sorts the rows by their first feature, and puts them back: examples are right, their places are not."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        order = x[:, 0].argsort()
        return self.head(self.body(x[order]).tanh()[order.argsort()])


def test_a_model_that_moves_rows_is_trained_one_after_the_other():
    with pytest.raises(InvalidArgument, match="not known to keep examples apart"):
        Ensemble(Reordered(), nn.CrossEntropyLoss(reduction="none"), (torch.randn(4, 3), torch.zeros(4).long()))


class Late(nn.Module):
    """Adds the batch turned around to itself from some call on, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.is_late = nn.Linear(3, 4), nn.Linear(4, 2), False

    def forward(self, x):
        if self.is_late:
            x += x.flip(0)
        return self.head(self.body(x).tanh())


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_program_that_changes_is_looked_at_again(is_shared):
    """What is not apart any more is taken one example after the other: a refusal would tell when it happened."""
    model = Late()
    ensemble = Ensemble(model, squares, (torch.randn(4, 3), torch.zeros(4).long()))
    one, weights = shared(ensemble.stacked(MODELS))
    inputs, targets = torch.randn(MODELS, 5, 3), torch.zeros(MODELS, 5, dtype=torch.long)
    mask, held = torch.ones(MODELS, 5), one if is_shared else weights
    ensemble.clipped_sums(held, inputs, targets, mask, CLIPS, is_shared=is_shared)
    model.is_late = True
    found = ensemble.clipped_sums(held, inputs.clone(), targets, mask, CLIPS, is_shared=is_shared)
    assert apart(found, expected(model, weights, inputs, targets, mask)) < 1e-4


class LookedUp(nn.Module):
    """Looks up a row of a table by the sum of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("table", torch.randn(5, 4))

    def forward(self, x):
        return self.layer(self.table[x[:, 0] + x[:, 1]])


@pytest.mark.parametrize("models", [1, 2])
def test_a_record_on_which_the_pass_fails_counts_as_zero_and_stops_no_model(models):
    ensemble = Ensemble(LookedUp(), squares, (torch.randint(0, 2, (4, 2)), torch.zeros(4).long()))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 3, (models, 5, 2), generator=generator)
    targets, mask, clips = torch.zeros(models, 5, dtype=torch.long), torch.ones(models, 5), torch.ones(models)
    weights = ensemble.stacked(models)
    without = mask.clone()
    without[0, 2] = 0
    rest = ensemble.clipped_sums(weights, inputs, targets, without, clips)
    inputs[0, 2] = 3  # 3 + 3 is no row of the table
    try:
        found = ensemble.clipped_sums(weights, inputs, targets, mask, clips)
    except IndexError as error:
        pytest.fail(f"one record stops the step: {error}")
    assert all(torch.allclose(found[name], rest[name], rtol=1e-4, atol=1e-6) for name in found)


class Spoiled(LookedUp):
    """The same; a number that is in no row spoils what the model has, for all that come later."""

    def forward(self, x):
        try:
            return super().forward(x)
        except IndexError:
            self.layer.weight.data.zero_()
            self.table.resize_(0, *self.table.shape[1:])
            raise


@pytest.mark.parametrize("models", [1, 2])
def test_what_a_record_makes_the_pass_write_reaches_no_other(models):
    model = Spoiled()
    ensemble = Ensemble(model, squares, (torch.randint(0, 2, (4, 2)), torch.zeros(4).long()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = torch.zeros(models, 5, 2, dtype=torch.long)
    targets, mask, clips = torch.zeros(models, 5, dtype=torch.long), torch.ones(models, 5), torch.ones(models)
    mask[0, 2] = 0
    rest = ensemble.clipped_sums(ensemble.stacked(models), inputs, targets, mask, clips)
    inputs[0, 2] = 3  # 3 + 3 is no row of the table
    mask[0, 2] = 1
    found = ensemble.clipped_sums(ensemble.stacked(models), inputs, targets, mask, clips)
    assert all(torch.allclose(found[name], rest[name], rtol=1e-4, atol=1e-6) for name in found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_example_that_is_not_finite_counts_as_zero_where_zeros_in_its_place_give_no_number():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4, eps=0.0), nn.Linear(4, 2))
    inputs, targets = torch.randn(2, EXAMPLES, 4), torch.randn(2, EXAMPLES)
    ensemble = Ensemble(model, squares, (inputs[0], targets[0]))
    mask, clips = torch.ones(2, EXAMPLES), torch.ones(2)
    mask[0, 1] = 0
    expected = ensemble.clipped_sums(ensemble.stacked(2), inputs, targets, mask, clips)
    targets[0, 1] = torch.nan
    found = ensemble.clipped_sums(ensemble.stacked(2), inputs, targets, torch.ones(2, EXAMPLES), clips)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


class Barred(nn.Module):
    """A convolution; a record that begins with one certain number is in no row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(4, 8, 3, bias=False)
        self.register_buffer("table", torch.ones(1))

    def forward(self, x):
        is_barred = (x[:, 0, 0] - 0.3).abs() < 1e-5
        return self.layer(x) * self.table[is_barred.long()].view(-1, 1, 1)


def weigh(outputs, weights):
    return (outputs * weights).flatten(1).sum(1)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_record_on_which_the_pass_fails_changes_the_share_of_no_other(is_shared):
    torch.manual_seed(0)
    ensemble = Ensemble(Barred(), weigh, (torch.randn(4, 4, 64), torch.randn(4, 8, 62)))
    parameters = ensemble.stacked(2)
    held = {name: value[0] for name, value in parameters.items()} if is_shared else parameters
    inputs = torch.rand(2, 16, 4, 1).expand(-1, -1, -1, 64).contiguous() + 0.5
    targets = torch.randn(2, 16, 8, 62).double()
    targets = (targets - targets.mean(3, keepdim=True)).float()  # positions cancel: what is left is rounding
    mask, clips = torch.ones(2, 16), torch.full((2,), 1e-6)
    mask[0, 3] = 0
    rest = ensemble.clipped_sums(held, inputs, targets, mask, clips, is_shared=is_shared)
    inputs[0, 3, 0, 0] = 0.3
    found = ensemble.clipped_sums(held, inputs, targets, torch.ones(2, 16), clips, is_shared=is_shared)
    moved = (found["layer.weight"] - rest["layer.weight"]).flatten(1).norm(dim=1) / clips
    assert moved.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_input_so_large_that_scaled_gradients_are_rounded_up_is_clipped_all_the_same(is_shared):
    """2.41e-7/3.4e38 is 0.51 of the least float32 above zero."""
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 1e-3)
    ensemble = Ensemble(model, weigh, (torch.ones(4, 1), torch.ones(4, 1)))
    parameters = ensemble.stacked(2)
    held = {name: value[0] for name, value in parameters.items()} if is_shared else parameters
    inputs, targets = torch.tensor([[[3.4e38]], [[1.0]]]), torch.tensor([[[1e-20]], [[0.0]]])
    clips = torch.full((2,), 2.41e-7, dtype=torch.float64)
    found = ensemble.clipped_sums(held, inputs, targets, torch.ones(2, 1), clips, is_shared=is_shared)
    assert float(found["weight"][0].abs()) == pytest.approx(2.41e-7, rel=2e-4)
    assert float(found["weight"][1].abs()) == 0.0
