"""FedProx: FedAvg whose clients are held near the model they were sent (Li et al. 2020).

With unequal data every client runs towards its own optimum; μ/2·‖w − w_start‖² on top of its loss keeps them together.
Its gradient is known from released values, so it is added after clipping and noise: it needs no bound and no charge.

>>> FedProx(proximal=0.1).proximal
0.1
"""

from __future__ import annotations

from dataclasses import dataclass

from dpfed import checks
from dpfed.federated.algorithms.protocol import State
from dpfed.structure import Floats


@dataclass(frozen=True)
class FedProx:
    """w ← w + server_learning_rate · update, from clients that add proximal · (w − w_start) to their gradients.

    Privacy: the server's step is post-processing of the noised aggregate. A client's w and w_start follow from
    released values, so the term is post-processing as well.
    """

    proximal: float
    server_learning_rate: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "proximal", checks.non_negative(proximal=self.proximal))
        rate = checks.positive(server_learning_rate=self.server_learning_rate)
        object.__setattr__(self, "server_learning_rate", rate)

    def start(self, size: int) -> State:
        """Nothing to remember."""
        return {}

    def step(self, weights: Floats, update: Floats, state: State) -> tuple[Floats, State]:
        """The model moved by the update."""
        return weights + self.server_learning_rate * update, {}
