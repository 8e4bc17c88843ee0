from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.integrations.estimator import scale_to_bounds, weight_loss

VALUES = np.array([[-5.0, 0.0], [5.0, 10.0], [20.0, 40.0]])


def test_values_are_clipped_to_public_bounds_and_mapped_to_one_interval():
    assert scale_to_bounds(VALUES, (0, 10)).tolist() == [[-1, -1], [0, 1], [1, 1]]
    assert scale_to_bounds(VALUES, ([0, 0], [10, 40])).tolist() == [[-1, -1], [0, -0.5], [1, 1]]


@pytest.mark.parametrize("bounds", [(1, 1), (0, np.inf), (0,), 3, ([0, 0, 0], [1, 1, 1])])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(InvalidArgument, match="bounds must be"):
        scale_to_bounds(VALUES, bounds)


def test_each_records_loss_is_multiplied_by_its_own_weight():
    def loss(outputs, targets):
        return (outputs - targets) ** 2

    outputs, targets, weights = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    rows = torch.stack([targets, weights], 1).double()
    assert weight_loss(loss, torch.float32)(outputs, rows).tolist() == [0.0, 4.0, 18.0]
