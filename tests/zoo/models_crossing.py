"""Models that do something along the batch axis: some only move examples about, others mix them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Folded(nn.Module):
    """Positions folded into the batch, as time-distributed layers do: (B·T, F)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(self.a(x.reshape(-1, 4)).tanh()).view(len(x), -1)


class FoldedAcross(nn.Module):
    """Positions folded into the batch with the positions in front: (T·B, F)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        rows = self.a(x.transpose(0, 1).reshape(-1, 4)).relu()
        return self.b(rows.view(x.shape[1], len(x), 3).sum(0))


class FoldedConvolution(nn.Module):
    """Items of a set folded into the batch of a convolution: (B·N, C, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(1, 2, 3), nn.GroupNorm(1, 2)

    def forward(self, x):
        return self.norm(self.conv(x.reshape(-1, 1, x.shape[2]))).unflatten(0, x.shape[:2]).amax(1)


class PositionsFirst(nn.Module):
    """(T, B, F) throughout, without any recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(self.norm(self.a(x.transpose(0, 1)).relu()).mean(0))


class ChannelsOfBatch(nn.Module):
    """The examples as channels of one image, convolved in as many groups, each with a weight of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.style, self.kernel = nn.Linear(2, 3), nn.Parameter(torch.randn(3, 2, 3, 3) * 0.3)

    def forward(self, x):
        size = len(x)
        scales = self.style(x.mean((2, 3))).view(size, 3, 1, 1, 1)
        kernels = (self.kernel * scales).view(size * 3, 2, 3, 3)
        return functional.conv2d(x.reshape(1, size * 2, 6, 6), kernels, groups=size).view(size, 3, 4, 4)


class Transposed(nn.Module):
    """Columns are examples: W·Xᵀ, as in books."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(2, 3))
        self.bias = nn.Parameter(torch.randn(3, 1))

    def forward(self, x):
        return (self.v @ (self.w @ x.t() + self.bias).tanh()).t()


class BatchAsPositions(nn.Module):
    """The examples as positions of one sequence, under a kernel of one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 2, 1)

    def forward(self, x):
        return self.conv(x.t().unsqueeze(0))[0].t().sigmoid()


class BatchAsSequence(nn.Module):
    """The examples as positions of one sequence, under a kernel of three: neighbours are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 2, 3, padding=1)

    def forward(self, x):
        return self.conv(x.t().unsqueeze(0))[0].t()


class BatchInSpace(nn.Module):
    """An image without a batch axis: the examples are its channels, and a norm over them mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        signals = x[:, 0]
        return self.layer(functional.layer_norm(signals, signals.shape))


class Numbered(nn.Module):
    """A position in the batch as a feature."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(torch.cat([x, torch.arange(len(x), dtype=x.dtype).unsqueeze(1)], dim=1)).tanh()


class NumberedTable(nn.Module):
    """A row of a table for each place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.layer = nn.Embedding(16, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x + self.places(torch.arange(len(x)))).tanh()


