"""The whole model at once: slow, always right, and the measure of every rule.

``clipped_sum`` is vmap(grad) of the loss over the whole model, then clip and sum, as in a textbook: the oracle of the
tests. ``gradients`` is the last resort of the engine for parameters that no rule can attribute to a layer (used as
a function, tied through an expression, in a module that vmap refuses): one backward pass per example.

>>> import torch
>>> from torch import nn
>>> model = nn.Linear(1, 1, bias=False)
>>> losses = model(torch.tensor([[1.0], [5.0]])).squeeze(1)
>>> gradients(losses, {"weight": model.weight})["weight"].flatten().tolist()
[1.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

Loss = Callable[[Tensor, Tensor], Tensor]


def gradients(losses: Tensor, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """∂lossᵢ/∂parameter for every example i, by one backward pass each; the graph is kept.

    A pass runs over the whole batch with zeros for the other examples, and 0·∞ is not 0: one example that is not
    finite may spoil the gradients of all. ``training.rerun`` sees to that.
    """
    found = [
        torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True) for loss in losses
    ]
    stacks = {}
    for place, (name, parameter) in enumerate(parameters.items()):
        rows = [row[place] for row in found]
        stacks[name] = torch.stack([torch.zeros_like(parameter) if row is None else row.detach() for row in rows])
    return stacks


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
