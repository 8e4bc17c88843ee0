from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from clipped import squares
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.layers.attention import AttentionTwin
from one_by_one import require_fast


def layer(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    found = nn.MultiheadAttention(4, 2, **{"batch_first": True, **options})
    for parameter in found.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    return found


def itself(attend: nn.Module, x: Tensor) -> Tensor:
    return attend(x, x, x, need_weights=False)[0].sin().flatten(1).sum(1)


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


CALLS = {
    "itself": itself,
    "itself with weights": lambda attend, x: attend(x, x, x)[0].sin().flatten(1).sum(1),
    "keys that are values": lambda attend, x: attend(x[:, :2], x, x)[0].sin().flatten(1).sum(1),
    "three inputs": lambda attend, x: attend(x[:, :2], x, x.cos())[0].sin().flatten(1).sum(1),
    "loss of the weights": lambda attend, x: sum(part.sin().flatten(1).sum(1) for part in attend(x, x, x)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bias", [True, False])
def test_clipped_sums_are_those_of_torchs_module(call, bias):
    require_fast(layer(bias=bias), torch.randn(6, 5, 4), CALLS[call])


class Turned(nn.Module):
    """Attention in any layout to three inputs of their own sizes, on examples that come first."""

    def __init__(self, attend: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, x):
        inputs = x, x[..., : self.attend.kdim].cos(), x[..., : self.attend.vdim].sin()
        if self.attend.batch_first:
            return self.attend(*inputs)
        found, weights = self.attend(*(part.transpose(0, 1) for part in inputs), need_weights=False)
        return found.transpose(0, 1), weights


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kdim": 3},
        {"kdim": 3, "vdim": 2, "bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 3, "vdim": 2, "add_bias_kv": True, "add_zero_attn": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_first", [True, False])
def test_every_option_of_torchs_module_is_served(options, is_first):
    model = Turned(layer(**options, batch_first=is_first))
    require_fast(model, torch.randn(6, 5, 4), lambda model, x: model(x)[0].sin().flatten(1).sum(1))


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": causal(5)},
        {"attn_mask": causal(5), "is_causal": True},
        {"attn_mask": torch.randn(5, 5)},
        {"attn_mask": torch.randn(6 * 2, 5, 5)},
        {"key_padding_mask": torch.arange(5) >= torch.tensor([5, 4, 3, 2, 1, 5]).unsqueeze(1)},
        {"attn_mask": causal(5), "key_padding_mask": torch.arange(5) >= torch.tensor([5, 4, 3, 2, 1, 5]).unsqueeze(1)},
    ],
    ids=["causal", "causal by hint", "added", "of each head", "padding", "causal and padding"],
)
def test_masks_mean_what_they_mean_in_torch(masks, need_weights, options):
    attend = layer(**options).double()
    twin = AttentionTwin(attend)
    x = torch.randn(6, 5, 4).double()
    masks = {name: m.double() if isinstance(m, Tensor) and m.is_floating_point() else m for name, m in masks.items()}
    expected, weights = attend(x, x, x, need_weights=need_weights, **masks)
    found, ours = twin(attend, x, x, x, need_weights=need_weights, **masks)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (weights is None and ours is None) or torch.allclose(ours, weights, atol=1e-12)


def test_weights_of_each_head():
    attend = layer()
    x = torch.randn(3, 5, 4)
    expected = attend(x, x, x, average_attn_weights=False)[1]
    found = AttentionTwin(attend)(attend, x, x, x, average_attn_weights=False)[1]
    assert torch.allclose(found, expected, atol=1e-6)


ENCODERS = {
    "layer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "norm first": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
    "stack": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu"), 2
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", ENCODERS)
def test_encoders_take_no_slow_way_in_either_mode(case, training):
    """In eval mode torch has a kernel for the whole layer, in which no parameter would be seen."""
    torch.manual_seed(0)
    model = ENCODERS[case]().train(training)
    require_fast(model, torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


@pytest.mark.parametrize("is_norm_first", [True, False])
def test_a_decoder_attends_to_two_sequences(is_norm_first):
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inner = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=is_norm_first)
            self.decoder = nn.TransformerDecoder(inner, 2)

        def forward(self, x):
            return self.decoder(x, x[:, :3].cos(), tgt_mask=causal(5))

    torch.manual_seed(0)
    require_fast(Both(), torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


def test_a_whole_transformer():
    class Translated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.both(x, x[:, :3].cos())

    torch.manual_seed(0)
    require_fast(Translated(), torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_an_encoder_with_positions_first():
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2)

        def forward(self, x):
            return self.layers(x.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    require_fast(Turned(), torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


def test_dropout_is_that_of_the_mode():
    attend = layer(dropout=0.5)
    twin, x = AttentionTwin(attend), torch.randn(2, 5, 4)
    for need_weights in (True, False):
        first, second = (twin(attend, x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        attend.eval()
        first, second = (twin(attend, x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)
        attend.train()


def test_an_example_that_is_not_finite_counts_as_zero():
    attend = layer()
    x = torch.randn(6, 5, 4)
    x[2, 3, 1] = math.nan
    good = [0, 1, 3, 4, 5]
    with ClippedGradients(attend, clip_norm=0.1) as engine:
        with_it, without = engine.sum(itself(attend, x)), engine.sum(itself(attend, x[good]))
    assert all(torch.allclose(with_it[name], without[name], atol=1e-6) for name in without)


@pytest.mark.parametrize(
    "call",
    [
        {},
        {"attn_mask": torch.zeros(1, 5)},
        {"key_padding_mask": torch.zeros(2, 4)},
        {"is_causal": True},
    ],
    ids=["no batch", "mask of another form", "padding of another form", "hint without a mask"],
)
def test_what_torch_refuses_or_takes_for_one_example_is_left_to_it(call):
    attend = layer()
    x = torch.randn(*((3,) if call else ()), 5, 4)
    assert AttentionTwin(attend)(attend, x, x, x, **call) is NotImplemented
