"""What clipped sums are compared with, for tests of training: a loss, a distance, and vmap(grad) + clip."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpfed.training.clip import TOLERANCE
from dpfed.training.gradients import ClippedGradients
from dpfed.training.rules import whole

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


def expected_sum(model: nn.Module, x: Tensor, y: Tensor, clip_norm: float) -> dict[str, Tensor]:
    """vmap(grad) + clip at the length that the engine cuts to."""
    return whole.clipped_sum(model, squares, x, y, clip_norm=clip_norm * (1 - TOLERANCE))


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
        rows = whole.per_example(model, squares, x, y)
        norms = torch.cat([r.double().reshape(len(r), -1) for r in rows.values()], dim=1).norm(dim=1)
        clip = float(norms.median())
        assert bool((norms > clip).any())
        assert distance(found_sum(model, x, y, clip, methods), expected_sum(model, x, y, clip)) < bound
