from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from clipped import distance
from dpfed.errors import InvalidArgument
from dpfed.training import compat
from dpfed.training.gradients import ClippedGradients
from dpfed.training.recurrent import Unrolled, unrolled
from one_by_one import clipped, gradients, require_equal

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN with ReLU": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "without bias": {"bias": False},
    "three layers": {"num_layers": 3},
    "both directions": {"bidirectional": True},
    "two layers in both directions": {"num_layers": 2, "bidirectional": True},
    "dropout of nothing": {"num_layers": 2, "dropout": 0.3},
}


def made(kind: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind](3, 4, batch_first=True, **options)


def all_outputs(layer: nn.Module, x: Tensor) -> Tensor:
    """A loss of the states at every position and of the last state of each layer."""
    outputs, states = layer(x)
    parts = [outputs.sin(), *[(state + 0.3).pow(3) for state in _each(states)]]
    return sum(part.flatten(1).sum(1) for part in (parts[0], *[p.transpose(0, 1) for p in parts[1:]]))


def _each(states) -> tuple[Tensor, ...]:
    return states if isinstance(states, tuple) else (states,)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_clipped_sums_are_those_of_torchs_layer(kind, options):
    layer = made(kind, **OPTIONS[options]).eval()
    require_equal(layer, unrolled(layer), torch.randn(6, 5, 3), all_outputs)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_short_sequences(kind, length):
    layer = made(kind)
    require_equal(layer, unrolled(layer), torch.randn(9, length, 3), all_outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_state_that_is_given_and_has_a_gradient(kind):
    class Started(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.start, self.layer = nn.Linear(3, 4), layer

        def forward(self, x):
            start = self.start(x[:, 0]).unsqueeze(0)
            return self.layer(x, (start, start.cos()) if kind == "LSTM" else start)

    layer = made(kind)
    torch.manual_seed(1)
    plain = Started(layer)
    require_equal(plain, compat.fix(plain), torch.randn(5, 4, 3), all_outputs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_twin_is_torchs_layer_to_everyone_else(kind):
    """Same outputs, names, state_dict in both directions, and plain gradients."""
    layer = made(kind, num_layers=2, bidirectional=True).double()
    twin = unrolled(layer)
    x = torch.randn(4, 5, 3).double()
    for is_training in (True, False):
        with torch.set_grad_enabled(is_training):
            (out, states), (found, ends) = layer(x), twin(x)
        assert torch.allclose(out, found, atol=1e-12)
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(_each(states), _each(ends), strict=True))
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in layer.named_parameters()]
    assert list(twin.state_dict()) == list(layer.state_dict())
    other = made(kind, num_layers=2, bidirectional=True).double()
    other.load_state_dict(twin.state_dict())
    twin.load_state_dict(other.state_dict())
    usual, ours = (torch.autograd.grad(all_outputs(m, x).sum(), list(m.parameters())) for m in (layer, twin))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(usual, ours, strict=True))


def test_a_state_dict_that_is_assigned_reaches_the_products():
    twin, other = unrolled(made("GRU")), nn.GRU(3, 4, batch_first=True)
    twin.load_state_dict(other.state_dict(), assign=True)
    x = torch.randn(2, 5, 3)
    assert torch.allclose(twin(x)[0], other(x)[0], atol=1e-6)
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in other.named_parameters()]


def test_a_copy_of_a_twin_has_parameters_of_its_own():
    twin = unrolled(made("LSTM"))
    x = torch.randn(2, 5, 3)
    before = twin(x)[0]
    other = copy.deepcopy(twin)
    with torch.no_grad():
        other.weight_hh_l0.add_(1)
    assert torch.equal(twin(x)[0], before)
    assert not torch.allclose(other(x)[0], before)


