"""FedDyn: each client's loss is regularised so that all of them have the optimum of their mean (Acar et al. 2021).

A client minimises its loss − ⟨gᵢ, w⟩ + α/2·‖w − w_sent‖², where gᵢ follows the gradient of its own loss; h at the
server follows their mean. With the change Δᵢ of its model, and m of N clients in a round as the plan says::

    client   gᵢ ← gᵢ − α·Δᵢ                                      from Δᵢ as the server clips it
    server   h ← h − α·(m/N)·mean,   w ← w + mean − h/α

>>> sorted(FedDyn(alpha=0.1).start(np.zeros(2)))
['drift', 'weights']
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.federated.algorithms.constants import share_of_clients, with_constants
from dpfed.federated.algorithms.protocol import WEIGHTS, LocalObjective, ModelChange, State, Task
from dpfed.plan.plan import Plan

DRIFT, GRADIENT = "drift", "gradient"


@dataclass(frozen=True)
class FedDyn(ModelChange):
    """FedDyn: w ← w + update − h/α, from clients whose losses are regularised by α and by their own past.

    Privacy: nothing but the change of the model leaves a client. h is post-processing of the noised means. gᵢ stays
    with its client, and is made of its changes: in styles `sample`, `hybrid` and `local` of released values therefore;
    in `user` the clip of the change is what protects. h adds up the noise of all rounds.
    """

    kind: ClassVar[str] = "feddyn"
    alpha: float
    share: float = field(default=np.nan, init=False, repr=False)  # m/N
    keeps_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checks.positive(alpha=self.alpha))

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan's cohort."""
        return with_constants(self, share=share_of_clients(plan, self.kind))

    def start(self, weights: Floats) -> State:
        """Return the model, and no drift yet."""
        return {WEIGHTS: weights, DRIFT: np.zeros(len(weights))}

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss with a pull towards the model that was sent, and a shift by −gᵢ."""
        shift = -state[GRADIENT] if GRADIENT in state else None
        return LocalObjective(task.weights, pull=self.alpha, shift=shift)

    def keeps(self, left: Floats, task: Task, state: State) -> State:
        """Return the client's next gᵢ."""
        return {GRADIENT: state.get(GRADIENT, 0.0) - self.alpha * left}

    def step(self, state: State, mean: Floats) -> State:
        """Return the model moved by the mean update and against the drift, and the mean of the clients' gᵢ."""
        drift = state[DRIFT] - self.alpha * self.share * mean
        return {WEIGHTS: state[WEIGHTS] + mean - drift / self.alpha, DRIFT: drift}
