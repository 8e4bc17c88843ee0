from __future__ import annotations

import pytest
import torch

from clipped import data, small, squares
from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import make_forward, map_tensors, require_losses, tensors_of
from dpfed.training.engine.gradients import ClippedGradients


def test_a_scalar_loss_is_refused_with_the_fix():
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=1.0) as gradients:
        for losses in (squares(model(x), y).mean(), squares(model(x), y).unsqueeze(1)):
            with pytest.raises(InvalidArgument, match=r'one value per example.*reduction="none"'):
                gradients.sum(losses)


def test_losses_without_gradient_are_refused():
    model, (x, y) = small(), data()
    with torch.no_grad():
        losses = squares(model(x), y)
    with ClippedGradients(model, clip_norm=1.0) as gradients, pytest.raises(InvalidArgument, match="no gradient"):
        gradients.sum(losses)


@pytest.mark.parametrize(
    "mix", [lambda out: out - out.mean(0), lambda out: out + out.roll(1, 0), lambda out: out @ out.t()]
)
def test_losses_that_couple_examples_are_refused(mix):
    model, (x, y) = small(), data()
    with ClippedGradients(model, clip_norm=1.0) as gradients, pytest.raises(InvalidArgument, match="other examples"):
        gradients.sum(squares(mix(model(x)), y))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0), (0, 4), (4, 0), (3, 7), (7, 3)])
def test_one_loss_that_depends_on_one_other_example_is_refused_at_once(one, other):
    model, (x, y) = small(), data(8)
    with ClippedGradients(model, clip_norm=1.0) as gradients:
        out = model(x)
        with pytest.raises(InvalidArgument, match="other examples"):
            gradients.sum(squares(out, y) + torch.eye(8)[one] * out[other].sum())


def test_tensors_are_found_and_replaced_wherever_they_are_nested():
    one, two = torch.zeros(1), torch.ones(1)
    value = {"a": (one, [two, "text"]), "b": one}
    assert [id(tensor) for tensor in tensors_of(value)] == [id(one), id(two), id(one)]
    found = map_tensors(value, torch.clone)
    assert found["b"] is found["a"][0] is not one
    assert found["a"][1][1] == "text"


def test_a_pass_over_some_examples_has_their_losses():
    model, (x, y) = small(), data()
    forward = make_forward(model, squares, x, y)
    assert (forward.size, forward.is_separable) == (8, True)
    torch.testing.assert_close(forward.rows([3, 3, 5]).losses(), forward.losses()[[3, 3, 5]])


def test_what_has_not_the_example_in_front_is_no_batch():
    model, (x, y) = small(), data()
    for inputs, targets in ((x, y[:3]), (x, 3.0), ({"x": x, "text": "a"}, y), (torch.tensor(1.0), torch.tensor(2.0))):
        with pytest.raises(InvalidArgument, match="with the example as first axis"):
            make_forward(model, squares, inputs, targets)


def test_losses_are_one_value_per_example():
    assert require_losses(torch.zeros(5), 5) == 5
    for wrong in (torch.tensor(1.0), torch.zeros(5, 1), torch.zeros(4), [1.0]):
        with pytest.raises(InvalidArgument, match="one value per example"):
            require_losses(wrong, 5)
