from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from clipped import squares
from dpfed.errors import InvalidArgument
from dpfed.training import compat
from dpfed.training.attention import Attention, attended
from dpfed.training.gradients import ClippedGradients
from one_by_one import require_equal


def layer(**options) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    found = nn.MultiheadAttention(4, 2, batch_first=True, **options)
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
    attend = layer(bias=bias)
    require_equal(attend, attended(attend), torch.randn(6, 5, 4), CALLS[call])


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
def test_masks_mean_what_they_mean_in_torch(masks, need_weights):
    attend = layer().double()
    twin = attended(attend)
    x = torch.randn(6, 5, 4).double()
    masks = {name: m.double() if isinstance(m, Tensor) and m.is_floating_point() else m for name, m in masks.items()}
    expected, weights = attend(x, x, x, need_weights=need_weights, **masks)
    found, ours = twin(x, x, x, need_weights=need_weights, **masks)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (weights is None and ours is None) or torch.allclose(ours, weights, atol=1e-12)


def test_weights_of_each_head():
    attend = layer()
    x = torch.randn(3, 5, 4)
    expected, found = (m(x, x, x, average_attn_weights=False)[1] for m in (attend, attended(attend)))
    assert torch.allclose(found, expected, atol=1e-6)


def test_names_and_state_are_torchs():
    attend = layer()
    twin = attended(attend)
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in attend.named_parameters()]
    assert list(twin.state_dict()) == list(attend.state_dict())
    other = layer()
    nn.init.normal_(other.in_proj_weight)
    twin.load_state_dict(other.state_dict(), assign=True)
    x = torch.randn(2, 3, 4)
    assert torch.allclose(twin(x, x, x)[0], other(x, x, x)[0], atol=1e-6)


ENCODERS = {
    "layer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "norm first": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
    "stack": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, activation="gelu"), 2
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", ENCODERS)
def test_encoders_take_no_slow_way_in_either_mode(case, training, monkeypatch):
    """In eval mode torch has a kernel for the whole layer, in which no parameter would be seen."""
    torch.manual_seed(0)
    plain = ENCODERS[case]().train(training)
    fixed = compat.fix(plain)
    assert any(isinstance(module, Attention) for module in fixed.modules())
    monkeypatch.setattr(ClippedGradients, "_one_by_one", None)
    require_equal(plain, fixed, torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


def test_a_decoder_attends_to_two_sequences():
    torch.manual_seed(0)
    plain = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    memory = torch.randn(6, 3, 4)

    def losses(model: nn.Module, x: Tensor) -> Tensor:
        return squares(model(x, memory.to(x.dtype), tgt_mask=causal(5)), x[:, 0, 0])

    require_equal(plain, compat.fix(plain), torch.randn(6, 5, 4), losses)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inference_without_gradients_is_that_of_torch():
    """torch's kernel for whole layers then runs with the twin's parameters, padding included."""
    torch.manual_seed(0)
    plain = ENCODERS["stack"]().eval()
    fixed = compat.fix(plain)
    x, padding = torch.randn(3, 5, 4), torch.arange(5) >= torch.tensor([5, 4, 3]).unsqueeze(1)
    with torch.no_grad():
        for mask in (None, padding):
            expected, found = (model(x, src_key_padding_mask=mask) for model in (plain, fixed))
            assert torch.allclose(found, expected, atol=1e-5)


def test_dropout_is_that_of_the_mode():
    twin = attended(layer(dropout=0.5))
    x = torch.randn(2, 5, 4)
    for need_weights in (True, False):
        first, second = (twin(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        twin.eval()
        first, second = (twin(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)
        twin.train()


def test_an_example_that_is_not_finite_counts_as_zero():
    twin = attended(layer())
    x = torch.randn(6, 5, 4)
    x[2, 3, 1] = math.nan
    good = [0, 1, 3, 4, 5]
    with ClippedGradients(twin, clip_norm=0.1) as engine:
        with_it, without = engine.sum(itself(twin, x)), engine.sum(itself(twin, x[good]))
    assert all(torch.allclose(with_it[name], without[name], atol=1e-6) for name in without)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"^0: this MultiheadAttention takes the position first: make it with batch_first=True$"),
        ({"batch_first": True, "kdim": 3}, "kdim, vdim, add_bias_kv or add_zero_attn has no twin"),
        ({"batch_first": True, "add_bias_kv": True}, "has no twin"),
        ({"batch_first": True, "add_zero_attn": True}, "has no twin"),
    ],
)
def test_what_has_no_twin_is_refused_with_its_path(options, message):
    with pytest.raises(InvalidArgument, match=message):
        compat.fix(nn.Sequential(nn.MultiheadAttention(4, 2, **options)))


def test_one_example_without_batch_axis_is_refused():
    x = torch.randn(5, 4)
    with pytest.raises(InvalidArgument, match=r"takes \(examples, positions, features\), got \(5, 4\)"):
        attended(layer())(x, x, x)
