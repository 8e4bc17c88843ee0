"""Logistic regression: the model to beat, and often the right one under a small budget.

>>> import torch
>>> Logistic(features=30, classes=2)(torch.zeros(5, 30)).shape
torch.Size([5, 2])
"""

from __future__ import annotations

from torch import Tensor, nn

from dpfed import checks
from dpfed.models.seeds import seeded


class Logistic(nn.Module):
    """One score per class, linear in the features; an input of any shape is read as a flat row per example."""

    def __init__(self, features: int = 30, classes: int = 2, *, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.linear = nn.Linear(checks.count(features=features), checks.count(classes=classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of shape (B, classes)."""
        scores: Tensor = self.linear(inputs.flatten(1))
        return scores
