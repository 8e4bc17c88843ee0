from __future__ import annotations

import pytest
import torch

from dpfed.errors import InvalidArgument
from dpfed.models.unet import UNet


def test_an_image_that_the_u_net_cannot_halve_is_refused():
    with pytest.raises(InvalidArgument, match="multiples of 4, got 8×10"):
        UNet(channels=1, classes=2, widths=(4, 8, 12), groups=2)(torch.zeros(1, 1, 8, 10))


def test_a_skip_connection_carries_what_the_coarsest_level_lost():
    model = UNet(channels=1, classes=2, widths=(4, 8), groups=2)
    torch.nn.init.zeros_(model.rise[0].weight)  # nothing comes from below any more
    before, after = model(torch.zeros(1, 1, 8, 8)), model(torch.randn(1, 1, 8, 8))
    assert not torch.allclose(before, after, atol=1e-3)
