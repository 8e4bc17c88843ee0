from __future__ import annotations

import torch
from torch import nn

from dpfed.models.mlp import MLP


def test_there_is_a_relu_between_any_two_linear_layers_and_none_after_the_last():
    kinds = [type(layer) for layer in MLP(features=4, hidden=(5, 6), classes=2).layers]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_without_hidden_layers_it_is_linear():
    model = MLP(features=4, hidden=(), classes=2)
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(2 * x), 2 * model(x) - model(torch.zeros(3, 4)))
