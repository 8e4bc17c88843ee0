from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfed.training.engine.rules.product import is_free, is_served, of_node
from dpfed.training.engine.watch.marks import Place

SIZE = 4
ROWS = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(SIZE, 2, 5, 5, generator=torch.Generator().manual_seed(1))
# How a parameter meets the examples, its shape, which input of the node it is, and where the examples are.
USES = {
    "mm, right": (lambda p: ROWS @ p, (3, 2), 1, Place(0)),
    "mm, left": (lambda p: p @ ROWS.t(), (2, 3), 0, Place(1)),
    "mv": (lambda p: ROWS @ p, (3,), 1, Place(0)),
    "addmm": (lambda p: torch.addmm(torch.ones(2), ROWS, p, alpha=3.0), (3, 2), 2, Place(0)),
    "conv": (lambda p: functional.conv2d(IMAGES, p, stride=2), (3, 2, 2, 2), 1, Place(0)),
}


@pytest.mark.parametrize("use", USES)
def test_each_examples_gradient_is_that_of_its_own_loss(use):
    function, shape, place, at = USES[use]
    parameter = nn.Parameter(torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape))
    output = function(parameter)
    assert is_served(output.grad_fn, place, at)
    meeting = of_node("p", parameter, output.grad_fn, place, at, SIZE, [])
    assert meeting.has_examples(at, SIZE)
    alone = output.sin().movedim(at.axis, 0).reshape(SIZE, -1).sum(1)
    expected = [torch.autograd.grad(loss, parameter, retain_graph=True)[0] for loss in alone]
    (meeting.gradient,) = torch.autograd.grad(alone.sum(), output, retain_graph=True)
    found = meeting.apart_at(at, SIZE).gradient
    torch.testing.assert_close(found.reshape(SIZE, *shape), torch.stack(expected))


def test_a_product_that_sums_over_the_examples_is_not_served():
    parameter = nn.Parameter(torch.ones(2, SIZE))
    product = (parameter @ ROWS).grad_fn  # examples are rows of the other factor, and added up
    assert not is_served(product, 0, Place(0))
    transposed = functional.conv_transpose2d(IMAGES, nn.Parameter(torch.ones(2, 3, 2, 2))).grad_fn
    assert not is_served(transposed, 1, Place(0))


def test_only_the_factor_without_examples_is_free_of_them():
    node = (ROWS @ nn.Parameter(torch.ones(3, 2))).grad_fn
    assert is_free(node, 1, Place(0))
    assert not is_free(node, 0, Place(0))
