from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.training.checking.made_up import MadeUp


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "example",
    [
        (torch.zeros(1, 4, 4), 2),
        (torch.zeros(1, 4, 4), torch.tensor(2)),
        (np.zeros((1, 4, 4), dtype=np.float32), 2),
        [torch.zeros(3, 1, 4, 4), torch.tensor([0, 1, 2])],
    ],
)
def test_one_record_and_a_batch_of_them_give_the_same_form(example):
    inputs, targets = MadeUp(example).draw(7, generator())
    assert (inputs.shape, inputs.dtype) == ((7, 1, 4, 4), torch.float32)
    assert (targets.shape, targets.dtype) == ((7,), torch.int64)
    assert 0 <= int(targets.min()) <= int(targets.max()) <= 2


def test_whole_numbers_stay_in_their_range_however_records_are_changed():
    made_up = MadeUp((torch.tensor([[5, 0], [1, 2]]), torch.tensor([True, False])))
    records = made_up.draw(50, generator())
    moved = made_up.perturb(records, 1.0, generator())
    assert set(records[0].flatten().tolist()) | set(moved[0].flatten().tolist()) == set(range(6))
    assert moved[1].dtype == torch.bool
    assert not torch.equal(records[0], moved[0])


def test_bounded_numbers_stay_between_0_and_1():
    made_up = MadeUp((torch.zeros(2, 3), torch.zeros(2)), bounded=(1,))
    inputs, targets = made_up.perturb(made_up.draw(50, generator()), 10.0, generator())
    assert float(inputs.abs().max()) > 1
    assert 0 <= float(targets.min()) <= float(targets.max()) <= 1


@pytest.mark.parametrize("example", [torch.zeros(3), (torch.zeros(3),), (torch.zeros(0, 3), torch.zeros(0))])
def test_what_is_no_pair_of_records_is_refused(example):
    with pytest.raises(InvalidArgument, match=r"example (must|has no record)"):
        MadeUp(example)
