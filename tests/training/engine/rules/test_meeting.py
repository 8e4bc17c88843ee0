from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.engine.rules.meeting import direct, is_repeated, is_served, of_node, sum_repeated

SIZE = 4
X = torch.randn(SIZE, 3, 2, generator=torch.Generator().manual_seed(0))
USES = {
    "added": lambda p: X + p,
    "a factor": lambda p: X * p,
    "made first": lambda p: X * (2 * p).exp(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 1, 2)])
def test_each_examples_gradient_is_that_of_its_own_loss(use, shape):
    parameter = nn.Parameter(torch.ones(shape))
    output = USES[use](parameter)
    place = 1  # the parameter is the second of both
    assert is_served(output.grad_fn, place, axis=0)
    meeting = of_node("p", parameter, output.grad_fn, place, SIZE)
    expected = [torch.autograd.grad(output[n].sin().sum(), parameter, retain_graph=True)[0] for n in range(SIZE)]
    (meeting.gradient,) = torch.autograd.grad(output.sin().sum(), output, retain_graph=True)
    found = direct(meeting.apart(0)).rows["weight"].values
    torch.testing.assert_close(found, torch.stack(expected).reshape(SIZE, -1))


def test_what_is_not_the_same_for_all_examples_or_is_not_known_is_not_served():
    parameter = nn.Parameter(torch.ones(SIZE, 1, 1))
    assert not is_repeated((X * parameter).grad_fn, 1, axis=0)
    assert is_repeated((X * parameter).grad_fn, 1, axis=1)
    assert not is_served((X / nn.Parameter(torch.ones(2))).atan2(X).grad_fn, 0, axis=0)


def test_repeated_axes_are_added_up():
    assert sum_repeated(torch.ones(4, 3, 2), 0, torch.Size((2,))).tolist() == [[3.0, 3.0]] * 4
    assert sum_repeated(torch.ones(3, 4, 2), 1, torch.Size((3, 1, 2))).shape == (4, 3, 1, 2)
