"""The small convolutional network that the DP-SGD literature trains on MNIST (Papernot et al. 2021).

>>> import torch
>>> model = CNN()
>>> model(torch.zeros(5, 1, 28, 28)).shape, sum(parameter.numel() for parameter in model.parameters())
(torch.Size([5, 10]), 26010)
"""

from __future__ import annotations

from torch import Tensor, nn

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.models.seeds import seeded

SMALLEST = 15


class CNN(nn.Module):
    """Two strided convolutions and two linear layers, for square images of ``size`` pixels a side."""

    def __init__(self, channels: int = 1, size: int = 28, classes: int = 10, *, seed: int = 0) -> None:
        super().__init__()
        if checks.count(size=size) < SMALLEST:
            raise InvalidArgument("size", f"size must be at least {SMALLEST} pixels, got {size}")
        with seeded(seed):
            self.layers = nn.Sequential(
                nn.Conv2d(checks.count(channels=channels), 16, 8, stride=2, padding=3),
                nn.ReLU(),
                nn.MaxPool2d(2, stride=1),
                nn.Conv2d(16, 32, 4, stride=2),
                nn.ReLU(),
                nn.MaxPool2d(2, stride=1),
                nn.Flatten(),
                nn.Linear(32 * _compute_side(size) ** 2, 32),
                nn.ReLU(),
                nn.Linear(32, checks.count(classes=classes)),
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of shape (B, classes)."""
        scores: Tensor = self.layers(images)
        return scores


def _compute_side(size: int) -> int:
    """Return the side of the feature maps that reach the first linear layer."""
    pooled = (size - 2) // 2 + 1 - 1
    return (pooled - 4) // 2 + 1 - 1
