"""Three models picked after optimisation was frozen, by somebody who had neither optimised nor read the engine.

They were chosen before anything of them was measured, each for what no model of everyday.py has: depthwise
convolutions, weights that are computed from other parameters, and parameters that belong to no stock layer. Rows are
kept as found. They have no bars.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from everyday import Model, classified, images, likely

# --- MobileNetV2 ---


def divisible(channels: float, by: int = 8) -> int:
    """Round to a multiple, and by no more than a tenth down."""
    found = max(by, int(channels + by / 2) // by * by)
    return found + by if found < 0.9 * channels else found


def conv_norm_relu(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, (size - 1) // 2, groups=groups, bias=False),
        nn.GroupNorm(8, after),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Widen by 1×1, one 3×3 for each channel, narrow by 1×1; a way around where shapes allow it."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = before * expansion
        layers = [] if expansion == 1 else [conv_norm_relu(before, hidden, 1)]
        layers.append(conv_norm_relu(hidden, hidden, 3, stride, groups=hidden))
        self.conv = nn.Sequential(*layers, nn.Conv2d(hidden, after, 1, bias=False), nn.GroupNorm(8, after))
        self.is_residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)


class MobileNetV2(nn.Module):
    """All 17 blocks at half the width, with GroupNorm for BatchNorm."""

    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, classes: int = 10, width: float = 0.5, last: int = 1280) -> None:
        super().__init__()
        channels = divisible(32 * width)
        features: list[nn.Module] = [conv_norm_relu(3, channels, stride=2)]
        for expansion, wanted, count, stride in self.blocks:
            after = divisible(wanted * width)
            for number in range(count):
                features.append(InvertedResidual(channels, after, 1 if number else stride, expansion))
                channels = after
        features.append(conv_norm_relu(channels, last, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


# --- TCN ---


class Chomp1d(nn.Module):
    """Cut off what padding added at the end, so that nothing looks ahead."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.size].contiguous()


class TemporalBlock(nn.Module):
    """Two dilated convolutions with weight norm, and a way around."""

    def __init__(self, before: int, after: int, size: int, dilation: int, dropout: float) -> None:
        super().__init__()
        padding = (size - 1) * dilation
        self.conv1 = weight_norm(nn.Conv1d(before, after, size, padding=padding, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(after, after, size, padding=padding, dilation=dilation))
        self.net = nn.Sequential(
            *(self.conv1, Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout)),
            *(self.conv2, Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout)),
        )
        self.downsample = nn.Conv1d(before, after, 1) if before != after else None
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        return self.relu(self.net(x) + around)


class TCN(nn.Module):
    """A picture of 20×20, pixel after pixel, classified by what the last place sees."""

    def __init__(self, channels: int = 25, levels: int = 7, size: int = 7, dropout: float = 0.05) -> None:
        super().__init__()
        widths = [1] + [channels] * levels
        self.tcn = nn.Sequential(
            *(
                TemporalBlock(before, after, size, 2**level, dropout)
                for level, (before, after) in enumerate(pairwise(widths))
            )
        )
        self.linear = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(self.linear(self.tcn(x)[:, :, -1]), dim=1)


# --- GAT ---

NODES, FEATURES, LABELS = 30, 64, 7


class GraphAttention(nn.Module):
    """Nodes attend to their neighbours; the heads' mean."""

    def __init__(self, before: int, after: int, heads: int, dropout: float = 0.6) -> None:
        super().__init__()
        self.heads, self.after, self.dropout = heads, after, dropout
        self.W = nn.Parameter(torch.empty(before, after * heads))
        self.a = nn.Parameter(torch.empty(heads, 2 * after, 1))
        self.leaky = nn.LeakyReLU(0.2)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = functional.dropout(torch.matmul(x, self.W), self.dropout, training=self.training)
        h = h.view(*x.shape[:2], self.heads, self.after).permute(0, 2, 1, 3)
        source = torch.matmul(h, self.a[:, : self.after, :])
        target = torch.matmul(h, self.a[:, self.after :, :])
        scores = self.leaky(source + target.mT)
        scores = torch.where(adjacency.unsqueeze(1) > 0, scores, -9e16 * torch.ones_like(scores))
        attention = functional.dropout(functional.softmax(scores, dim=-1), self.dropout, training=self.training)
        return torch.matmul(attention, h).mean(dim=1)


class GAT(nn.Module):
    """Two layers; a label for every node."""

    def __init__(self, hidden: int = 64, heads: int = 8) -> None:
        super().__init__()
        self.gat1 = GraphAttention(FEATURES, hidden, heads)
        self.gat2 = GraphAttention(hidden, LABELS, 1)

    def forward(self, graph: tuple[Tensor, Tensor]) -> Tensor:
        x, adjacency = graph
        x = functional.elu(self.gat1(x, adjacency))
        return functional.log_softmax(self.gat2(x, adjacency), dim=2)


def graphs(count: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return nodes and who is joined to whom (everybody to itself), and the nodes' labels: a graph is a record."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand((count, NODES, FEATURES), generator=generator)
    joined = torch.rand((count, NODES, NODES), generator=generator) < 0.1
    adjacency = (joined | joined.mT | torch.eye(NODES, dtype=torch.bool)).float()
    return (features, adjacency), torch.randint(LABELS, (count, NODES), generator=generator)


def likely_nodes(scores: Tensor, wanted: Tensor) -> Tensor:
    return functional.nll_loss(scores.transpose(1, 2), wanted, reduction="none").mean(1)


PICKED = {  # after optimisation was frozen
    "mobilenet": Model(
        "MobileNetV2, GroupNorm", MobileNetV2, partial(images, shape=(3, 64, 64)), classified, "torchvision"
    ),
    "tcn": Model("TCN, weight_norm", TCN, partial(images, shape=(1, 400)), likely, "locuslab/TCN, mnist_pixel"),
    "gat": Model("graph attention", GAT, graphs, likely_nodes, "examples/gat"),
}
