from __future__ import annotations

import pytest
import torch

from dpfed.training.engine.rules.contributions import Materialised, Rows, row_norms, rows_of, square_norms, without


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 300_007])
def test_a_float32_norm_of_any_length_is_right_to_eight_millionths(length):
    torch.manual_seed(0)
    for rows in (torch.rand(3, length), torch.full((3, length), 0.1), torch.randn(3, length).exp()):
        error = square_norms(rows).sqrt() / rows.double().norm(dim=1) - 1
        assert float(error.abs().max()) < 8e-6


GRADIENTS = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]])


def test_norms_and_weighted_sums_are_those_of_the_gradients_that_are_written_out():
    piece = Materialised({"weight": rows_of(GRADIENTS), "bias": rows_of(torch.tensor([[12.0], [0.0]]))})
    assert piece.norms().tolist() == [13.0, 2.0]
    assert piece.absolute_norms().tolist() == [19.0, 4.0]
    found = piece.sum_weighted(torch.tensor([1.0, 10.0]))
    assert found["weight"].tolist() == [[13.0, 10.0], [10.0, 14.0]]
    assert found["bias"].tolist() == [12.0]
    assert piece.only(["bias"]).norms().tolist() == [12.0, 0.0]


def test_an_example_that_is_emptied_counts_as_zero_whatever_was_written_out_for_it():
    spoiled = GRADIENTS.clone()
    spoiled[0] = torch.nan
    piece = without(Materialised({"weight": rows_of(spoiled)}), torch.tensor([True, False]))
    assert piece.norms().tolist() == [0.0, 2.0]
    assert piece.sum_weighted(torch.tensor([0.0, 1.0]))["weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_the_sum_of_a_kernels_own_order_is_put_into_the_parameters():
    values = torch.arange(12.0).view(2, 6)  # of a parameter (2, 3), stored transposed
    rows = Rows(values, torch.Size((2, 3)), layout=(3, 2), order=(1, 0))
    assert rows.sum_weighted(torch.tensor([1.0, 0.0])).tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def test_a_norm_beyond_the_squares_of_float32_is_still_a_number():
    assert row_norms(torch.full((1, 4), 1e30)).item() == pytest.approx(2e30)
