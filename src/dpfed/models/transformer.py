"""A small transformer encoder that classifies sequences of tokens.

Its attention is made of Linear layers that are called as modules, and every example brings its own position ids:
with ``nn.MultiheadAttention``, or with one row of positions for the whole batch, no hook sees which example a
gradient belongs to.

>>> import torch
>>> Transformer(vocabulary=50, length=8)(torch.zeros(3, 8, dtype=torch.long)).shape
torch.Size([3, 2])
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.models.seeds import seeded


class Transformer(nn.Module):
    """Embeddings of tokens and positions, ``layers`` pre-norm blocks, and a linear head on the mean over tokens."""

    def __init__(
        self,
        vocabulary: int = 1000,
        length: int = 128,
        classes: int = 2,
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if checks.count(width=width) % checks.count(heads=heads):
            raise InvalidArgument("heads", f"heads must divide the width of {width}, got {heads}")
        self.length = checks.count(length=length)
        with seeded(seed):
            self.tokens = nn.Embedding(checks.count(vocabulary=vocabulary), width)
            self.positions = nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(checks.count(layers=layers))))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, checks.count(classes=classes))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of shape (B, classes) for token ids of shape (B, at most ``length``)."""
        if tokens.shape[-1] > self.length:
            message = f"tokens must be at most {self.length} long, got {tokens.shape[-1]}: cut them or raise length"
            raise InvalidArgument("tokens", message)
        places = torch.arange(tokens.shape[-1], device=tokens.device).expand_as(tokens).contiguous()
        states = self.blocks(self.tokens(tokens) + self.positions(places))
        scores: Tensor = self.head(self.norm(states).mean(1))
        return scores


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer perceptron of twice the width, each behind a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), SelfAttention(width, heads)
        self.inner_norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, states: Tensor) -> Tensor:
        """Return states of the same shape."""
        attended = states + self.attention(self.attention_norm(states))
        after: Tensor = attended + self.inner(self.inner_norm(attended))
        return after


class SelfAttention(nn.Module):
    """Multi-head self-attention from two Linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """Return the attended states of every token."""
        split = (
            self.project(states).unflatten(-1, (3, self.heads, states.shape[-1] // self.heads)).permute(2, 0, 3, 1, 4)
        )
        query, key, value = split.unbind(0)
        # Not the fused kernel: vmap, the oracle and last resort of per-example gradients, has no rule for it.
        weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), -1)
        joined: Tensor = self.join((weights @ value).transpose(1, 2).flatten(2))
        return joined
