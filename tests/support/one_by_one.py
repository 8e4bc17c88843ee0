"""The other oracle of tests of training: one backward pass per example on the plain model, then clip and sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from clipped import BOUNDS, distance
from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.engine.gradients import ClippedGradients

Losses = Callable[[nn.Module, Tensor], Tensor]


def gradients(losses: Tensor, model: nn.Module) -> dict[str, Tensor]:
    """∂lossᵢ/∂parameter of every trainable parameter, for every example i."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows = [torch.autograd.grad(loss, list(parameters.values()), retain_graph=True) for loss in losses]
    return {name: torch.stack([row[place] for row in rows]) for place, name in enumerate(parameters)}


def mean_norm(rows: Mapping[str, Tensor]) -> float:
    """A clip that cuts some examples and leaves others."""
    return float(_norms(rows).mean()) or 1.0  # where no example has a gradient any will do


def clipped(rows: Mapping[str, Tensor], clip_norm: float) -> dict[str, Tensor]:
    """Σ min(1, clip/‖gᵢ‖)·gᵢ at the length that the engine cuts to."""
    coefficients = (clip_norm * (1 - TOLERANCE) / _norms(rows)).clamp(max=1.0)
    return {name: torch.tensordot(coefficients.to(values.dtype), values, dims=1) for name, values in rows.items()}


def require_equal(
    plain: nn.Module, model: nn.Module, x: Tensor, losses: Losses, bounds: Mapping[torch.dtype, float] = BOUNDS
) -> None:
    """Fails unless the engine's sum for the model is that of one pass per example through the plain one."""
    for dtype, bound in bounds.items():
        plain, model = plain.to(dtype), model.to(dtype)
        x = x.to(dtype) if x.is_floating_point() else x
        rows = gradients(losses(plain, x), plain)
        clip = mean_norm(rows)
        with ClippedGradients(model, clip_norm=clip) as engine:
            found = engine.sum(losses(model, x))
        assert distance(found, clipped(rows, clip)) < bound


def require_fast(model: nn.Module, x: Tensor, losses: Losses) -> None:
    """Fails unless the engine's sum is that of one pass per example, and no example went alone."""
    require_equal(model, model, x, losses)
    model.float()
    with ClippedGradients(model, clip_norm=1.0) as engine:
        engine.sum(losses(model, x))
        assert engine.slow_reasons == ()


def _norms(rows: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([values.double().reshape(len(values), -1) for values in rows.values()], dim=1).norm(dim=1)
