"""The whole model at once by vmap(grad), as in a textbook: the measure of every rule, and the way where there is none.

>>> import torch
>>> from torch import nn
>>> model, loss = nn.Linear(1, 1, bias=False), lambda output, _: output.squeeze(1)
>>> per_example(model, loss, torch.tensor([[1.0], [5.0]]), torch.zeros(2))["weight"].flatten().tolist()
[1.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from dpfed.training.forward import Forward
from dpfed.training.rules.linear import DIRECT_BYTES

Loss = Callable[[Tensor, Tensor], Tensor]


class _Pass(nn.Module):
    """A pass with its model, whose parameters can be exchanged for a call."""

    def __init__(self, model: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, *values: Any) -> Tensor:
        """Return the loss of one example."""
        return self._function(*values).sum()


def rows(model: nn.Module, forward: Forward, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every example's gradient of a pass; torch refuses what cannot be done so.

    The model sees one example, and nothing of it can reach Python. So many are computed at a time as fit into memory.
    """
    whole = _Pass(model, forward.function)
    held = {f"model.{name}": value.detach() for name, value in parameters.items()}
    size = sum(value.numel() * value.element_size() for value in held.values())

    def one(held: dict[str, Tensor], values: tuple[Any, ...]) -> Tensor:
        alone = tree_map(lambda value: value.unsqueeze(0), values)
        loss: Tensor = functional_call(whole, held, alone)
        return loss

    over = vmap(grad(one), in_dims=(None, 0), randomness="different", chunk_size=max(1, DIRECT_BYTES // size))
    found: dict[str, Tensor] = over(held, forward.values)
    return {name: found[f"model.{name}"] for name in parameters}


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
