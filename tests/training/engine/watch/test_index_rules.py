"""What each rule says is compared with what the operation does in `test_operations.py`; here is what it must refuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, Place

SIZE = 4
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0))
NUMBERS = torch.tensor([[0, 1], [2, 2], [1, 0], [0, 0]])
TABLE = torch.randn(5, 3)
KEPT = {
    "a look-up": lambda x, n: functional.embedding(n, TABLE),
    "a table by numbers": lambda x, n: TABLE[n],
    "a gather along another axis": lambda x, n: x.gather(1, n),
    "columns by number": lambda x, n: x[:, torch.tensor([2, 0])],
    "each row at its own number": lambda x, n: x[torch.arange(SIZE), n[:, 0]],
    "bags": lambda x, n: functional.embedding_bag(n, TABLE),
}
MET = {
    "rows by number": lambda x, n: x[torch.tensor([3, 2, 1, 0])],
    "rows of others": lambda x, n: x[n[:, 0]],
    "a gather along examples": lambda x, n: x.gather(0, n),
    "rows counted backwards": lambda x, n: x[torch.arange(SIZE - 1, -1, -1), n[:, 0]],
    "rows chosen": lambda x, n: x.index_select(0, torch.tensor([1, 1, 2, 3])),
}


@pytest.mark.parametrize("name", KEPT)
def test_numbers_that_choose_within_an_example_leave_it_in_its_place(name):
    with ExampleWatch(SIZE, [X, NUMBERS]) as watch:
        output = KEPT[name](X, NUMBERS)
    assert watch.marks.place(output) == Place(0)


@pytest.mark.parametrize("name", MET)
def test_numbers_that_choose_among_examples_mix_them(name):
    with ExampleWatch(SIZE, [X, NUMBERS]) as watch:
        output = MET[name](X, NUMBERS)
    assert watch.marks.of(output) == MIXED


def test_a_mask_decides_the_shape_and_is_seen():
    with ExampleWatch(SIZE, [X]) as watch:
        output = X[X > 0]
    assert watch.marks.of(output) == MIXED
