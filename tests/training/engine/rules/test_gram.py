"""Gram matrices over positions: from pixels or from what is unfolded, the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.engine.rules import conv, gram


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 2, 3, padding=1),
        nn.Conv2d(3, 2, (2, 3), stride=(2, 1), padding=(0, 2)),
        nn.Conv2d(3, 2, 3, dilation=2, padding=2),
        nn.Conv2d(3, 2, 2, stride=3),
        nn.Conv1d(3, 2, 3, stride=2, padding=1),
    ],
    ids=["plain", "uneven", "dilated", "apart", "line"],
)
def test_products_of_patches_are_sums_of_products_of_pixels(layer):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 7, 6) if isinstance(layer, nn.Conv2d) else torch.randn(4, 3, 7)
    view = conv.Geometry.of(layer, x, layer(x).detach())
    unfolded = gram.multiply_rows(conv.columns(view).double().transpose(1, 2))
    sizes = (view.kernel, view.stride, view.padding, view.dilation)
    torch.testing.assert_close(gram.multiply_patches(view.x, view.g.shape[2:], sizes), unfolded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("channels", "is_by_pixels"), [(conv.CHANNELS, True), (conv.CHANNELS - 1, False)])
def test_how_products_are_found_follows_from_the_layer_and_not_from_the_size_of_the_batch(
    monkeypatch, channels, is_by_pixels
):
    asked = []
    monkeypatch.setattr(conv, "multiply_patches", lambda x, *_: asked.append(len(x)) or x.new_zeros(()))
    layer = nn.Conv2d(channels, 2, 3, padding=1)
    for rows in (1, 30):
        conv.multiply_inputs(conv.Geometry.of(layer, torch.ones(rows, channels, 4, 4), torch.ones(rows, 2, 4, 4)))
    assert asked == ([1, 30] if is_by_pixels else [])


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_weight", [True, False])
def test_the_reach_is_the_sum_of_the_lengths_of_all_positions(has_weight, has_bias):
    torch.manual_seed(0)
    x, g = torch.randn(3, 5, 4).double(), torch.randn(3, 5, 2).double()
    inputs = gram.multiply_rows(x) if has_weight else None
    expected = (x.norm(dim=2) + has_bias if has_weight else torch.ones(3, 5)) * g.norm(dim=2)
    found = gram.Grams(inputs, gram.multiply_rows(g), has_bias).reach()
    torch.testing.assert_close(found, expected.sum(1).double())
