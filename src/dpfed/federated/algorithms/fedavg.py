"""FedAvg: the model moves by the mean update (McMahan et al. 2017).

>>> import numpy as np
>>> FedAvg(server_learning_rate=0.5).step({"weights": np.zeros(2)}, np.array([1.0, -2.0]))
{'weights': array([ 0.5, -1. ])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.federated.algorithms.protocol import WEIGHTS, ModelChange, State


@dataclass(frozen=True)
class FedAvg(ModelChange):
    """FedAvg: w ← w + server_learning_rate · update.

    Privacy: post-processing of the noised aggregate.
    """

    kind: ClassVar[str] = "fedavg"
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        rate = checks.positive(server_learning_rate=self.server_learning_rate)
        object.__setattr__(self, "server_learning_rate", rate)

    def start(self, weights: Floats) -> State:
        """Return the model: there is nothing else to remember."""
        return {WEIGHTS: weights}

    def step(self, state: State, mean: Floats) -> State:
        """Return the model moved by the mean update."""
        return {WEIGHTS: state[WEIGHTS] + self.server_learning_rate * mean}