class Ramped(nn.Module):
    """Examples weighted by where they stand in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) * torch.linspace(0.5, 2, len(x)).unsqueeze(1)


class BareRows(nn.Module):
    """A bare parameter with a row for each place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.layer = nn.Parameter(torch.randn(8, 4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x * self.rows[: len(x)])


class FlippedBack(nn.Module):
    """The batch is turned round for one layer, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(self.a(x.flip(0)).tanh().flip(0))


class Flipped(nn.Module):
    """Mixup inside the model: each example with the one that stands opposite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(0.7 * x + 0.3 * x.flip(0)).tanh()


class MixedUp(nn.Module):
    """Mixup with a partner that is drawn by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(0.6 * x + 0.4 * x[torch.randperm(len(x))]).tanh()


class Rolled(nn.Module):
    """Each example with the one before it, as in-batch negatives are made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden - 0.5 * hidden.roll(1, 0)


class RolledInputs(nn.Module):
    """Only inputs are rolled, which leaves no trace in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x) * self.b(x.roll(1, 0))


class SwappedIds(nn.Module):
    """Ids, which have no gradient, of an example are looked up for its neighbour."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.table(ids.roll(1, 0)).tanh().mean(1))


class Cumulated(nn.Module):
    """Sums over all examples before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).cumsum(0).tanh()


class Shuffled(nn.Module):
    """A fixed permutation of the batch for one layer, and its inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        order = torch.arange(len(x)).mul(7).remainder(len(x)) if len(x) % 7 else torch.arange(len(x)).flip(0)
        return self.b(self.a(x.index_select(0, order)).cos().index_select(0, order.argsort()))


class SortedBatch(nn.Module):
    """Examples in the order of their first feature, and never put back."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x[x[:, 0].argsort()])


class Chunked(nn.Module):
    """The batch in two halves, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.cat([self.layer(part).sin() for part in x.chunk(2)])


class HalvesDiffer(nn.Module):
    """The first half of the batch goes through another layer than the second."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        half = (len(x) + 1) // 2
        return torch.cat([self.a(x[:half]), self.b(x[half:])]).tanh()


class RowByRow(nn.Module):
    """A loop over examples without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return torch.stack([self.b(self.a(row).relu()) for row in x])


class Crops(nn.Module):
    """Three views of each example, one after the other in the batch: (B·3, F)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        views = x.repeat_interleave(3, dim=0) * torch.tensor([0.5, 1.0, 2.0]).repeat(len(x)).unsqueeze(1)
        return self.layer(views).relu().view(len(x), 3, 3).mean(1)


class Views(nn.Module):
    """Two views of each example, all first views in front: (2·B, F)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        first, second = self.layer(torch.cat([x, x.sin()])).tanh().chunk(2)
        return first * second


class Tiled(nn.Module):
    """Two copies of the batch, of which the second begins with another example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x.repeat(2, 1))
        return hidden[: len(x)] * hidden[1 : len(x) + 1]


class Centred(nn.Module):
    """The batch's mean is taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0)).tanh()


class ScaledByLargest(nn.Module):
    """Divided by the largest value in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return (3 * self.layer(x / x.abs().max())).sin()


class Whitened(nn.Module):
    """Multiplied by the inverse of the batch's own covariance."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(torch.linalg.solve(x.t() @ x + torch.eye(4), x.t()).t())


class BatchSoftmax(nn.Module):
    """A softmax over the examples in place of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden * hidden.softmax(0)


class FirstAsReference(nn.Module):
    """All examples beside the first of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden - hidden[0].detach()


class Gram(nn.Module):
    """What an example is, is how like the others it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.layer(x)
        return (hidden @ hidden.t()).tanh() @ hidden


class GhostStatistics(nn.Module):
    """A norm by statistics of the batch, written by hand, whose buffers follow the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("running", torch.zeros(4))

    def forward(self, x):
        self.running = 0.9 * self.running + 0.1 * x.detach().mean(0)
        return self.layer(x - self.running)


class KeptForLater(nn.Module):
    """Only a buffer follows the data; the outputs do not use it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen.copy_(torch.maximum(self.seen, x.detach().amax(0)))
        return self.layer(x).tanh()


class Counted(nn.Module):
    """A buffer counts the examples seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += len(x)
        return self.layer(x).sin()


class SizedByBatch(nn.Module):
    """Outputs are divided by the square root of the batch's size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) / len(x) ** 0.5


class NormOfBatch(nn.Module):
    """Divided by the Frobenius norm of the whole batch, which is not an axis anybody named."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) / (1 + x.norm())


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def functional_batch_norm() -> nn.Module:
    """Written with the function, which no list of layers shows."""
    return _FunctionalBatchNorm()


class _FunctionalBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        # With itself thrice negated behind it, so that a batch of one has a variance too.
        both = torch.cat([x, -3 * x])
        return self.layer(functional.batch_norm(both, None, None, training=True)[: len(x)])
