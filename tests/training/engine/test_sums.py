from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import TOLERANCE, Clip
from dpfed.training.engine.rules.contributions import Materialised, rows_of
from dpfed.training.engine.sums import compute_coefficients, make_dense, require_mask, sum_clipped, zero_rows


def test_a_coefficient_clips_to_the_limit_and_is_zero_for_what_is_masked_or_not_finite():
    lengths = torch.tensor([0.0, 0.5, 4.0, torch.inf, 4.0])
    mask = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
    assert compute_coefficients(lengths, 1.0, mask).tolist() == [1.0, 1.0, 0.25, 0.0, 0.0]


def test_every_group_is_clipped_by_its_own_lengths_and_a_parameter_without_gradients_has_zeros():
    parameters = {name: nn.Parameter(torch.zeros(1)) for name in ("a.weight", "b.weight", "c.weight")}
    gradients = Materialised({"weight": rows_of(torch.full((2, 1), 8.0))})
    lengths = [torch.tensor([8.0, 8.0]), torch.tensor([8.0, torch.inf])]
    groups = [[(gradients, {"weight": f"{name}.weight"})] for name in "ab"]
    sums = sum_clipped(Clip(2.0, "l1", "each"), groups, lengths, parameters, torch.float32)
    limit = 1 - TOLERANCE
    assert {name: round(float(value) / limit, 6) for name, value in sums.items()} == {
        "a.weight": 2.0,
        "b.weight": 1.0,
        "c.weight": 0.0,
    }


def test_a_gradient_that_is_missing_or_sparse_becomes_dense():
    parameter = torch.ones(2, 2)
    assert make_dense(parameter, None).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert make_dense(parameter, torch.eye(2).to_sparse()).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_rows_of_bad_examples_are_zero_and_the_values_stay_as_they_were():
    values = torch.tensor([[torch.nan, 1.0], [2.0, 3.0]])
    assert zero_rows(values, torch.tensor([True, False])).tolist() == [[0.0, 0.0], [2.0, 3.0]]
    assert values.isnan().any()


@pytest.mark.parametrize("weights", [torch.ones(3), torch.tensor([1.0, 2.0]), torch.tensor([1.0, torch.nan])])
def test_a_mask_is_zeros_and_ones_for_each_loss(weights):
    with pytest.raises(InvalidArgument, match=r"0 or 1 for each of the 2 examples.*mask"):
        require_mask(weights, torch.zeros(2))
