from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.training.engine.copied import Copies, Copy, copy_on_write, original_of


def test_a_lazy_copy_keeps_its_values_whoever_writes():
    tensor = torch.zeros(3)
    copy = copy_on_write(tensor)
    tensor.add_(1)
    assert (copy.tolist(), tensor.tolist()) == ([0.0] * 3, [1.0] * 3)
    array = np.zeros(3)
    shared = copy_on_write(torch.from_numpy(array))
    array += 1
    assert shared.tolist() == [0.0] * 3


def test_a_parameter_stays_the_object_that_its_optimizer_holds():
    parameter = nn.Parameter(torch.zeros(2))
    copy = Copy(parameter)
    assert not copy.is_written
    parameter.data.add_(1)
    assert copy.is_written
    assert copy.bring_back(is_over=False) is parameter
    assert parameter.tolist() == [0.0, 0.0]


def test_until_the_backward_pass_is_over_another_tensor_takes_the_place_of_a_written_buffer():
    buffer = torch.zeros(2)
    copy = Copy(buffer)
    buffer.add_(1)
    found = copy.bring_back(is_over=False)
    assert (found.tolist(), buffer.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert original_of(found) is buffer
    assert copy.bring_back() is buffer
    assert buffer.tolist() == [0.0, 0.0]


def test_memory_that_a_view_or_numpy_uses_as_well_is_written_back_for_all():
    array = np.zeros(3)
    tensor = torch.from_numpy(array)
    view, copy = tensor.view(3, 1), Copy(tensor)
    array[:] = 7
    copy.bring_back()
    assert (array.tolist(), view.flatten().tolist()) == ([0.0] * 3, [0.0] * 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: setattr(tensor, "grad", torch.ones(2)),
        lambda tensor: setattr(tensor, "mark", 1),
        lambda tensor: tensor.requires_grad_(False),
        lambda tensor: tensor.register_hook(lambda gradient: gradient),
        lambda tensor: tensor.data.add_(1),
        lambda tensor: setattr(tensor, "data", torch.zeros(3)),
    ],
)
def test_whatever_is_changed_of_one_of_many_is_noticed_and_restored(change):
    tensors = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    copies = Copies(tensors)
    assert copies.are_same
    change(tensors[1])
    assert not copies.are_same
    copies.bring_back(is_over=True)
    assert tensors[1].requires_grad
    assert tensors[1].grad is None
    assert not vars(tensors[1])
    assert not tensors[1]._backward_hooks
    assert tensors[1].tolist() == [0.0, 0.0]
