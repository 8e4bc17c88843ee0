from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.examples import Items, Tensors, examples, make_records


class Rows(Dataset):
    def __init__(self, *rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def test_floats_get_the_models_precision_and_integers_stay_integers():
    found = examples((np.arange(6.0).reshape(3, 2), np.array([2, 1, 0], dtype=np.int16)), torch.float32)
    assert isinstance(found, Tensors)
    assert found.form == (((2,), torch.float32), ((), torch.int64))
    inputs, targets = found.fetch(torch.tensor([2, 0]))
    assert (inputs.tolist(), targets.tolist()) == ([[4.0, 5.0], [0.0, 1.0]], [0, 2])
    assert isinstance(examples(TensorDataset(inputs, targets), torch.float64), Tensors)


def test_a_dataset_is_read_record_by_record():
    found = examples(Rows((torch.ones(2), 1), (torch.zeros(2), 0)), torch.float64)
    assert isinstance(found, Items)
    assert (len(found), found.form) == (2, (((2,), torch.float64), ((), torch.int64)))
    with pytest.raises(InvalidArgument, match="a pair of input and target"):
        examples(Rows(torch.ones(2)), torch.float64).fetch(torch.tensor([0]))


def test_records_that_cannot_be_read_leave_the_others_alone():
    whole, broken = (torch.ones(2), torch.tensor(1)), (torch.ones(2), torch.tensor(1), "too many")
    pieces = examples(Rows(whole, broken, whole), torch.float32).fetch_apart(torch.arange(3))
    assert sum(len(piece.values[0]) for piece in pieces) == 2


@pytest.mark.parametrize(
    "data",
    [
        (np.array([[1.0], [np.nan]]), np.zeros(2)),
        (np.zeros((2, 1)), np.zeros(3)),
        (np.array([["a"]]), np.zeros(1)),
        (np.zeros((2, 1)),),
        iter([(1, 2)]),
    ],
)
def test_what_is_no_data_is_refused_at_once(data):
    with pytest.raises(InvalidArgument):
        examples(data, torch.float32)


def test_made_up_records_are_the_same_every_time_and_reveal_nothing():
    form = ((3,), torch.float32), ((), torch.int64)
    first, second = make_records(form, 4), make_records(form, 4)
    assert torch.equal(first[0], second[0])
    assert (first[0].shape, first[1].tolist()) == ((4, 3), [0] * 4)
    tokens, _ = make_records((((5,), torch.int64), ((), torch.int64)), 8)
    assert set(tokens.flatten().tolist()) <= {0, 1}
