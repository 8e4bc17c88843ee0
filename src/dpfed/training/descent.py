"""A recipe's steps on tensors that many models share.

Gradient descent is a few lines, and is written out here: the first optimizer that torch.optim makes in a process loads
torch's compiler, which takes seconds, and for most runs nothing else needs it.

>>> weights = {"weight": torch.ones(2)}
>>> descent = Descent(Recipe(momentum=0.5), weights, learning_rate=0.1)
>>> for _ in range(2):
...     descent.step({"weight": torch.ones(2)}, rate=0.1)
>>> [round(value, 6) for value in weights["weight"].tolist()]      # 1 − 0.1 − 0.1·1.5
[0.75, 0.75]
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpfed.training.recipe import Recipe


class Descent:
    """Moves the parameters in place by their gradients, as the recipe's optimizer in torch.optim does."""

    def __init__(self, recipe: Recipe, parameters: Mapping[str, Tensor], learning_rate: float) -> None:
        self._recipe = recipe
        self._parameters = parameters
        self._speeds: dict[str, Tensor] = {}
        self._optimizer: Optimizer | None = None
        if recipe.optimizer != "sgd":
            self._optimizer = recipe.optimizer_of(list(parameters.values()), learning_rate)

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        """Nothing; takes one step at that learning rate."""
        if self._optimizer is None:
            for name, parameter in self._parameters.items():
                parameter.sub_(self._speed(name, gradients[name]), alpha=rate)
            return
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def _speed(self, name: str, gradient: Tensor) -> Tensor:
        if self._recipe.weight_decay:
            gradient = torch.add(gradient, self._parameters[name], alpha=self._recipe.weight_decay)
        if not self._recipe.momentum:
            return gradient
        before = self._speeds.get(name)
        self._speeds[name] = gradient.clone() if before is None else before.mul_(self._recipe.momentum).add_(gradient)
        return self._speeds[name]
