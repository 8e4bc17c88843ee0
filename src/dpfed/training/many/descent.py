"""Optimizer steps on the stacked parameters of many models.

Gradient descent is a few lines, and is written out here: the first optimizer that torch.optim makes in a process loads
torch's compiler, which takes seconds, and for most runs nothing else needs it.

>>> weights = {"weight": torch.ones(2)}
>>> descent = Descent(OptimizerSettings(momentum=0.5), weights, learning_rate=0.1)
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

from dpfed.training.optimizing import OptimizerSettings


class Descent:
    """An optimizer that updates parameters in place, with the steps of the torch optimizer of the settings."""

    def __init__(self, settings: OptimizerSettings, parameters: Mapping[str, Tensor], learning_rate: float) -> None:
        self._settings = settings
        self._parameters = parameters
        self._velocities: dict[str, Tensor] = {}
        self._optimizer: Optimizer | None = None
        if settings.optimizer != "sgd":
            self._optimizer = settings.optimizer_of(list(parameters.values()), learning_rate)

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        """Take one step with these gradients at learning rate `rate`."""
        if self._optimizer is None:
            for name, parameter in self._parameters.items():
                parameter.sub_(self._compute_velocity(name, gradients[name]), alpha=rate)
            return
        for name, parameter in self._parameters.items():
            parameter.grad = gradients[name]
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()

    def _compute_velocity(self, name: str, gradient: Tensor) -> Tensor:
        if self._settings.weight_decay:
            gradient = torch.add(gradient, self._parameters[name], alpha=self._settings.weight_decay)
        if not self._settings.momentum:
            return gradient
        before = self._velocities.get(name)
        self._velocities[name] = (
            gradient.clone() if before is None else before.mul_(self._settings.momentum).add_(gradient)
        )
        return self._velocities[name]
