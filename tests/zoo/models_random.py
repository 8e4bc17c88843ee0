"""Models that draw random numbers, from torch, numpy or random."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2))


def dropped_channels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.Dropout2d(0.5), nn.ReLU(), nn.Conv2d(6, 2, 2))


def self_normalising() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.SELU(), nn.AlphaDropout(0.4), nn.Linear(8, 2))


def random_slopes() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.RReLU(0.1, 0.9), nn.Linear(8, 2))


class NoisyInputs(nn.Module):
    """Gaussian noise on the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x + 0.3 * torch.randn_like(x)).tanh()


class StochasticDepth(nn.Module):
    """A block is left out for each example by a coin of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + (torch.rand(len(x), 1) < 0.5) * block(x).relu()
        return x


class CoinOfPython(nn.Module):
    """How much of a block counts for the whole batch, by Python's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) + random.random() * self.b(x).relu()  # noqa: S311


class CoinOfNumpy(nn.Module):
    """The same by numpy's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) + np.random.rand() * self.b(x).tanh()


class DroppedRecurrent(nn.Module):
    """Dropout between the layers of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 6, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        return self.layers(x)[0].mean(1)


class DroppedAttention(nn.Module):
    """Dropout of attention weights and in the block around them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.4, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Variational(nn.Module):
    """A hidden normal, drawn by its mean and spread."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + (spread / 2).exp() * torch.randn_like(mean)), mean, spread


class VariationalChances(nn.Module):
    """The same with chances as outputs; where parameters are large, spread and chances are no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 6), nn.Linear(3, 2)
        for parameter in self.encode.parameters():
            nn.init.uniform_(parameter, -0.01, 0.01)

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, dim=1)
        return self.decode(mean + (50 * spread).exp() * torch.randn_like(mean)).sigmoid()


class Gumbel(nn.Module):
    """A soft choice by Gumbel noise."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.table = nn.Linear(4, 5), nn.Parameter(torch.randn(5, 2))

    def forward(self, x):
        return functional.gumbel_softmax(self.choose(x), tau=0.7) @ self.table


class Cropped(nn.Module):
    """A place in the image, drawn for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x):
        shifts = torch.randint(0, 4, (len(x),))
        rows = (shifts.unsqueeze(1) + torch.arange(3)).view(-1, 1, 3, 1).expand(-1, 2, 3, 6)
        return self.conv(x.gather(2, rows))
