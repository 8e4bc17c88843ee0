"""Learning rates that follow the number of the step: public, because nothing but that number goes into them.

A rate that follows the training loss, or a score on private data, would be a release of its own. These are values:
two of them with the same numbers are the same schedule.

>>> [Cosine().factor(step, steps=4) for step in range(4)]
[1.0, 0.853..., 0.5, 0.146...]
>>> [Step(every=2, by=0.1).factor(step, steps=4) for step in range(4)]
[1.0, 1.0, 0.1, 0.1]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dpfed import checks


class Schedule(Protocol):
    """What the learning rate is multiplied by at each step."""

    def factor(self, step: int, steps: int) -> float:
        """The factor at that step, 0 the first, of so many."""


@dataclass(frozen=True)
class Constant:
    """The same rate throughout."""

    def factor(self, step: int, steps: int) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    """From 1 down to `floor` along half a wave (Loshchilov and Hutter 2017)."""

    floor: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "floor", checks.probability(floor=self.floor))

    def factor(self, step: int, steps: int) -> float:
        """1 at the first step, `floor` one step after the last."""
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * step / steps)) / 2


@dataclass(frozen=True)
class Step:
    """Multiplied by `by` after every so many steps."""

    every: int
    by: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", checks.count(every=self.every))
        object.__setattr__(self, "by", checks.positive(by=self.by))

    def factor(self, step: int, steps: int) -> float:
        """The power of `by` that is reached at the step."""
        return float(self.by ** (step // self.every))
