from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import distance
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from one_by_one import clipped, gradients


class Keeping(nn.Module):
    """A layer of its own kind that remembers what it computed on the way."""

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.weight, self.wanted = nn.Parameter(torch.randn(3, 4)), wanted
        self.kept = None

    def forward(self, x):
        hidden = x.sum(1, keepdim=True) / (1 + self.weight.square().sum(0))
        output = hidden.tanh()
        self.kept = {"inside": hidden, "output": output, "input": x}[self.wanted]
        return output


class Model(nn.Module):
    def __init__(self, wanted: str) -> None:
        super().__init__()
        self.layer, self.head = Keeping(wanted), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.layer(x)).square().sum(1) + self.layer.kept.square().sum(1)


@pytest.mark.parametrize(("wanted", "is_slow"), [("inside", True), ("output", False), ("input", False)])
def test_a_tensor_that_a_module_keeps_for_the_loss_is_seen(wanted, is_slow):
    torch.manual_seed(0)
    model, x = Model(wanted), torch.randn(6, 3)

    def loss(output, _):
        return output

    expected = clipped(gradients(model(x), model), 0.5)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, loss, x, torch.zeros(6)))
        assert bool(engine.slow_reasons) == is_slow
    assert distance(found, expected) < 1e-5


class Doubled(torch.autograd.Function):
    """Gives the gradient of one row to the next."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.roll(1, 0) * 2


@pytest.mark.parametrize("how", ["function", "module hook", "tensor hook"])
def test_a_gradient_of_ones_own_is_not_trusted_with_rows(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    if how == "module hook":
        model[1].register_full_backward_hook(lambda module, given, gradient: (gradient[0].roll(1, 0),))

    def loss(output, _):
        if how == "function":
            output = Doubled.apply(output)
        if how == "tensor hook":
            output.register_hook(lambda gradient: gradient.roll(1, 0))
        return output.square().sum(1)

    with ClippedGradients(model, clip_norm=0.5) as engine:
        engine.clipped(make_forward(model, loss, torch.randn(6, 3), torch.zeros(6)))
        assert engine.slow_reasons


def test_a_table_whose_output_is_used_twice_is_explained_by_its_look_up():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)

        def forward(self, x):
            values = self.table(x)
            return (values + self.layer(values)).sum(1)

    torch.manual_seed(0)
    model, x = Residual(), torch.randint(0, 7, (6, 3))

    def loss(output, _):
        return output.square().sum(1)

    expected = clipped(gradients(model(x).square().sum(1), model), 0.5)
    with ClippedGradients(model, clip_norm=0.5) as engine:
        found, _ = engine.clipped(make_forward(model, loss, x, torch.zeros(6)))
        assert engine.slow_reasons == ()
    assert distance(found, expected) < 1e-5
