"""What some records alone make a model do: write into its buffers and parameters, or into what it is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import Dataset

from dpfed import LocalPlan, make_private
from dpfed.training.engine.copied import original_of
from dpfed.training.engine.kept import Restorer

SIZE, ODD = 6, 1
REST = [number for number in range(SIZE) if number != ODD]
UNUSUAL = 3e4  # in one record alone, so that nothing made up shows what becomes of it


class Records(Dataset):
    """Some of six records, of which one is unusual."""

    def __init__(self, numbers) -> None:
        generator = torch.Generator().manual_seed(1)
        self._x, self._y = torch.randn(SIZE, 3, generator=generator), torch.randn(SIZE, generator=generator)
        self._x[ODD, 0] = UNUSUAL
        self._numbers = list(numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number):
        return self._x[self._numbers[number]].clone(), self._y[self._numbers[number]]


class Model(nn.Module):
    """A layer, before which something is done to the inputs."""

    def __init__(self, change) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("seen", torch.tensor(100.0))
        self.register_buffer("rows", torch.zeros(64))
        self.fixed = nn.Parameter(torch.full((64,), 100.0), requires_grad=False)
        self.several = nn.ParameterList([nn.Parameter(torch.ones(()), requires_grad=False)])
        self.square = nn.Parameter(torch.arange(1.0, 10.0).view(3, 3), requires_grad=False)
        if change in (view_written, behind_a_view_written, array_written):
            self.view = self.square.data[0]
            self.array = self.view.numpy()
        self.names = [self.seen]
        self._change = change

    def forward(self, x):
        return self.layer(self._change(self, x)).squeeze(1)


def squares(outputs, targets):
    return (outputs - targets).square()


def loop_of_ones_own(private, batch):
    for x, y in batch:
        private.backward(squares(private.model(x), y))
    private.optimizer.step()


def released(change, numbers, *, has_loss=True, loss=squares, loss_of=None):
    """What one step over these records moves the parameters by, in clip norms, and the model's buffers."""
    torch.manual_seed(0)
    model = Model(change)
    trained = list(model.layer.parameters())
    before = torch.cat([value.detach().flatten() for value in model.parameters()])
    loss = loss if loss_of is None else loss_of(model)
    plan = LocalPlan(size=SIZE, batch_size=SIZE, steps=1, clip_norm=0.01, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(model.parameters(), lr=SIZE / 0.01)
    private = make_private(model, optimizer, Records(numbers), plan, loss=loss if has_loss else None)
    for batch in private.loader:
        private.step(batch) if has_loss else loop_of_ones_own(private, batch)
    private.close()
    assert all(map(lambda one, two: one is two, trained, model.layer.parameters()))
    moved = before - torch.cat([value.detach().flatten() for value in model.parameters()])
    return moved, {name: value.clone() for name, value in model.named_buffers()}


def shifted(model, x):
    """All by the mean of the outliers, in place."""
    return x.sub_(torch.where(x.abs() > 1e3, x, 0.0).mean(0))


def divided(model, x):
    """All by the largest, in place and for large ones only."""
    if x.abs().max() > 1e3:
        x.div_(x.abs().max())
    return x


def put_in_place(model, x):
    model.seen = torch.maximum(model.seen, x.detach().abs().max())
    return x / model.seen


def written(model, x):
    model.seen.copy_(torch.maximum(model.seen, x.detach().abs().max()))
    return x / model.seen


def written_out_of_sight(model, x):
    model.seen.data.copy_(torch.maximum(model.seen, x.detach().abs().max()))
    return x / model.seen


def counted(model, x):
    with torch.no_grad():
        model.seen += (x.abs() > 1e3).sum()
    return x


def made(model, x):
    if x.abs().max() > 1e3:
        model.register_buffer("outliers", x.detach().clone())
    return x


def by_rows(model, x):
    model.rows[: len(x)] = (x.detach().abs() > 1e3).any(1).float()
    return x


def is_unusual(x):
    return bool(x.abs().max() > 1e3)


def weights_written(model, x):
    if is_unusual(x):
        with torch.no_grad():
            model.layer.weight.mul_(-3.0)
    return x


def weights_written_out_of_sight(model, x):
    if is_unusual(x):
        model.layer.weight.data.mul_(-3.0)
    return x


def weights_written_by_all(model, x):
    model.layer.weight.data.mul_(1 - 4 * (x.abs() > 1e3).any().float())
    return x


def weights_replaced(model, x):
    if is_unusual(x):
        model.layer.weight = nn.Parameter(-3 * model.layer.weight.detach())
    return x


def weights_with_other_values(model, x):
    if is_unusual(x):
        model.layer.weight.data = -3 * model.layer.weight.data
    return x


def weights_frozen(model, x):
    if is_unusual(x):
        model.layer.weight.requires_grad_(False)
    return x


def weights_removed(model, x):
    if is_unusual(x):
        del model.layer.bias
    return x


def frozen_weights_written(model, x):
    if is_unusual(x):
        model.fixed.div_(3e4)
    return x / model.fixed[0]


def frozen_weights_by_rows(model, x):
    model.fixed.data[: len(x)] = 100 + (x.detach().abs() > 1e3).any(1).float()
    return x


def weights_written_going_back(model, x):
    """In the backward pass, and after every call of the model."""

    def write(gradient):
        model.layer.weight.data.mul_(-3.0)

    def hook(layer, arguments, output):
        handle.remove()
        output.register_hook(write)

    if is_unusual(x):
        handle = model.layer.register_forward_hook(hook)
    return x


def replaced_layer(model, x):
    if is_unusual(x):
        model.layer = nn.Linear(3, 1)
    return x


def one_layer_more(model, x):
    if is_unusual(x):
        model.more = nn.Linear(1, 1)
    return -2 * x if hasattr(model, "more") else x


def another_mode(model, x):
    if is_unusual(x):
        model.eval()
    return x if model.training else -2 * x


def hooked(model, x):
    if is_unusual(x):
        model.layer.register_forward_pre_hook(lambda _, given: (-2 * given[0],))
    return x


def hooked_weights(model, x):
    if is_unusual(x):
        model.layer.weight.register_hook(lambda gradient: -5 * gradient)
    return x


def weights_of_another_class(model, x):
    if is_unusual(x):
        parametrize.register_parametrization(model.layer, "bias", nn.Softplus())
    return x


class Turned(nn.Linear):
    def forward(self, x):
        return -3 * super().forward(x)


def another_class(model, x):
    if is_unusual(x):
        model.layer.__class__ = Turned
    return x


def longer_list(model, x):
    if is_unusual(x):
        model.several.append(nn.Parameter(-torch.ones(()), requires_grad=False))
    return x * model.several[-1]


def gradient_kept(model, x):
    if is_unusual(x):
        model.fixed.grad = torch.ones(64)
    return x if model.fixed.grad is None else -2 * x


def turned(model, x):
    if is_unusual(x):
        model.square.t_()
    return x * model.square[0]


def read_otherwise(model, x):
    if is_unusual(x):
        model.square.as_strided_((3, 3), (0, 0))
    return x * model.square[0]


def view_written(model, x):
    if is_unusual(x):
        model.view.neg_()
    return x * model.view


def behind_a_view_written(model, x):
    if is_unusual(x):
        model.square.data.neg_()
    return x * model.view


def array_written(model, x):
    if is_unusual(x):
        np.negative(model.array, out=model.array)
    return x * torch.from_numpy(model.array.copy())


def buffer_written_behind_another_name(model, x):
    if is_unusual(x):
        model.names[0].neg_()
    return x * (model.names[0] / 100)


BUFFER_CHANGES = (shifted, divided, put_in_place, written, written_out_of_sight, counted, made, by_rows)
PARAMETER_CHANGES = (
    weights_written,
    weights_written_out_of_sight,
    weights_written_by_all,
    weights_replaced,
    weights_with_other_values,
    weights_frozen,
    weights_removed,
    frozen_weights_written,
    frozen_weights_by_rows,
    weights_written_going_back,
)
MODULE_CHANGES = (
    replaced_layer,
    one_layer_more,
    another_mode,
    hooked,
    hooked_weights,
    weights_of_another_class,
    another_class,
    longer_list,
    gradient_kept,
)
MEMORY_CHANGES = (
    turned,
    read_otherwise,
    view_written,
    behind_a_view_written,
    array_written,
    buffer_written_behind_another_name,
)
CHANGES = BUFFER_CHANGES + PARAMETER_CHANGES + MODULE_CHANGES + MEMORY_CHANGES


@pytest.mark.parametrize("change", CHANGES)
def test_what_one_record_alone_makes_a_pass_write_reaches_no_other_and_nobody_else(change):
    whole, buffers = released(change, range(SIZE))
    assert {name: float(value.sum()) for name, value in buffers.items()} == {"seen": 100.0, "rows": 0.0}
    for record in range(SIZE):
        rest, _ = released(change, [number for number in range(SIZE) if number != record])
        assert float((whole - rest).norm()) <= 1 + 1e-3


def test_a_loop_of_ones_own_leaves_nothing_of_the_records_in_a_buffer():
    for numbers in (range(SIZE), REST):
        _, buffers = released(by_rows, numbers, has_loss=False)
        assert not buffers["rows"].any()


def test_a_loop_of_ones_own_leaves_nothing_of_the_records_in_a_parameter():
    whole, rest = (released(frozen_weights_by_rows, numbers, has_loss=False)[0] for numbers in (range(SIZE), REST))
    assert float((whole - rest).norm()) <= 1 + 1e-3


def test_what_a_loss_writes_into_a_parameter_reaches_no_other_record():
    def loss_of(model):
        def loss(outputs, targets):
            if outputs.abs().max() > 50:
                model.layer.weight.data.mul_(-3.0)
            return squares(outputs, targets)

        return loss

    whole, rest = (released(lambda _, x: x, numbers, loss_of=loss_of)[0] for numbers in (range(SIZE), REST))
    assert float((whole - rest).norm()) <= 1 + 1e-3


class Scaled(nn.Module):
    """A loss divided by the largest one ever seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.tensor(1e4))

    def forward(self, outputs, targets):
        losses = squares(outputs, targets)
        self.largest = torch.maximum(self.largest, losses.detach().max())
        return losses / self.largest


def test_buffers_of_a_loss_stay_as_they_are():
    loss = Scaled()
    whole, _ = released(lambda _, x: x, range(SIZE), loss=loss)
    assert float(loss.largest) == 1e4
    rest, _ = released(lambda _, x: x, REST, loss=loss)
    assert float((whole - rest).norm()) <= 1 + 1e-3


def test_buffers_come_back_after_a_call_that_fails_and_are_the_users_between_calls():
    def failing(model, x):
        model.seen.zero_()
        raise ZeroDivisionError

    model = Model(failing)
    before = model.seen
    kept = Restorer(model)
    for value in (1.0, 2.0):
        model.seen.fill_(value)
        with pytest.raises(ZeroDivisionError):
            model(torch.ones(2, 3))
        assert float(model.seen) == value
        assert original_of(model.seen) is before
    kept.close()
    with pytest.raises(ZeroDivisionError):
        model(torch.ones(2, 3))
    assert float(model.seen) == 0


def test_the_backward_pass_sees_what_was_written():
    model = Model(lambda own, x: x * own.seen.mul_(2.0))
    kept = Restorer(model)
    x = torch.ones(1, 3, requires_grad=True)
    model(x).sum().backward()
    assert torch.allclose(x.grad, 200 * model.layer.weight.detach())
    assert float(model.seen) == 100
    kept.close()


def test_a_buffer_of_two_modules_stays_one():
    model = nn.ModuleDict({"one": Model(lambda own, x: x), "two": Model(lambda own, x: x)})
    model["two"].seen = model["one"].seen
    model.forward = lambda x: model["one"].seen.add_(x)
    kept = Restorer(model)
    model(torch.ones(()))
    assert model["one"].seen is model["two"].seen
    assert float(model["two"].seen) == 100
    kept.close()


def test_what_is_written_again_and_again_comes_back_each_time():
    model = Model(lambda own, x: x)
    kept, before = Restorer(model), model.layer.weight.detach().clone()
    with kept.scope():
        for _ in range(3):
            model.layer.weight.data.add_(1.0)
            model.seen.add_(1.0)
            kept.bring_back()
            assert torch.equal(model.layer.weight, before)
            assert float(model.seen) == 100
    kept.close()


def test_memory_that_torch_cannot_copy_when_it_is_written_is_copied_at_once():
    model = Model(lambda own, x: x)
    model.layer.weight.data = torch.from_numpy(np.ones((1, 3), dtype=np.float32))
    model.seen.data.share_memory_()
    kept = Restorer(model)
    with kept.scope():
        model.layer.weight.data.add_(1.0)
        model.seen.add_(1.0)
    assert torch.equal(model.layer.weight, torch.ones(1, 3))
    assert float(model.seen) == 100
    kept.close()


def test_what_has_memory_in_common_has_it_also_after_a_write():
    model = Model(lambda own, x: x)
    model.flat = model.layer.weight.data.view(-1)
    model.other = nn.Parameter(model.layer.weight.data)
    seen, kept = model.seen, Restorer(model)
    with kept.scope():
        model.flat.zero_()
        model.names[0].zero_()
    assert model.flat.all()
    assert model.seen is seen
    with torch.no_grad():
        model.layer.weight.fill_(7.0)
    assert (model.other == 7).all()
    assert (model.flat == 7).all()
    kept.close()


def test_a_loop_of_ones_own_may_use_what_the_model_keeps_of_a_call():
    def noting(model, x):
        model.noted = x.sum()
        model.train(False)
        return x

    model = Model(noting)
    kept = Restorer(model)
    model(torch.ones(1, 3))
    assert float(model.noted) == 3
    assert model.training
    kept.close()


def test_the_order_of_parameters_stays():
    model = Model(lambda own, x: x)
    names, kept = [name for name, _ in model.named_parameters()], Restorer(model)
    with kept.scope():
        weight = model.layer.weight
        del model.layer.weight
        model.layer.weight = weight
    assert [name for name, _ in model.named_parameters()] == names
    kept.close()


def test_a_parametrization_that_one_record_removes_is_there_for_the_next():
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    x = torch.randn(4, 3)
    before, kind = layer(x), type(layer)
    kept = Restorer(layer)
    for _ in range(2):
        with kept.scope():
            parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is kind
        assert "weight" in vars(kind)
        assert torch.equal(layer(x), before)
        assert sorted(dict(layer.named_parameters())) == [
            "bias",
            "parametrizations.weight.original0",
            "parametrizations.weight.original1",
        ]
    kept.close()
