from __future__ import annotations

import torch

from dpfed.training.engine.watch.marks import MIXED, Marks, Place, mark_of
from dpfed.training.engine.watch.operation import Operation

SIZE = 4


def operation(function, *arguments, **keywords) -> Operation:
    marks = Marks(SIZE)
    for each in arguments:
        if isinstance(each, torch.Tensor) and each.shape[:1] == (SIZE,):
            marks.put(each, mark_of(each.shape, Place(0)))
    return Operation(function, arguments, keywords, function(*arguments, **keywords), marks)


def test_arguments_have_their_names_and_those_not_given_their_defaults():
    found = operation(torch.ops.aten.sum.dim_IntList, torch.ones(SIZE, 3), [-1])
    assert (found.name, found.kind, found["dim"], found["keepdim"]) == ("sum", "sum", [-1], False)
    assert (found.axes("dim"), found.axes("dtype"), found.get("other")) == ({1}, None, None)
    assert found.place("self") == Place(0)
    assert found.shape == (SIZE,)


def test_an_operation_in_place_is_of_the_kind_of_the_other_and_a_private_one_is_not():
    assert operation(torch.ops.aten.add_.Tensor, torch.ones(SIZE), torch.ones(1)).kind == "add"
    assert operation(torch.ops.aten._softmax.default, torch.ones(SIZE, 2), -1, False).kind == "_softmax"


def test_where_a_result_is_written_is_no_input():
    out = torch.zeros(SIZE, 3)
    found = operation(torch.ops.aten.add.out, torch.ones(SIZE, 3), torch.ones(3), out=out)
    assert not any(tensor is out for tensor in found.tensors)


def test_clean_is_what_has_nothing_of_examples_and_nothing_random():
    rows, table = torch.ones(SIZE, 3), torch.ones(3, 2)
    found = operation(torch.ops.aten.mm.default, rows, table)
    assert found.is_clean("mat2")
    assert not found.is_clean("self", "mat2")
    found.marks.put(table, MIXED)
    assert not found.is_clean("mat2")
