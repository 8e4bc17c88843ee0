"""Where examples are inside torch's own operations follows from what is known of their results, and from no guess."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.engine.capture import Leaves
from dpfed.training.engine.inner import find_places
from dpfed.training.engine.watch.marks import Place

SIZE, LENGTH, WIDTH = 5, 4, 3


class Weights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.layers = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(2, WIDTH, WIDTH))


def found_in(result, model, at):
    """Return the places of all nodes behind a result that has the examples there, by the names of the nodes."""
    graph = Leaves(model).graph([result.grad_fn])
    named = {number: node.name() for node, number in graph.numbers.items()}
    return [(named[number], place) for number, place in find_places(graph, {0: at}, SIZE).items()]


def test_a_product_behind_a_reshape_has_the_examples_and_their_positions_in_one_axis():
    model = Weights()
    found = found_in(torch.randn(SIZE, LENGTH, WIDTH) @ model.matrix.tanh(), model, Place(0))
    assert found[1:] == [("MmBackward0", Place(0, 1, LENGTH)), ("TanhBackward0", None)]


def test_a_factor_of_many_products_has_the_rows_of_its_example():
    model = Weights()
    found = found_in(torch.randn(SIZE, 2, LENGTH, WIDTH) @ model.layers, model, Place(0))
    assert ("BmmBackward0", Place(0, 1, 2)) in found
    assert found[-1] == ("ExpandBackward0", Place(0))


@pytest.mark.parametrize("seen", [Place(0), Place(1)], ids=str)
def test_nothing_is_said_of_what_is_added_to_a_product(seen):
    model = Weights()
    result = torch.addmm((torch.randn(SIZE, WIDTH) * model.matrix[0]).sin(), torch.randn(SIZE, WIDTH), model.matrix)
    assert found_in(result, model, seen) == [("AddmmBackward0", seen)]


def test_nothing_is_said_of_what_has_two_users():
    model = Weights()
    made = model.matrix.tanh()
    first = torch.randn(SIZE, WIDTH) @ made
    assert found_in(first @ made, model, Place(0)) == [("MmBackward0", Place(0))]


def test_nothing_follows_from_operations_that_are_not_known():
    model = Weights()
    assert found_in((torch.randn(SIZE, WIDTH) @ model.matrix).cumsum(0), model, Place(0)) == [
        ("CumsumBackward0", Place(0))
    ]
