"""A 2D U-Net for segmentation (Ronneberger et al. 2015) with GroupNorm in the place of BatchNorm.

>>> import torch
>>> UNet(channels=1, classes=2, widths=(8, 16))(torch.zeros(2, 1, 32, 32)).shape
torch.Size([2, 2, 32, 32])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.models.resnet import check_widths, make_convolution
from dpfed.models.seeds import seeded


class UNet(nn.Module):
    """An encoder through the widths, each at half the resolution, and a decoder with skip connections."""

    def __init__(
        self,
        channels: int = 1,
        classes: int = 2,
        widths: Sequence[int] = (16, 32, 64),
        groups: int = 8,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_widths(widths, groups)
        sizes = list(pairwise([checks.count(channels=channels), *widths]))
        ups = [(below, above) for above, below in reversed(list(pairwise(widths)))]
        with seeded(seed):
            self.down = nn.ModuleList(make_double(*size, groups) for size in sizes)
            self.rise = nn.ModuleList(nn.ConvTranspose2d(below, above, 2, stride=2) for below, above in ups)
            self.up = nn.ModuleList(make_double(2 * above, above, groups) for _, above in ups)
            self.head = nn.Conv2d(widths[0], checks.count(classes=classes), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (B, classes, height, width)."""
        self._check_sides(images)
        passed: list[Tensor] = []
        for level in self.down:
            passed.append(level(functional.max_pool2d(passed[-1], 2) if passed else images))
        maps = passed.pop()
        for rise, level in zip(self.rise, self.up, strict=True):
            maps = level(torch.cat([passed.pop(), rise(maps)], 1))
        scores: Tensor = self.head(maps)
        return scores

    def _check_sides(self, images: Tensor) -> None:
        factor = 2 ** len(self.rise)
        height, width = images.shape[-2:]
        if height % factor or width % factor:
            message = f"height and width must be multiples of {factor}, got {height}×{width}: pad or crop the images"
            raise InvalidArgument("images", message)


def make_double(before: int, after: int, groups: int) -> nn.Sequential:
    """Return two 3×3 convolutions, each with GroupNorm and ReLU."""
    sizes = ((before, after), (after, after))
    layers = ((make_convolution(*size, 1), nn.GroupNorm(groups, after), nn.ReLU()) for size in sizes)
    return nn.Sequential(*(layer for layers_of_size in layers for layer in layers_of_size))