def test_dropout_between_layers_keeps_examples_apart():
    """The masks of the graph decide, so the sum is that of one backward pass per example through the same graph."""
    twin = unrolled(made("LSTM", num_layers=2, dropout=0.5)).double()
    with ClippedGradients(twin, clip_norm=0.5) as engine:
        losses = all_outputs(twin, torch.randn(6, 5, 3).double())
        rows = gradients(losses, twin)
        assert distance(engine.sum(losses), clipped(rows, 0.5)) < 1e-10
    assert not torch.equal(*[twin(torch.ones(1, 5, 3).double())[0] for _ in range(2)])


def test_a_frozen_half_of_a_layer():
    layer = made("GRU")
    for name in ("weight_ih_l0", "bias_hh_l0"):
        layer.get_parameter(name).requires_grad_(False)
    require_equal(layer, unrolled(layer), torch.randn(6, 5, 3), all_outputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_example_that_is_not_finite_counts_as_zero(kind, value):
    twin = unrolled(made(kind, num_layers=2))
    x = torch.randn(6, 5, 3)
    x[2, 3, 1] = value
    good = [0, 1, 3, 4, 5]
    with ClippedGradients(twin, clip_norm=0.1) as engine:
        with_it, without = engine.sum(all_outputs(twin, x)), engine.sum(all_outputs(twin, x[good]))
    # An infinite input can leave bounded gates and finite gradients behind: then it may count for one clip.
    moved = torch.cat([(with_it[name] - without[name]).flatten() for name in without]).norm()
    assert float(moved) <= (1e-6 if math.isnan(value) else 0.1)


def test_fixed_models_take_no_slow_way(monkeypatch):
    """Neither vmap nor one pass per example: the engine finds every product by itself."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 3)
            self.layers = nn.ModuleList([nn.GRU(3, 4, batch_first=True), nn.LSTM(4, 4, batch_first=True)])
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            values = self.table(x)
            for layer in self.layers:
                values, _ = layer(values)
            return self.head(values[:, -1])

    torch.manual_seed(0)
    plain = Words()
    fixed = compat.fix(plain)
    assert [type(layer) for layer in fixed.layers] == [Unrolled, Unrolled]
    monkeypatch.setattr(ClippedGradients, "_one_by_one", None)
    require_equal(plain, fixed, torch.randint(0, 11, (6, 5)), lambda model, x: model(x).square().sum(1))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zeros(kind):
    twin = unrolled(made(kind))
    with ClippedGradients(twin, clip_norm=1.0) as engine:
        found = engine.sum(all_outputs(twin, torch.zeros(0, 5, 3)))
    assert not any(value.any() for value in found.values())


def test_a_layer_that_stands_in_two_places_is_replaced_in_both():
    torch.manual_seed(0)
    layer = nn.GRU(4, 4, batch_first=True)
    fixed = compat.fix(nn.ModuleList([layer, layer]))
    assert fixed[0] is fixed[1]
    assert isinstance(fixed[0], Unrolled)


def test_a_layer_called_twice_is_added_before_the_norm():
    layer = made("LSTM")

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return all_outputs(model, x) + all_outputs(model, -x)

    require_equal(layer, unrolled(layer), torch.randn(6, 5, 3), losses)


def test_what_has_no_twin_is_refused_with_its_path():
    with pytest.raises(InvalidArgument, match=r"^0: .*proj_size.*add a Linear"):
        compat.fix(nn.Sequential(nn.LSTM(3, 4, proj_size=2, batch_first=True)))
    with pytest.raises(InvalidArgument, match=r"^the model: this GRU takes the position first.*batch_first=True"):
        compat.fix(nn.GRU(3, 4))


def test_inputs_without_a_batch_and_packed_ones_are_refused():
    twin = unrolled(made("RNN"))
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 3), [5, 4], batch_first=True)
    for x in (torch.randn(5, 3), packed, torch.randn(2, 0, 3)):
        with pytest.raises(InvalidArgument, match="pad sequences"):
            twin(x)
    with pytest.raises(InvalidArgument, match=r"1 states of \(1, 2, 4\), got"):
        twin(torch.randn(2, 5, 3), torch.zeros(1, 3, 4))
