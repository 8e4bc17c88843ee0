"""Models whose weights are made of others, shared, frozen, looked up or normalised."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


def weight_normed() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))


def spectral_normed() -> nn.Module:
    """Its norm is not brought up to date: eval mode."""
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.ReLU6(), nn.Linear(5, 2)).eval()


def orthogonal() -> nn.Module:
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))


def partly_frozen() -> nn.Module:
    """Body frozen, norm and head trained."""
    model = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.LayerNorm(5), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    return model


def biases_only() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Softplus(), nn.Conv2d(3, 2, 2))
    for layer in (model[0], model[2]):
        layer.weight.requires_grad_(False)
    return model


class LowRank(nn.Module):
    """LoRA: a frozen layer and two thin ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 4) * 0.5), nn.Parameter(torch.randn(4, 2) * 0.5)

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Merged(nn.Module):
    """LoRA that is added to the frozen weight before the product."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 4) * 0.5), nn.Parameter(torch.randn(4, 2) * 0.5)

    def forward(self, x):
        return functional.linear(x, self.base.weight + self.b @ self.a, self.base.bias).relu()


class TiedTransposed(nn.Module):
    """An autoencoder whose decoder is its encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.bias = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return functional.linear(self.encode(x).tanh(), self.encode.weight.t(), self.bias) - x


class TiedByExpression(nn.Module):
    """One matrix, used as itself and, exponentiated, as another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) * 0.3)

    def forward(self, x):
        return (x @ self.weight).tanh() @ torch.matrix_exp(self.weight - self.weight.t())


class TiedBySoftmax(nn.Module):
    """Words as a soft mixture of a small table that is the head too."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.table = nn.Embedding(7, 3), nn.Parameter(torch.randn(3, 4))

    def forward(self, ids):
        words = self.codes(ids).softmax(2) @ self.table
        return words.mean(1) @ self.table.t()


class BagSum(nn.Module):
    """A bag of words, padding left out."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="sum", padding_idx=0), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.bag(ids))


class BagMean(nn.Module):
    """A bag of the words that are there, by offsets: all words of all examples in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="mean"), nn.Linear(4, 3)

    def forward(self, ids):
        lengths = ids.ne(0).sum(1)
        return self.head(self.bag(ids[ids.ne(0)], lengths.cumsum(0) - lengths))


class BagMax(nn.Module):
    """The largest of each dimension over the words."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="max"), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.bag(ids).tanh())


class BagWeighted(nn.Module):
    """A bag whose words are weighted, by weights looked up as well."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.weights = nn.EmbeddingBag(7, 4, mode="sum"), nn.Embedding(7, 1)

    def forward(self, ids):
        return self.bag(ids, per_sample_weights=self.weights(ids).squeeze(2).sigmoid())


class BagInRow(nn.Module):
    """Bags of one length, all words in one row with offsets that say where each begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode="mean", padding_idx=0), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.bag(ids.flatten(), torch.arange(0, ids.numel(), ids.shape[1])))


class BagByPosition(nn.Module):
    """Two bags of the same table, by weights that words have for their place in a sentence, learned and not."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.slope = nn.EmbeddingBag(7, 4, mode="sum"), nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, ids):
        fixed = torch.linspace(1, 2, ids.shape[1]).expand(ids.shape)
        learned = self.slope[: ids.shape[1]].expand(ids.shape)
        return self.bag(ids, per_sample_weights=fixed).tanh() * self.bag(ids, per_sample_weights=learned)


class Ensembled(nn.Module):
    """Three small models as one batched product, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4, 2)), nn.Parameter(torch.randn(3, 1, 2))

    def forward(self, x):
        return torch.baddbmm(self.bias, x.expand(3, -1, -1), self.weight).tanh().mean(0)


class Standardised(nn.Module):
    """A convolution whose kernels are standardised first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)

    def forward(self, x):
        kernel = self.conv.weight
        kernel = (kernel - kernel.mean((1, 2, 3), keepdim=True)) / (kernel.std((1, 2, 3), keepdim=True) + 1e-3)
        return functional.conv2d(x, kernel, self.conv.bias).relu()


class Quantised(nn.Module):
    """Weights rounded in the forward pass; gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        weight = self.layer.weight
        rounded = weight + ((weight * 4).round() / 4 - weight).detach()
        return functional.linear(x, rounded, self.layer.bias)


class Pruned(nn.Module):
    """A mask, kept as a buffer, on the weights of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mask", (torch.rand(3, 4) > 0.4).float())

    def forward(self, x):
        return functional.linear(x, self.layer.weight * self.mask, self.layer.bias).atan()


class Sparse(nn.Module):
    """A table that gives sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.table(ids).sum(1).tanh())


class OnConstant(nn.Module):
    """A layer that is called on a constant, once for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.prompt = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.prompt(x * self.layer(torch.ones(1, 3)).tanh())


class OnlyAPrior(nn.Module):
    """Parameters expanded to every example: the inputs say no more than how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.randn(2))

    def forward(self, x):
        return self.prior.expand(len(x), -1)


class Unused(nn.Module):
    """A layer that nobody calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x).relu()
