"""FedAvg: the model moves by the mean update (McMahan et al. 2017).

>>> import numpy as np
>>> FedAvg(server_learning_rate=0.5).step(np.zeros(2), np.array([1.0, -2.0]), {})[0]
array([ 0.5, -1. ])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpfed import checks
from dpfed.federated.algorithms.protocol import State
from dpfed.structure import Floats


@dataclass(frozen=True)
class FedAvg:
    """w ← w + server_learning_rate · update.

    Privacy: post-processing of the noised aggregate.
    """

    server_learning_rate: float = 1.0
    proximal: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        rate = checks.positive(server_learning_rate=self.server_learning_rate)
        object.__setattr__(self, "server_learning_rate", rate)

    def start(self, size: int) -> State:
        """Nothing to remember."""
        return {}

    def step(self, weights: Floats, update: Floats, state: State) -> tuple[Floats, State]:
        """The model moved by the update."""
        return weights + self.server_learning_rate * update, {}
