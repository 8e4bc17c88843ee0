"""What each rule says is compared with what the operation does in `test_operations.py`; here is what it must refuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dpfed.training.engine.watch.independence import ExampleWatch
from dpfed.training.engine.watch.marks import MIXED, Place

SIZE = 4
ROWS = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0))
SEQUENCES = torch.randn(SIZE, 5, 3, generator=torch.Generator().manual_seed(1))
TABLE = torch.randn(3, 2)
KEPT = {
    "rows by a table": (lambda x, s: x @ TABLE, Place(0)),
    "a table by columns": (lambda x, s: TABLE.t() @ x.t(), Place(1)),
    "a bias for all": (lambda x, s: torch.addmm(torch.ones(2), x, TABLE), Place(0)),
    "each with itself": (lambda x, s: torch.bmm(s, s.transpose(1, 2)), Place(0)),
    "distances within": (lambda x, s: torch.cdist(s, s), Place(0)),
    "attention": (lambda x, s: functional.scaled_dot_product_attention(s[:, None], s[:, None], s[:, None]), Place(0)),
}
MET = {
    "all pairs of rows": lambda x, s: x @ x.t(),
    "a table over examples": lambda x, s: torch.ones(2, SIZE) @ x,
    "a bias for each place": lambda x, s: torch.addmm(torch.arange(float(SIZE)).view(-1, 1), x, TABLE),
    "positions in the place of examples": lambda x, s: torch.bmm(s.transpose(0, 1), s.permute(1, 2, 0)),
    "distances between": lambda x, s: torch.cdist(x, x),
    "attention between": lambda x, s: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_product_with_what_all_have_in_common_leaves_examples_in_their_places(name):
    function, place = KEPT[name]
    with ExampleWatch(SIZE, [ROWS, SEQUENCES]) as watch:
        output = function(ROWS, SEQUENCES)
    assert watch.marks.place(output) == place


@pytest.mark.parametrize("name", MET)
def test_a_product_of_examples_with_each_other_mixes_them(name):
    with ExampleWatch(SIZE, [ROWS, SEQUENCES]) as watch:
        output = MET[name](ROWS, SEQUENCES)
    assert watch.marks.of(output) == MIXED
