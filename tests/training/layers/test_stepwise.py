from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clipped import distance
from dpfed import LocalPlan, make_private
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.layers.stepwise import CellTwin
from one_by_one import clipped, gradients, require_fast

KINDS = {
    "LSTM": nn.LSTMCell,
    "GRU": nn.GRUCell,
    "RNN": nn.RNNCell,
    "RNN with ReLU": lambda *sizes, **options: nn.RNNCell(*sizes, nonlinearity="relu", **options),
}
SIZE, LENGTH = 6, 5


def made(kind: str, **options) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind](3, 4, **options)


def looped(model: Loop, x: Tensor) -> list[Tensor]:
    """The states of all positions, each from the one before."""
    state, found = model.first(x), []
    for step in x.unbind(1):
        state = model.cell(step, state)
        found += state if isinstance(state, tuple) else [state]
    return found


class Loop(nn.Module):
    """A cell, what the first state is made of, and a loop."""

    def __init__(self, cell: nn.Module, run=looped, first=lambda x: None) -> None:
        super().__init__()
        self.cell, self.run, self.first = cell, run, first

    def forward(self, x):
        return torch.cat(self.run(self, x), dim=1)


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return cubes(model(x), x)


def cubes(output: Tensor, _: Tensor) -> Tensor:
    """The same loss as make_private takes it."""
    return (output + 0.3).pow(3).sum(1)


def inputs(length: int = LENGTH) -> Tensor:
    return torch.randn(SIZE, length, 3, generator=torch.Generator().manual_seed(1))


def zeros(kind: str):
    """A first state as a model makes it: of zeros."""
    state = lambda x: torch.zeros(len(x), 4, dtype=x.dtype)  # noqa: E731
    return (lambda x: (state(x), state(x))) if kind == "LSTM" else state


