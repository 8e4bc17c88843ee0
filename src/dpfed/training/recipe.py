"""How a client turns gradients into steps: optimizer, momentum, weight decay and the learning rate's course.

None of it can change what training costs: it is applied to gradients that are clipped and noised already. So it is not
part of a `LocalPlan`, which holds what is charged.

>>> from torch import nn
>>> type(Recipe(optimizer="adam").optimizer_of(nn.Linear(2, 1).parameters(), 0.1)).__name__
'Adam'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.training.schedules import Constant, Schedule

OPTIMIZERS = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class Recipe:
    """A client's optimizer; it starts anew in every round, so no state of it stays with a client.

    Privacy: post-processing of noised gradients (where there are any): it needs no bound and no charge.
    """

    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            message = f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            raise InvalidArgument("optimizer", message)
        object.__setattr__(self, "momentum", checks.probability(momentum=self.momentum))
        object.__setattr__(self, "weight_decay", checks.non_negative(weight_decay=self.weight_decay))
        if self.momentum and self.optimizer != "sgd":
            raise InvalidArgument("momentum", f"momentum goes with sgd only, not with {self.optimizer}")

    def optimizer_of(self, parameters: Iterable[Tensor], learning_rate: float) -> Optimizer:
        """A new optimizer of these parameters."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=learning_rate, weight_decay=self.weight_decay)

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """The learning rate at that step, 0 the first, of so many."""
        return learning_rate * checks.non_negative(schedule=self.schedule.factor(step, steps))
