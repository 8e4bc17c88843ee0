"""A small residual network that normalises each example by itself: GroupNorm (Wu and He 2018).

BatchNorm would let one example move the others' gradients, so that no clip bounds what it contributes.

>>> import torch
>>> ResNet()(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 10])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.models.seeds import seeded


class ResNet(nn.Module):
    """A stem, ``blocks`` residual blocks per width, each width at half the resolution, and a linear head."""

    def __init__(
        self,
        channels: int = 3,
        classes: int = 10,
        widths: Sequence[int] = (16, 32, 64),
        blocks: int = 1,
        groups: int = 8,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_widths(widths, groups)
        checks.count(blocks=blocks)
        with seeded(seed):
            self.stem = make_convolution(checks.count(channels=channels), widths[0], 1)
            self.norm = nn.GroupNorm(groups, widths[0])
            stages = [make_stage(*sizes, blocks, groups) for sizes in pairwise([widths[0], *widths])]
            self.stages = nn.Sequential(*(block for blocks_of_stage in stages for block in blocks_of_stage))
            self.head = nn.Linear(widths[-1], checks.count(classes=classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (B, classes)."""
        maps = self.stages(functional.relu(self.norm(self.stem(images))))
        scores: Tensor = self.head(maps.mean((2, 3)))
        return scores


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first, self.first_norm = make_convolution(before, after, stride), nn.GroupNorm(groups, after)
        self.second, self.second_norm = make_convolution(after, after, 1), nn.GroupNorm(groups, after)
        is_same = before == after and stride == 1
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Return feature maps with the width after the block."""
        inner = functional.relu(self.first_norm(self.first(maps)))
        return functional.relu(self.second_norm(self.second(inner)) + self.shortcut(maps))


def make_stage(before: int, after: int, blocks: int, groups: int) -> list[ResidualBlock]:
    """Return the blocks of one width; the first halves the resolution if it changes the width."""
    first = ResidualBlock(before, after, 1 if before == after else 2, groups)
    return [first, *(ResidualBlock(after, after, 1, groups) for _ in range(blocks - 1))]


def make_convolution(before: int, after: int, stride: int) -> nn.Conv2d:
    """Return a 3×3 convolution without a bias: the normalisation after it has one."""
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


def check_widths(widths: Sequence[int], groups: int) -> None:
    """Refuse widths that cannot be split into so many groups, and an empty list."""
    checks.count(groups=groups)
    for width in widths:
        if checks.count(widths=width) % groups:
            raise InvalidArgument(
                "groups", f"groups must divide every width, got {groups} groups for a width of {width}"
            )
    if not widths:
        raise InvalidArgument("widths", "widths must have at least one number, got none")
