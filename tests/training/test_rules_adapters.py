"""Partial training, as in LoRA: a frozen base with small trainable parts, in every way people write it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from clipped import require_parity, squares
from dpfed.training.engine.gradients import ClippedGradients
from one_by_one import require_equal

WIDE = 64


class LowRank(nn.Module):
    """y = base(x) + x Aᵀ Bᵀ, with A and B as bare parameters beside a frozen layer."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.3)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) * 0.3)

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Layers(nn.Module):
    """The same with A and B as Linear layers."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Merged(nn.Linear):
    """The same as one layer: a frozen weight to which B·A is added, in which the bias trains as well."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__(inputs, outputs)
        self.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inputs) * 0.3)
        self.b = nn.Parameter(torch.randn(outputs, rank) * 0.3)

    def forward(self, x):
        return nn.functional.linear(x, self.weight + self.b @ self.a, self.bias)


KINDS = {
    "parameters": lambda inputs, outputs: LowRank(nn.Linear(inputs, outputs)),
    "layers": lambda inputs, outputs: Layers(nn.Linear(inputs, outputs)),
    "merged": Merged,
}


def adapted(kind: str, width: int) -> nn.Module:
    torch.manual_seed(0)
    frozen = nn.Linear(width, width).requires_grad_(False)
    return nn.Sequential(frozen, nn.Tanh(), KINDS[kind](width, width), nn.Tanh(), KINDS[kind](width, 2))


class Made(TorchDispatchMode):
    """The shapes of all tensors that are made, other than views of the given ones."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, list | tuple) else [out]:
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in self._known:
                self.shapes.add(tuple(value.shape))
        return out


@pytest.mark.parametrize("shape", [(6, 5), (6, 3, 5)], ids=["one position", "positions"])
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_every_form(kind, shape):
    require_parity(adapted(kind, 5), torch.randn(shape))


@pytest.mark.parametrize("kind", ["parameters", "layers"])
def test_nothing_is_computed_for_frozen_weights(kind):
    """Neither a gradient of the frozen weight nor one of each example: no tensor of its size is made at all."""
    model = adapted(kind, WIDE)
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        gradients.sum(squares(model(torch.randn(8, 3, WIDE)), torch.zeros(8)))  # a new program is run once more
        losses = squares(model(torch.randn(8, 3, WIDE)), torch.zeros(8))
        with Made(model.parameters()) as made:
            found = gradients.sum(losses)
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert list(found) == trainable
    assert not any("base" in name for name in found)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not {shape for shape in made.shapes if shape[-2:] == (WIDE, WIDE)}
    assert made.shapes


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_layers_are_not_even_recorded(kind):
    model = adapted(kind, 5)
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        model(torch.randn(8, 5))
        paths = [call.path for call in gradients._programs.capture.take()]
    assert "0" not in paths
    assert not any(path.endswith("base") for path in paths)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (6, 4)),
        (nn.Linear(4, 4), (6, 3, 4)),
        (nn.Conv1d(4, 4, 3, padding=1), (6, 4, 5)),
        (nn.ConvTranspose1d(4, 4, 3, padding=1), (6, 4, 5)),
        (nn.LayerNorm(4), (6, 3, 4)),
        (nn.GroupNorm(2, 4), (6, 4, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else f"{len(value)} axes",
)
def test_frozen_and_trainable_in_one_layer_that_is_called_twice(layer, shape, frozen):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(True)

        def forward(self, x):
            return self.layer(self.layer(x).tanh())

    torch.manual_seed(0)
    model = Twice()
    layer.get_parameter(frozen).requires_grad_(False)
    require_parity(model, torch.randn(shape))


def test_a_trainable_bias_in_frozen_attention():
    """Bias-only training of a transformer layer."""
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    for name, parameter in plain.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    require_equal(plain, plain, torch.randn(6, 5, 4), lambda model, x: squares(model(x), x[:, 0, 0]))


def test_what_is_unfrozen_later_is_counted_from_then_on():
    model = adapted("layers", 5)
    x, y = torch.randn(6, 5), torch.zeros(6)
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        before = gradients.sum(squares(model(x), y))
        model[0].requires_grad_(True)
        after = gradients.sum(squares(model(x), y))
    assert set(after) - set(before) == {"0.weight", "0.bias"}
