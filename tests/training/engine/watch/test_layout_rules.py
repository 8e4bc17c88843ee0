"""What each rule says is compared with what the operation does in `test_operations.py`; here is what it must refuse."""

from __future__ import annotations

import pytest
import torch

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, Place

SIZE = 4
X = torch.randn(SIZE, 2, 3, generator=torch.Generator().manual_seed(0))
KEPT = {
    "transpose": (lambda x: x.transpose(0, 2), Place(2)),
    "reshape": (lambda x: x.reshape(SIZE * 2, 3), Place(0, 1, 2)),
    "sum": (lambda x: x.sum(1), Place(0)),
    "tile of another axis": (lambda x: x.repeat(1, 2, 1), Place(0)),
    "concatenation": (lambda x: torch.cat([x, x], 1), Place(0)),
    "slice": (lambda x: x[:, :1], Place(0)),
    "a row that is the same for all": (lambda x: x + torch.arange(3.0), Place(0)),
}
MET = {
    "sum over examples": lambda x: x.sum(0),
    "examples tiled": lambda x: x.repeat(2, 1, 1),
    "examples one after the other": lambda x: torch.cat([x, x], 0),
    "a slice of examples": lambda x: x[1:].sum(),
    "flipped": lambda x: x.flip(0),
    "another for each place": lambda x: x + torch.arange(float(SIZE)).view(-1, 1, 1),
    "all by their neighbours": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", KEPT)
def test_examples_are_where_the_rule_says(name):
    function, place = KEPT[name]
    with ExampleWatch(SIZE, [X]) as watch:
        output = function(X)
    assert watch.marks.place(output) == place


@pytest.mark.parametrize("name", MET)
def test_where_examples_meet_or_move_they_are_mixed(name):
    with ExampleWatch(SIZE, [X]) as watch:
        output = MET[name](X)
    assert watch.marks.of(output) == MIXED
