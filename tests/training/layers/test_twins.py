from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNCellBase
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

from clipped import distance
from dpfed import LocalPlan, make_private
from dpfed.errors import SlowModelWarning
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.layers import twins
from dpfed.training.loop import Private
from dpfed.training.many.ensemble import Ensemble, Unsupported
from one_by_one import clipped, gradients, mean_norm

LAYERS = {
    "LSTM": lambda: nn.LSTM(3, 4, batch_first=True),
    "GRU": lambda: nn.GRU(3, 4, batch_first=True),
    "RNN": lambda: nn.RNN(3, 4, batch_first=True),
    "LSTM cell": lambda: nn.LSTMCell(3, 4),
    "GRU cell": lambda: nn.GRUCell(3, 4),
    "RNN cell": lambda: nn.RNNCell(3, 4),
    "attention": lambda: nn.MultiheadAttention(3, 1, batch_first=True),
}


class Model(nn.Module):
    """One of torch's layers between two others."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(3, 3), layer
        self.head = nn.Linear(getattr(layer, "hidden_size", 3), 2)

    def forward(self, x):
        values = self.first(x)
        if isinstance(self.layer, RNNCellBase):
            return self.head(self._looped(values))
        attends = isinstance(self.layer, nn.MultiheadAttention)
        return self.head(self.layer(*[values] * 3)[0] if attends else self.layer(values)[0])[:, -1]

    def _looped(self, values):
        state = None
        for step in values.unbind(1):
            state = self.layer(step, state)
        return state[0] if isinstance(state, tuple) else state


def model(kind: str) -> Model:
    torch.manual_seed(0)
    return Model(LAYERS[kind]())


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).sin().sum(1)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_model_is_itself_while_twins_stand_in(kind):
    plain = model(kind)
    before = copy.deepcopy(plain.state_dict())
    paths, kinds = [path for path, _ in plain.named_modules()], [type(module) for module in plain.modules()]
    with ClippedGradients(plain, clip_norm=1.0) as engine:
        engine.sum(losses(plain, torch.randn(4, 5, 3)))
        assert engine.slow_reasons == ()
        assert [path for path, _ in plain.named_modules()] == paths
        assert [type(module) for module in plain.modules()] == kinds
        assert {name: value.tolist() for name, value in plain.state_dict().items()} == {
            name: value.tolist() for name, value in before.items()
        }
        assert list(plain.state_dict()) == list(before)
    assert not any("forward" in module.__dict__ for module in plain.modules())
    assert not any(module._forward_hooks for module in plain.modules())


@pytest.mark.parametrize("kind", LAYERS)
def test_without_gradients_torchs_own_forward_pass_runs(kind, monkeypatch):
    plain = model(kind)
    with ClippedGradients(plain, clip_norm=1.0):
        monkeypatch.setattr(type(plain.layer), "forward", lambda *_, **__: "torch")
        x = torch.randn(2, 3) if "cell" in kind else torch.randn(2, 5, 3)
        with torch.no_grad():
            assert plain.layer(x) == "torch"
        if kind != "attention":
            assert plain.layer(x) != "torch"


@pytest.mark.parametrize("kind", LAYERS)
def test_others_of_the_same_model_may_come_and_go(kind):
    plain, x = model(kind), torch.randn(4, 5, 3)
    first, second = (ClippedGradients(plain, clip_norm=1.0) for _ in range(2))
    first.close()
    second.sum(losses(plain, x))
    assert second.slow_reasons == ()
    second.close()
    assert "forward" not in plain.layer.__dict__


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_that_were_put_in_place_later_are_used(kind):
    plain, other, x = model(kind), Model(LAYERS[kind]()), torch.randn(6, 5, 3)
    with ClippedGradients(plain, clip_norm=1.0) as engine:
        engine.sum(losses(plain, x))
        plain.load_state_dict({name: value.clone() for name, value in other.state_dict().items()}, assign=True)
        for parameter in plain.parameters():
            parameter.requires_grad_(True)
        found = engine.sum(losses(plain, x))
        assert engine.slow_reasons == ()
    rows = gradients(losses(other, x), other)
    assert distance(found, clipped(rows, 1.0)) < 1e-5


@pytest.mark.parametrize("kind", LAYERS)
def test_a_copy_made_meanwhile_is_torchs_and_can_be_trained(kind):
    plain, x = model(kind), torch.randn(6, 5, 3)
    with ClippedGradients(plain, clip_norm=1.0):
        copies = [copy.deepcopy(plain.layer), pickle.loads(pickle.dumps(plain.layer))]  # noqa: S301
        assert all(not isinstance(each.__dict__["forward"], twins.StandIn) for each in copies)
    for each in copies:
        again = Model(each)
        rows = gradients(losses(again, x), again)
        clip = mean_norm(rows)
        with ClippedGradients(again, clip_norm=clip) as engine:
            assert distance(engine.sum(losses(again, x)), clipped(rows, clip)) < 1e-5
            assert engine.slow_reasons == ()
        with torch.no_grad():
            assert next(iter(again.layer.parameters())).add_(1.0) is not next(iter(plain.layer.parameters()))


def test_a_model_that_is_dropped_is_freed_at_once():
    plain = model("LSTM")
    gone = weakref.ref(plain.layer)
    twins.install(plain)
    gc.disable()
    try:
        del plain
        assert gone() is None
    finally:
        gc.enable()


def test_layers_with_a_forward_pass_of_their_own_are_left_alone():
    class Doubled(nn.GRU):
        def forward(self, input, hx=None):
            outputs, state = super().forward(input, hx)
            return 2 * outputs, state

    patched = nn.GRU(3, 4)
    patched.forward = lambda x: (x, x)
    assert twins.install(nn.ModuleList([Doubled(3, 4), patched])) == {}


def test_weights_that_are_computed_are_left_to_torch():
    """Pruning leaves a plain tensor where the parameter was."""
    plain, x = model("GRU"), torch.randn(6, 5, 3)
    prune.l1_unstructured(plain.layer, "weight_hh_l0", amount=0.3)
    rows = gradients(losses(plain, x), plain)
    with ClippedGradients(plain, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(plain, lambda output, _: output.sin().sum(1), x, torch.zeros(6)))
        assert engine.slow_reasons == ("layer.weight_ih_l0 is used outside its layer",)
    assert distance(found, clipped(rows, 0.5)) < 1e-5


def test_many_models_at_once_do_not_meet_them():
    plain = model("LSTM")

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, targets, reduction="none")

    inputs, targets = torch.randn(4, 5, 3), torch.zeros(4, dtype=torch.long)
    found = []
    for is_watched in (False, True):
        stand_ins = twins.install(plain) if is_watched else {}
        try:
            found.append(type(Ensemble(plain, loss, (inputs, targets))).__name__)
        except Unsupported as error:
            found.append(error.why)
        for each in stand_ins.values():
            each.leave()
    assert found[0] == found[1]


def _started(plain: nn.Module, x: Tensor) -> Private:
    plan = LocalPlan(size=len(x), batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    data = TensorDataset(x, torch.zeros(len(x)))
    return make_private(plain, optimizer, data, plan, loss=lambda output, _: output.sin().sum(1))


class Packed(nn.Module):
    """Sequences packed by their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        lengths = 1 + (x[:, 1:, 0] > 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])  # as long as the longest of the batch
        return self.head(padded.sum(0))


