"""Random small models of everything that has a rule: the sum is that of one backward pass per example."""

from __future__ import annotations

import pytest
import torch
from hypothesis import find, given
from hypothesis import strategies as st
from torch import Tensor, nn

from one_by_one import require_equal

WIDTH = 4
WORDS = 6
# In float64 only: a random stack may well be so ill-conditioned that 1e-5 in float32 is nobody's to keep.
BOUNDS = {torch.float64: 1e-10}


class First(nn.Module):
    """The first of what a recurrent layer gives."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Attends(nn.Module):
    """Attention of a sequence to itself, or to what comes before it."""

    def __init__(self, bias: bool, is_causal: bool, has_other_keys: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, bias=bias, batch_first=True)
        self._is_causal, self._has_other_keys = is_causal, has_other_keys

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self._is_causal else None
        keys = x.sin() if self._has_other_keys else x
        return x + self.attend(x, keys, keys, attn_mask=mask, need_weights=False)[0]


class Channels(nn.Module):
    """A layer that takes (B, channels, positions)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


class Twice(nn.Module):
    """A layer called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(self.layer(x).tanh())


class LowRank(nn.Module):
    """A frozen layer with an adapter of bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(1, WIDTH)), nn.Parameter(torch.randn(WIDTH, 1))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Functional(nn.Module):
    """A layer that is not called: the slow way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x @ self.layer.weight + self.layer.bias


def recurrent(draw) -> nn.Module:
    kind = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))
    is_bidirectional = draw(st.booleans())
    width = WIDTH // 2 if is_bidirectional else WIDTH
    options = {"num_layers": draw(st.integers(1, 2)), "bias": draw(st.booleans()), "bidirectional": is_bidirectional}
    return First(kind(WIDTH, width, batch_first=True, **options))


def encoder(draw) -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, 2, 6, dropout=0.0, activation="gelu", batch_first=True, norm_first=draw(st.booleans())
    )


BLOCKS = {
    "recurrent": recurrent,
    "attention": lambda draw: Attends(draw(st.booleans()), draw(st.booleans()), draw(st.booleans())),
    "encoder": encoder,
    "linear": lambda draw: nn.Linear(WIDTH, WIDTH, bias=draw(st.booleans())),
    "convolution": lambda draw: Channels(nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=draw(st.sampled_from([1, 2])))),
    "transposed convolution": lambda _: Channels(nn.ConvTranspose1d(WIDTH, WIDTH, 3, padding=1)),
    "groups": lambda _: Channels(nn.GroupNorm(2, WIDTH)),
    "layer norm": lambda draw: nn.LayerNorm(WIDTH, bias=draw(st.booleans())),
    "rms norm": lambda _: nn.RMSNorm(WIDTH, eps=1e-2),
    "leaf": lambda _: nn.PReLU(),
    "adapter": lambda _: LowRank(),
    "functional": lambda _: Functional(),
    "twice a linear": lambda _: Twice(nn.Linear(WIDTH, WIDTH)),
    "twice a recurrent": lambda draw: Twice(recurrent(draw)),
    "twice a norm": lambda _: Twice(nn.LayerNorm(WIDTH)),
}


class Words(nn.Module):
    """A table, blocks, and an output layer that may be the table, or one that has its weight and a bias."""

    def __init__(self, blocks: list[nn.Module], is_tied: bool, bias: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if is_tied:
            self.head.weight = self.table.weight

    def forward(self, x):
        values = self.table(x) if not x.is_floating_point() else x
        for block in self.blocks:
            values = block(values).sin() + 0.3 * values
        return self.head(values)


@st.composite
def models(draw) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(draw(st.integers(0, 2**16)))
    blocks = [BLOCKS[name](draw) for name in draw(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4))]
    model = Words(blocks, draw(st.booleans()), draw(st.booleans()))
    for parameter in model.blocks.parameters():
        if parameter.requires_grad and draw(st.integers(0, 9)) == 0:
            parameter.requires_grad_(False)
    return model, torch.randint(0, WORDS, (draw(st.integers(2, 5)), draw(st.integers(2, 4))))


def entropies(model: nn.Module, x: Tensor) -> Tensor:
    """The loss of a small language model, one value per example."""
    outputs = model(x)[:, :-1].transpose(1, 2)
    return nn.functional.cross_entropy(outputs, x[:, 1:], reduction="none").sum(1)


@given(models())
def test_random_models_agree_with_one_pass_per_example(case):
    model, x = case
    require_equal(model, model, x, entropies, BOUNDS)


@pytest.mark.parametrize("name", BLOCKS)
def test_each_block_alone(name):
    """The random test may miss one; this one may not."""
    torch.manual_seed(0)
    model = Words([BLOCKS[name](lambda strategy: find(strategy, lambda _: True))], is_tied=True, bias=True)
    require_equal(model, model, torch.randint(0, WORDS, (4, 3)), entropies)