def frozen_half(cell: nn.Module) -> nn.Module:
    for name in ("weight_ih", "bias_hh"):
        cell.get_parameter(name).requires_grad_(False)
    return cell


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 2, LENGTH])
@pytest.mark.parametrize("kind", KINDS)
def test_clipped_sums_are_those_of_torchs_cell(kind, length, bias):
    require_fast(Loop(made(kind, bias=bias)), inputs(length), losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_state_of_zeros_that_is_given(kind):
    require_fast(Loop(made(kind), first=zeros(kind)), inputs(), losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_state_that_has_a_gradient(kind):
    class Started(Loop):
        def __init__(self) -> None:
            super().__init__(made(kind))
            self.start = nn.Linear(3, 4)
            self.learned = nn.Parameter(torch.randn(4))

        def forward(self, x):
            state, cell = self.start(x[:, 0]), self.learned.expand(len(x), -1)
            self.first = lambda _: (state, cell) if kind == "LSTM" else state + cell
            return super().forward(x)

    require_fast(Started(), inputs(), losses)


def position_first(model: Loop, x: Tensor) -> list[Tensor]:
    state, found = model.first(x), []
    for step in x.transpose(0, 1):
        state = model.cell(step, state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return [torch.stack(found).transpose(0, 1).flatten(1)]


def in_slices(model: Loop, x: Tensor) -> list[Tensor]:
    """States written into slices of one tensor."""
    state, found = model.first(x), x.new_zeros(*x.shape[:2], 4)
    for place in range(x.shape[1]):
        state = model.cell(x[:, place], state)
        last = state[0] if isinstance(state, tuple) else state
        found[:, place] = last
    return [found.flatten(1)]


def masked(model: Loop, x: Tensor) -> list[Tensor]:
    """Examples that have ended keep their state."""
    state = model.first(x)
    for place in range(x.shape[1]):
        new = model.cell(x[:, place], state)
        goes_on = (x[:, place, :1] > -1).to(x)
        pairs = zip(new, state, strict=True) if isinstance(new, tuple) else [(new, state)]
        kept = tuple(goes_on * after + (1 - goes_on) * before for after, before in pairs)
        state = kept if isinstance(new, tuple) else kept[0]
    return list(kept)


def at_two_places(model: Loop, x: Tensor) -> list[Tensor]:
    return [*looped(model, x), *looped(model, -x)]


@pytest.mark.parametrize("run", [position_first, in_slices, masked, at_two_places])
@pytest.mark.parametrize("kind", KINDS)
def test_loops_of_other_forms(kind, run):
    require_fast(Loop(made(kind), run, zeros(kind)), inputs(), losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_half_of_a_cell(kind):
    require_fast(Loop(frozen_half(made(kind))), inputs(), losses)


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_cell_below_others_is_left_to_torch(kind):
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loop, self.head = Loop(made(kind).requires_grad_(False)), nn.Linear((1 + (kind == "LSTM")) * 20, 2)

        def forward(self, x):
            return self.head(self.loop(x))

    model = Frozen()
    require_fast(model, inputs(), losses)
    assert CellTwin(model.loop.cell)(model.loop.cell, torch.randn(2, 3)) is NotImplemented


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_plain_gradients_are_torchs(kind):
    cell = made(kind).double()
    twin, x = CellTwin(cell), inputs().double()
    usual, ours = Loop(cell), Loop(cell)
    ours._modules.pop("cell")
    ours.cell = lambda *given: twin(cell, *given)
    assert torch.allclose(usual(x), ours(x), atol=1e-12)
    found = [torch.autograd.grad(losses(model, x).sum(), list(cell.parameters())) for model in (usual, ours)]
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_names_stay_torchs_while_the_cell_is_trained(kind):
    model = Loop(made(kind))
    before, names = model(inputs()), list(model.state_dict())
    with ClippedGradients(model, clip_norm=1.0):
        assert torch.allclose(model(inputs()), before, atol=1e-6)
        with torch.no_grad():
            assert torch.equal(model(inputs()), before)
        assert list(model.state_dict()) == names
        assert type(model.cell).__name__ in repr(model)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_an_example_that_is_not_finite_counts_as_zero(kind, value):
    model, x = Loop(made(kind)), inputs()
    x[2, 3, 1] = value
    with ClippedGradients(model, clip_norm=0.1) as engine:
        with_it, without = engine.sum(losses(model, x)), engine.sum(losses(model, x[[0, 1, 3, 4, 5]]))
    moved = torch.cat([(with_it[name] - without[name]).flatten() for name in without]).norm()
    # An infinite input can leave bounded gates and finite gradients behind: then it may count for one clip.
    assert float(moved) <= (1e-6 if math.isnan(value) else 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gives_zeros(kind):
    model = Loop(made(kind))
    with ClippedGradients(model, clip_norm=1.0) as engine:
        assert not any(value.any() for value in engine.sum(losses(model, inputs()[:0])).values())


@pytest.mark.parametrize("kind", KINDS)
def test_one_record_moves_a_step_without_noise_by_at_most_the_clip_norm(kind):
    def moved(rows: list[int]) -> Tensor:
        model = Loop(made(kind))
        before = copy.deepcopy(model.state_dict())
        plan = LocalPlan(size=len(rows), batch_size=len(rows), steps=1, clip_norm=0.05, noise_multiplier=1e-9)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        data = TensorDataset(inputs()[rows], torch.zeros(len(rows)))
        private = make_private(model, optimizer, data, plan, loss=cubes)
        private.step(next(iter(private.loader)))
        assert private.slow_reasons == ()
        private.close()
        return len(rows) * torch.cat([(before[n] - v).flatten() for n, v in model.state_dict().items()])

    whole = moved(list(range(SIZE)))
    for place in range(SIZE):
        fewer = moved([n for n in range(SIZE) if n != place])
        assert float((whole - fewer).norm()) <= 0.05 * (1 + 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_the_neighbour_goes_the_slow_way(kind):
    def across(model: Loop, x: Tensor) -> list[Tensor]:
        state = model.cell(x[:, 0], model.first(x))
        rolled = tuple(s.roll(1, 0) for s in state) if isinstance(state, tuple) else state.roll(1, 0)
        found = model.cell(x[:, 1], rolled)
        return list(found) if isinstance(found, tuple) else [found]

    model = Loop(made(kind), across)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, cubes, inputs(), torch.zeros(SIZE)))
        assert engine.slow_reasons == ("roll is not known to keep examples apart",)
    rows = [gradients(losses(model, inputs()[n : n + 1]), model) for n in range(SIZE)]
    expected = clipped({name: torch.cat([row[name] for row in rows]) for name in rows[0]}, 0.5)
    assert distance(found, expected) < 1e-5


@pytest.mark.parametrize("of", ["input", "state", "cell"])
@pytest.mark.parametrize("kind", KINDS)
def test_which_tensors_python_gives_to_the_cell_is_noticed_at_every_step(kind, of):
    """All of them are there in every pass, so that nothing else tells which one a record is given by its place."""
    is_late, by_place = False, torch.arange(32 * 4).view(32, 4) / 50

    def chosen(model: Loop, x: Tensor) -> list[Tensor]:
        own = x[:, 0], x[:, 1].repeat(1, 2)[:, :4], x[:, 2].repeat(1, 2)[:, :4]
        other = tuple(by_place[: len(x), : value.shape[1]] for value in own)
        value, state, cell = (
            late if is_late and of == name else early
            for name, early, late in zip(("input", "state", "cell"), own, other, strict=True)
        )
        found = model.cell(value, (state, cell) if kind == "LSTM" else state)
        return list(found) if isinstance(found, tuple) else [found]

    if of == "cell" and kind != "LSTM":
        return
    model, x = Loop(made(kind), chosen), inputs()
    forward = make_forward(model, cubes, x, torch.zeros(SIZE))
    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(forward)
        assert engine.slow_reasons == ()
        is_late = True
        found, _ = engine.clipped(forward)
        assert len(engine.slow_reasons) == 1
        alone = [engine.clipped(forward.rows([n]))[0] for n in range(SIZE)]
    assert distance(found, {name: sum(each[name] for each in alone) for name in found}) < 1e-5


WRONG = {
    "one example without its axis": ((3,), (4,)),
    "a state of another width": ((2, 3), (2, 5)),
    "a state of another batch": ((2, 3), (1, 4)),
    "a sequence": ((2, 5, 3), (2, 4)),
}


@pytest.mark.parametrize("shapes", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_batch_of_one_position_is_left_to_torch(kind, shapes):
    cell = made(kind)
    x, state = (torch.randn(shape) for shape in shapes)
    assert CellTwin(cell)(cell, x, (state, state) if kind == "LSTM" else state) is NotImplemented


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_another_form_are_left_to_torch(kind):
    cell, x, state = made(kind), torch.randn(2, 3), torch.randn(2, 4)
    wrong = [state, (state,), (state, state, state)] if kind == "LSTM" else [(state,), (state, state)]
    assert all(CellTwin(cell)(cell, x, each) is NotImplemented for each in [*wrong, "state"])


def test_a_nonlinearity_that_torch_does_not_know_is_left_to_torch():
    cell = made("RNN")
    cell.nonlinearity = "sin"
    assert CellTwin(cell)(cell, torch.randn(2, 3)) is NotImplemented
