"""A multi-layer perceptron for tables and small images.

>>> import torch
>>> MLP()(torch.zeros(5, 1, 28, 28)).shape
torch.Size([5, 10])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dpfed import checks
from dpfed.models.seeds import seeded


class MLP(nn.Module):
    """Linear layers with ReLU between them; an input of any shape is read as a flat row per example."""

    def __init__(
        self, features: int = 784, hidden: Sequence[int] = (256,), classes: int = 10, *, seed: int = 0
    ) -> None:
        super().__init__()
        widths = [checks.count(features=features), *(checks.count(hidden=width) for width in hidden)]
        with seeded(seed):
            inner = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
            self.layers = nn.Sequential(nn.Flatten(), *inner, nn.Linear(widths[-1], checks.count(classes=classes)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of shape (B, classes)."""
        scores: Tensor = self.layers(inputs)
        return scores