def test_a_slow_model_is_named_once_with_its_remedy():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        private = _started(Packed(), torch.randn(12, 5, 3))
        for batch in private.loader:
            private.step(batch)
    (only,) = [each for each in told if each.category is SlowModelWarning]
    assert "give pad_packed_sequence a total_length" in str(only.message)
    assert only.filename == __file__


@pytest.mark.filterwarnings("error::dpfed.errors.SlowModelWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_a_fast_model_is_not_warned_of(kind):
    private = _started(model(kind), torch.randn(12, 5, 3))
    for batch in private.loader:
        private.step(batch)
    assert private.slow_reasons == ()
    private.close()


def test_a_slow_loop_of_ones_own_is_told_once():
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) @ self.layer.weight

    plain = Reused()
    plan = LocalPlan(size=12, batch_size=4, steps=2, clip_norm=1.0, noise_multiplier=1.0)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    private = make_private(plain, optimizer, TensorDataset(torch.randn(12, 3), torch.zeros(12)), plan)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for batch in private.loader:
            for x, _ in batch:
                private.backward(plain(x).square().sum(1))
            optimizer.step()
    (only,) = [each for each in told if each.category is SlowModelWarning]
    assert "call the layer" in str(only.message)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_draw_of_one_record_is_no_reason_to_be_slow(kind):
    """Its layout is contiguous where that of several is not, so torch adds a bias otherwise."""
    plain, x = model(kind), torch.randn(1, 5, 3)
    rows = gradients(losses(plain, x), plain)
    with ClippedGradients(plain, clip_norm=0.1) as engine:
        found, _ = engine.clipped(make_forward(plain, lambda output, _: output.sin().sum(1), x, torch.zeros(1)))
        assert engine.slow_reasons == ()
    assert distance(found, clipped(rows, 0.1)) < 1e-5
