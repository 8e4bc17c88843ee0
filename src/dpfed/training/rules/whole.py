"""The whole model at once, as in a textbook: slow, always right, and the measure of every rule.

>>> import torch
>>> from torch import nn
>>> model, loss = nn.Linear(1, 1, bias=False), lambda output, _: output.squeeze(1)
>>> per_example(model, loss, torch.tensor([[1.0], [5.0]]), torch.zeros(2))["weight"].flatten().tolist()
[1.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Loss = Callable[[Tensor, Tensor], Tensor]


def per_example(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """∂loss(model(xᵢ), yᵢ) for every example i by vmap(grad); ``loss`` gives one value per example."""
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = functional_call(model, parameters, (x.unsqueeze(0),))
        return loss(out, y.unsqueeze(0)).sum()

    found: dict[str, Tensor] = vmap(grad(one), in_dims=(None, 0, 0))(parameters, inputs, targets)
    return found


def clipped_sum(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, *, clip_norm: float
) -> dict[str, Tensor]:
    """Σ min(1, clip_norm/‖gᵢ‖)·gᵢ for every trainable parameter, with norms in float64."""
    found = per_example(model, loss, inputs, targets)
    squares = sum(rows.double().reshape(len(rows), -1).square().sum(1) for rows in found.values())
    coefficients = (clip_norm / torch.as_tensor(squares).sqrt()).clamp(max=1.0)
    return {name: torch.tensordot(coefficients.to(rows.dtype), rows, dims=1) for name, rows in found.items()}
