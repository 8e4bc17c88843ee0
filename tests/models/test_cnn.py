from __future__ import annotations

import pytest
import torch

from dpfed import models


@pytest.mark.parametrize("size", range(15, 40))
def test_the_cnn_fits_images_of_every_size_from_fifteen(size):
    assert models.CNN(size=size)(torch.zeros(1, 1, size, size)).shape == (1, 10)
