"""What clipped sums are compared with, for tests of training: a loss, a distance, and vmap(grad) + clip."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.engine.gradients import ClippedGradients

BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


def squares(output: Tensor, targets: Tensor) -> Tensor:
    """A loss of any output, one value per example."""
    return (output.flatten(1) - targets.unsqueeze(1)).square().mean(1)


def flat(sums: Mapping[str, Tensor]) -> Tensor:
    """All parameters in one row, in float64."""
    return torch.cat([value.double().flatten() for value in sums.values()])


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """How far the sums are apart, relative to the length of the expected one if it has any."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert (found[name].shape, found[name].dtype) == (value.shape, value.dtype)
    return float((flat(found) - flat(expected)).norm()) / (float(flat(expected).norm()) or 1.0)


def per_example(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """∂loss(model(xᵢ), yᵢ) for every example i by vmap(grad); ``loss`` gives one value per example."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = functional_call(model, parameters, (x.unsqueeze(0),))
        return loss(out, y.unsqueeze(0)).sum()

    found: dict[str, Tensor] = vmap(grad(one), in_dims=(None, 0, 0))(parameters, inputs, targets)
    return found


def expected_sum(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> dict[str, Tensor]:
    """vmap(grad) + clip at the length that the engine cuts to, with norms in float64."""
    found = per_example(model, squares, x, y)
    squared = sum(rows.double().reshape(len(rows), -1).square().sum(1) for rows in found.values())
    coefficients = (clip_norm * (1 - TOLERANCE) / torch.as_tensor(squared).sqrt()).clamp(max=1.0)
    return {name: torch.tensordot(coefficients.to(rows.dtype), rows, dims=1) for name, rows in found.items()}


def found_sum(
    model: nn.Module, x: Tensor, y: Tensor, clip_norm: float, methods: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """The engine's own sum."""
    with ClippedGradients(model, clip_norm=clip_norm, methods=methods) as gradients:
        return gradients.sum(squares(model(x), y))


def require_parity(
    model: nn.Module,
    inputs: Tensor,
    *,
    methods: Mapping[str, str] | None = None,
    bounds: Mapping[torch.dtype, float] = BOUNDS,
) -> None:
    """Fails unless clipped sums equal vmap(grad) + clip, in both precisions, where some examples are clipped."""
    for dtype, bound in bounds.items():
        model = model.to(dtype)
        x = inputs.to(dtype) if inputs.is_floating_point() else inputs
        y = torch.linspace(-1, 2, len(x), dtype=dtype)
        rows = per_example(model, squares, x, y)
        norms = torch.cat([r.double().reshape(len(r), -1) for r in rows.values()], dim=1).norm(dim=1)
        clip = float(norms.median())
        assert bool((norms > clip).any())
        assert distance(found_sum(model, x, y, clip, methods), expected_sum(model, x, y, clip)) < bound


def small() -> nn.Sequential:
    """A model of two layers, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def data(size: int = 8, features: int = 4) -> tuple[Tensor, Tensor]:
    """Inputs and targets, always the same."""
    torch.manual_seed(1)
    return torch.randn(size, features), torch.randn(size)


class Applied(nn.Module):
    """A model whose forward pass is any function of its layers."""

    def __init__(self, forward, **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self._forward = forward

    def forward(self, x):
        return self._forward(x, **self.layers)
