from __future__ import annotations

import torch

from dpfed.models.logistic import Logistic


def test_scores_are_linear_in_the_features_of_an_example_of_any_shape():
    model = Logistic(features=6, classes=3)
    one, other = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    scores = model(2 * one + other) - model(torch.zeros(1, 6))
    expected = 2 * one.flatten(1) @ model.linear.weight.T + other.flatten(1) @ model.linear.weight.T
    torch.testing.assert_close(scores, expected)
