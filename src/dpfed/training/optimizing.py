"""How a client turns gradients into steps: the optimizer, its momentum and weight decay, and the learning rate.

None of it can change what training costs: it is applied to gradients that are clipped and noised already. So it is not
part of a `LocalPlan`, which holds what is charged. A schedule depends on the number of the step alone, which is public;
a learning rate that followed the training loss, or a score on private data, would be a release of its own.

>>> from torch import nn
>>> type(OptimizerSettings(optimizer="adam").optimizer_of(nn.Linear(2, 1).parameters(), 0.1)).__name__
'Adam'
>>> [Cosine().factor(step, steps=4) for step in range(4)]
[1.0, 0.853..., 0.5, 0.146...]
>>> [Step(every=2, by=0.1).factor(step, steps=4) for step in range(4)]
[1.0, 1.0, 0.1, 0.1]
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpfed import checks
from dpfed.errors import InvalidArgument

OPTIMIZERS = ("sgd", "adam", "adamw")


class Schedule(Protocol):
    """A rule that gives each step a factor of the learning rate."""

    def factor(self, step: int, steps: int) -> float:
        """Return the factor at `step`, counted from 0, of `steps` in all."""


@dataclass(frozen=True)
class Constant:
    """A schedule that leaves the learning rate as it is."""

    def factor(self, step: int, steps: int) -> float:
        """Return 1 at every step."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """A schedule from 1 down to `floor` along half a cosine wave (Loshchilov and Hutter 2017)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "floor", checks.probability(floor=self.floor))

    def factor(self, step: int, steps: int) -> float:
        """Return the factor: 1 at the first step, `floor` one step after the last."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class Step:
    """A schedule that multiplies the learning rate by `by` after every `every` steps."""

    every: int
    by: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", checks.count(every=self.every))
        object.__setattr__(self, "by", checks.positive(by=self.by))

    def factor(self, step: int, steps: int) -> float:
        """Return the power of `by` that is reached at the step."""
        return float(self.by ** (step // self.every))


@dataclass(frozen=True)
class OptimizerSettings:
    """A client's optimizer and schedule; it starts anew in every round, so no state of it stays with a client.

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
            message = f"momentum goes with sgd only: {self.optimizer} keeps averages of its own"
            raise InvalidArgument("momentum", f'{message}; leave momentum out, or use optimizer="sgd"')

    def optimizer_of(self, parameters: Iterable[Tensor], learning_rate: float) -> Optimizer:
        """Return a new torch optimizer of these parameters."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=learning_rate, weight_decay=self.weight_decay)

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """Return the learning rate at `step`, counted from 0, of `steps` in all."""
        return learning_rate * checks.non_negative(schedule=self.schedule.factor(step, steps))


Recipe = OptimizerSettings  # the public name of earlier releases
