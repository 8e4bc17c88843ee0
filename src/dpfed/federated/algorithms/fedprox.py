"""FedProx: FedAvg whose clients are held near the model they were sent (Li et al. 2020).

With unequal data every client runs towards its own optimum; μ/2·‖w − w_start‖² on top of its loss keeps them together.
Its gradient is known from released values, so it is added after clipping and noise: it needs no bound and no charge.

>>> import numpy as np
>>> FedProx(proximal=0.1).objective(Task(1, {"weights": np.zeros(2)}), {}).pull
0.1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.federated.algorithms.protocol import WEIGHTS, LocalObjective, ModelChange, State, Task


@dataclass(frozen=True)
class FedProx(ModelChange):
    """FedProx: w ← w + server_learning_rate · update; clients add proximal · (w − w_start) to their gradients.

    Privacy: the server's step is post-processing of the noised aggregate. A client's w and w_start follow from
    released values, so the term is post-processing as well.
    """

    kind: ClassVar[str] = "fedprox"
    proximal: float
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "proximal", checks.non_negative(proximal=self.proximal))
        rate = checks.positive(server_learning_rate=self.server_learning_rate)
        object.__setattr__(self, "server_learning_rate", rate)

    def start(self, weights: Floats) -> State:
        """Return the model: there is nothing else to remember."""
        return {WEIGHTS: weights}

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss with a pull towards the model that was sent."""
        return LocalObjective(task.weights, pull=self.proximal)

    def step(self, state: State, mean: Floats) -> State:
        """Return the model moved by the mean update."""
        return {WEIGHTS: state[WEIGHTS] + self.server_learning_rate * mean}
