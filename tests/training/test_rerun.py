from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from clipped import distance, squares
from dpfed.errors import InvalidArgument
from dpfed.training.gradients import ClippedGradients
from one_by_one import clipped, gradients


class Functional(nn.Module):
    """Uses a child's weight as a function, so that only the whole model explains it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head, self.dropout = nn.Linear(4, 4), nn.Linear(4, 2), nn.Dropout(dropout)

    def forward(self, x, scale=None):
        hidden = nn.functional.linear(x, self.inner.weight, self.inner.bias).tanh()
        return self.dropout(self.head(hidden if scale is None else hidden * scale))


class Stateful(nn.Module):
    """A layer that vmap refuses, since it looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.scale if float(x.detach().sum()) != 0.125 else x


def spoiled() -> tuple[Tensor, Tensor, list[int]]:
    torch.manual_seed(1)
    x, y = torch.randn(8, 4), torch.randn(8)
    x[2, 1], y[5] = math.nan, math.inf
    return x, y, [0, 1, 3, 4, 6, 7]


@pytest.mark.parametrize(
    "model",
    [Functional(), nn.Sequential(nn.Linear(4, 4), Stateful()), nn.Sequential(*[Stateful()] * 2, nn.Linear(4, 2))],
    ids=["weights used as functions", "a layer that vmap refuses", "such a layer called twice"],
)
def test_examples_that_are_not_finite_do_not_touch_the_others(model):
    x, y, good = spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine:
        found = engine.sum(squares(model(x), y))
        assert distance(engine.sum(squares(model(x[good]), y[good])), found) < 1e-5
    rows = gradients(squares(model(x[good]), y[good]), model)
    assert distance(found, clipped(rows, 0.1)) < 1e-5


def test_inputs_by_name_and_several_of_them():
    model = Functional()
    x, y, good = spoiled()
    scale = torch.rand(8, 4)
    with ClippedGradients(model, clip_norm=0.1) as engine:
        model(torch.randn(8, 4))  # a look at other data, which these losses do not use
        found = engine.sum(squares(model(x, scale=scale), y))
        expected = engine.sum(squares(model(x[good], scale=scale[good]), y[good]))
    assert distance(found, expected) < 1e-5


def test_a_model_that_draws_random_numbers_is_refused():
    """Another draw of its numbers would be another gradient, and only where a neighbour is not finite."""
    model, (x, y, _) = Functional(dropout=0.5), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine, pytest.raises(InvalidArgument, match="same twice"):
        engine.sum(squares(model(x), y))


def test_random_numbers_that_only_the_gradient_shows_are_refused():
    """Drawn anew, they would change the gradients of all others when one record that is not finite joins them."""

    class Hidden(Functional):
        def forward(self, x, scale=None):
            noisy = self.inner.weight.sum() * torch.rand(())
            return super().forward(x, scale) + noisy - noisy.detach()

    model, (x, y, _) = Hidden(), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine, pytest.raises(InvalidArgument, match="same twice"):
        engine.sum(squares(model(x), y))


def test_an_input_without_a_row_for_each_example_is_refused():
    model, (x, y, _) = Functional(), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine, pytest.raises(InvalidArgument, match="one row per example"):
        engine.sum(squares(model(x, scale=torch.rand(1, 4)), y))


def test_a_model_that_keeps_a_state_is_refused():
    class Counting(Functional):
        calls = 0

        def forward(self, x, scale=None):
            self.calls += 1
            return super().forward(x) * self.calls

    model, (x, y, _) = Counting(), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine, pytest.raises(InvalidArgument, match="same twice"):
        engine.sum(squares(model(x), y))


def test_a_loss_beyond_one_call_of_the_model_is_refused():
    model, (x, y, _) = Functional(), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine:
        with pytest.raises(InvalidArgument, match=r"inner\.weight.*not called once"):
            engine.sum(squares(model(x), y) + squares(model(-x), y))
        with pytest.raises(InvalidArgument, match="not called once"):
            engine.sum(squares(model(x), y) + model.inner.weight.sum())


def test_a_model_that_needs_none_of_this_is_watched_for_one_step_only():
    model = nn.Linear(4, 2)
    x = torch.randn(6, 4)
    with ClippedGradients(model, clip_norm=1.0) as engine:
        before = len(model._forward_hooks)
        engine.sum(squares(model(x), x[:, 0]))
        assert len(model._forward_hooks) == before - 1


def test_a_use_that_comes_later_is_watched_from_then_on():
    class Later(Functional):
        is_functional = False

        def forward(self, x, scale=None):
            return super().forward(x) if self.is_functional else self.head(self.inner(x).tanh())

    model, (x, y, good) = Later(), spoiled()
    with ClippedGradients(model, clip_norm=0.1) as engine:
        expected = engine.sum(squares(model(x[good]), y[good]))
        model.is_functional = True
        engine.sum(squares(model(x[good]), y[good]))
        assert distance(engine.sum(squares(model(x), y)), expected) < 1e-5


def test_after_closing_the_model_has_no_hooks():
    model = Functional()
    with ClippedGradients(model, clip_norm=1.0):
        pass
    assert not model._forward_hooks
