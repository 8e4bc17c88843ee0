"""Models that attend."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.models_sequence import lengths_of


def causal(size: int) -> Tensor:
    """True where a position may not look."""
    return torch.ones(size, size, dtype=torch.bool).triu(1)


def padding(x: Tensor) -> Tensor:
    """True behind the end of each example."""
    return torch.arange(x.shape[1]) >= lengths_of(x).unsqueeze(1)


class SelfAttention(nn.Module):
    """Attention to all positions that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return x + self.attend(x, x, x, key_padding_mask=padding(x), need_weights=False)[0]


class PositionFirst(nn.Module):
    """Attention on (T, B, F), torch's own layout, to what came before; the weights are part of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2)

    def forward(self, x):
        across = x.transpose(0, 1)
        values, weights = self.attend(across, across, across, attn_mask=causal(len(across)))
        return values.transpose(0, 1).flatten(1) + weights.square().sum((1, 2)).unsqueeze(1)


class Encoder(nn.Module):
    """torch's own encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)[:, 0]


class EncoderPositionFirst(nn.Module):
    """torch's own stack of encoders on (T, B, F), normalised before."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, norm_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.layers(x.transpose(0, 1), mask=causal(x.shape[1])).mean(0)


class Decoder(nn.Module):
    """torch's own decoder layer on words, with what a layer made of them as memory."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.memory = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.layer = nn.TransformerDecoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 7)

    def forward(self, ids):
        words = self.table(ids)
        return self.head(self.layer(words, self.memory(words).relu(), tgt_mask=causal(ids.shape[1])))


class Einsum(nn.Module):
    """Attention as einsums over named axes."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Parameter(torch.randn(2, 4, 2) * 0.5) for _ in range(3))

    def forward(self, x):
        q, k, v = (torch.einsum("btf,hfd->bhtd", x, weight) for weight in (self.queries, self.keys, self.values))
        return torch.einsum("bhqk,bhkd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(3), v).flatten(2)


class EinsumAcross(nn.Module):
    """The same layer as an einsum that puts the examples last."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(2, 3))

    def forward(self, x):
        hidden = torch.einsum("of,btf->otb", self.weight, x).tanh()
        return torch.einsum("co,otb->bct", self.head, hidden)


class VisionTransformer(nn.Module):
    """Patches, a class token, learnt positions, and one block."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 4, 3, stride=3)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 5, 4))
        self.norm, self.qkv, self.out = nn.LayerNorm(4), nn.Linear(4, 12), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        queries, keys, values = self.qkv(self.norm(tokens)).chunk(3, dim=2)
        tokens = tokens + self.out(functional.scaled_dot_product_attention(queries, keys, values))
        return self.head(tokens[:, 0])


class RelativePositions(nn.Module):
    """A bias for each distance, looked up in a table that is the same for all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(4, 12), nn.Embedding(11, 1)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        bias = self.bias(places.unsqueeze(0) - places.unsqueeze(1) + 5).squeeze(2)
        queries, keys, values = self.qkv(x).chunk(3, dim=2)
        return (queries @ keys.transpose(1, 2) + bias).softmax(2) @ values


class LearntPositions(nn.Module):
    """A table of positions, looked up once for all examples and added to the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(7, 4), nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head((self.words(ids) + self.places(torch.arange(ids.shape[1]))).tanh().mean(1))


class Latents(nn.Module):
    """Learnt queries, expanded to every example, that attend to it."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 4))
        self.attend = nn.MultiheadAttention(4, 1, batch_first=True, bias=False)

    def forward(self, x):
        return self.attend(self.latents.expand(len(x), -1, -1), x, x)[0]


class Rotary(nn.Module):
    """Queries and keys turned by their positions, and a mask that is filled in."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, x):
        queries, keys = _turned(self.queries(x)), _turned(self.keys(x))
        scores = (queries @ keys.transpose(1, 2)).masked_fill(causal(x.shape[1]), -torch.inf)
        return scores.softmax(2) @ self.values(x)


def _turned(x: Tensor) -> Tensor:
    angles = torch.arange(x.shape[1]).view(-1, 1) * torch.tensor([1.0, 0.1])
    turned = torch.view_as_complex(x.unflatten(2, (2, 2))) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(2)


class LinearAttention(nn.Module):
    """Keys times values first: the features are mixed, never the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.out = nn.Linear(4, 8), nn.Linear(4, 2)

    def forward(self, x):
        queries, values = self.both(x).chunk(2, dim=2)
        kernel = functional.elu(queries) + 1
        return self.out(torch.baddbmm(values, kernel, kernel.transpose(1, 2) @ values, alpha=0.1))


class AcrossExamples(nn.Module):
    """batch_first forgotten: attention from example to example."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]
