from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.layers.projection import KnownProjection, Projection, needs_gradient, tie, tie_recurrent


def test_a_product_uses_the_parameters_of_its_owner():
    owner, product = nn.Linear(3, 2), Projection()
    assert tie(product, owner.weight, owner.bias)
    assert product.weight is owner.weight
    x = torch.randn(4, 3)
    torch.testing.assert_close(product(x), owner(x))
    assert not tie(product, None)


def test_a_known_result_has_the_gradients_of_the_product_and_gives_its_input_none():
    owner, product, x = nn.Linear(3, 2), KnownProjection(), torch.randn(4, 5, 3, requires_grad=True)
    tie(product, owner.weight, owner.bias)
    upwards = torch.randn(4, 5, 2)
    expected = torch.autograd.grad(owner(x), [owner.weight, owner.bias], upwards)
    found = torch.autograd.grad(product(x, owner(x.detach()).detach()), [owner.weight, owner.bias], upwards)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.autograd.grad(product(x, torch.zeros(4, 5, 2)), [x], upwards, allow_unused=True) == (None,)
    with pytest.raises(TypeError, match="give the result"):
        product(x)


def test_the_products_of_a_recurrent_layer_are_tied_by_their_names():
    layer, products = nn.GRU(3, 2), {"ih_l0": Projection(), "hh_l0": Projection()}
    assert tie_recurrent(products, layer)
    assert products["hh_l0"].weight is layer.weight_hh_l0
    assert not tie_recurrent({"ih_l1": Projection()}, layer)


def test_a_frozen_layer_needs_no_gradient_unless_its_input_does():
    layer, products = nn.GRU(3, 2), {"ih_l0": Projection()}
    tie_recurrent(products, layer)
    assert needs_gradient(products)
    layer.requires_grad_(False)
    assert not needs_gradient(products, torch.zeros(1), None)
    assert needs_gradient(products, torch.zeros(1, requires_grad=True))
