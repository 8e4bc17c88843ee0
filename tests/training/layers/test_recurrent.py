from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from clipped import distance
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.layers.recurrent import RecurrentTwin
from one_by_one import clipped, gradients, require_fast

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN with ReLU": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "projected LSTM": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
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
    return KINDS[kind](3, 4, **{"batch_first": True, **options})


class PositionFirst(nn.Module):
    """A layer in torch's own layout, on examples that come first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        outputs, states = self.layer(x.transpose(0, 1))
        return outputs.transpose(0, 1), states


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
    require_fast(made(kind, **OPTIONS[options]).eval(), torch.randn(6, 5, 3), all_outputs)


@pytest.mark.parametrize("options", ["plain", "two layers in both directions"])
@pytest.mark.parametrize("kind", KINDS)
def test_positions_may_be_the_first_axis(kind, options):
    layer = made(kind, batch_first=False, **OPTIONS[options])
    require_fast(PositionFirst(layer), torch.randn(6, 5, 3), all_outputs)


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_short_sequences(kind, length):
    require_fast(made(kind), torch.randn(9, length, 3), all_outputs)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "RNN with ReLU"])
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
    require_fast(Started(layer), torch.randn(5, 4, 3), all_outputs)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_plain_gradients_are_torchs(kind, is_first):
    layer = made(kind, num_layers=2, bidirectional=True, batch_first=is_first).double()
    twin = RecurrentTwin(layer)
    x = torch.randn(5, 5, 3).double()
    (out, states), (found, ends) = layer(x), twin(layer, x)
    assert torch.allclose(out, found, atol=1e-12)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(_each(states), _each(ends), strict=True))
    usual, ours = (
        torch.autograd.grad(all_outputs(model, x).sum(), list(layer.parameters()))
        for model in (layer, lambda x: twin(layer, x))
    )
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(usual, ours, strict=True))


def test_dropout_between_layers_keeps_examples_apart():
    """The masks of the graph decide, so the sum is that of one backward pass per example through the same graph."""
    layer = made("LSTM", num_layers=2, dropout=0.5).double()
    with ClippedGradients(layer, clip_norm=0.5) as engine:
        losses = all_outputs(layer, torch.randn(6, 5, 3).double())
        rows = gradients(losses, layer)
        assert distance(engine.sum(losses), clipped(rows, 0.5)) < 1e-10
        assert engine.slow_reasons == ()
        assert not torch.equal(*[layer(torch.ones(1, 5, 3).double())[0] for _ in range(2)])


def test_a_frozen_half_of_a_layer():
    layer = made("GRU")
    for name in ("weight_ih_l0", "bias_hh_l0"):
        layer.get_parameter(name).requires_grad_(False)
    require_fast(layer, torch.randn(6, 5, 3), all_outputs)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_frozen_layer_below_others(kind):
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = made(kind).requires_grad_(False), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.layer(x)[0])

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sin().flatten(1).sum(1)

    model, x = Frozen(), torch.randn(6, 5, 3)
    require_fast(model, x, losses)
    with ClippedGradients(model, clip_norm=1.0) as engine:
        for _ in range(3):
            engine.sum(losses(model, x))
        assert len(engine._programs._ways) <= 4  # a program that is not known again would be looked at at every step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_example_that_is_not_finite_counts_as_zero(kind, value):
    layer = made(kind, num_layers=2)
    x = torch.randn(6, 5, 3)
    x[2, 3, 1] = value
    good = [0, 1, 3, 4, 5]
    with ClippedGradients(layer, clip_norm=0.1) as engine:
        with_it, without = engine.sum(all_outputs(layer, x)), engine.sum(all_outputs(layer, x[good]))
    # An infinite input can leave bounded gates and finite gradients behind: then it may count for one clip.
    moved = torch.cat([(with_it[name] - without[name]).flatten() for name in without]).norm()
    assert float(moved) <= (1e-6 if math.isnan(value) else 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zeros(kind):
    layer = made(kind)
    with ClippedGradients(layer, clip_norm=1.0) as engine:
        found = engine.sum(all_outputs(layer, torch.zeros(0, 5, 3)))
    assert not any(value.any() for value in found.values())


def test_a_layer_called_twice_is_added_before_the_norm():
    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return all_outputs(model, x) + all_outputs(model, -x)

    require_fast(made("LSTM"), torch.randn(6, 5, 3), losses)


def test_an_output_may_be_changed_in_place():
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = made("GRU")

        def forward(self, x):
            return self.layer(x)[0].mul_(2.0).relu_()

    require_fast(Changed(), torch.randn(6, 5, 3), lambda model, x: model(x).flatten(1).sum(1))


@pytest.mark.parametrize("of", ["input", "state"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_which_tensors_python_gives_to_the_layer_is_noticed_at_every_step(kind, is_first, of):
    """All of them are there in every pass, so that nothing else tells which one a record is given by its place."""

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.is_late = made(kind, batch_first=is_first), False

        def forward(self, pair):
            x, start = (value.clone() if is_first else value.transpose(0, 1).clone() for value in pair)
            start = start if not is_first else start.transpose(0, 1)
            by_place = torch.arange(32.0).view(32, 1, 1)[: len(pair[0])] / 9
            others = [(by_place if is_first else by_place.transpose(0, 1)).expand_as(x)]
            others.append(by_place.transpose(0, 1).expand_as(start))
            x, start = (
                late if self.is_late and of == name else early
                for name, early, late in (("input", x, others[0]), ("state", start, others[1]))
            )
            outputs, _ = self.layer(x, (start, start) if kind == "LSTM" else start)
            return (outputs if is_first else outputs.transpose(0, 1)).flatten(1)

    model, pair = Choosing(), (torch.randn(6, 5, 3), torch.randn(6, 1, 4))
    forward = make_forward(model, lambda output, _: output.sin().sum(1), pair, torch.zeros(6))
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(forward)
        assert engine.slow_reasons == ()
        model.is_late = True
        found, _ = engine.clipped(forward)
        assert len(engine.slow_reasons) == 1
        alone = [engine.clipped(forward.rows([n]))[0] for n in range(6)]
    assert distance(found, {name: sum(each[name] for each in alone) for name in found}) < 1e-5


@pytest.mark.parametrize("x", [torch.randn(5, 3), torch.randn(2, 0, 3), "packed"])
def test_what_is_not_a_batch_of_sequences_is_left_to_torch(x):
    layer = made("RNN")
    if isinstance(x, str):
        x = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 5, 3), [5, 4], batch_first=True)
    assert RecurrentTwin(layer)(layer, x) is NotImplemented


def test_states_of_another_form_are_left_to_torch():
    layer = made("LSTM")
    for start in (torch.zeros(1, 2, 4), (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4)), (torch.zeros(1, 2, 4),)):
        assert RecurrentTwin(layer)(layer, torch.randn(2, 5, 3), start) is NotImplemented
