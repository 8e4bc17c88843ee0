"""SCAFFOLD: each client corrects its steps by how its gradient differs from everyone's (Karimireddy et al. 2020).

With unequal data many local steps lead each client to its own optimum. A control variate cᵢ at each client remembers
the mean gradient of its last round, c at the server that of all; a client adds c − cᵢ to its gradients. By option II of
the paper, with K steps of length η that changed the model by Δᵢ, and m of N clients in a round as the plan says::

    client   cᵢ ← cᵢ − c − Δᵢ/(Kη)                              from Δᵢ as the server clips it
    server   c ← (1 − m/N)·c − (m/N)·mean/(Kη),   w ← w + η_s·mean

>>> Scaffold().start(np.ones(1))
{'weights': array([1.]), 'control': array([0.])}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.constants import length_of_steps, share_of_clients, with_constants
from dpfed.federated.algorithms.protocol import WEIGHTS, LocalObjective, ModelChange, State, Task
from dpfed.federated.state.layout import Vector
from dpfed.plan.plan import Plan

CONTROL = "control"


@dataclass(frozen=True)
class Scaffold(ModelChange):
    """SCAFFOLD: w ← w + server_learning_rate · update, from clients whose steps are corrected by control variates.

    Privacy: nothing but the change of the model leaves a client. c is post-processing of the noised mean. cᵢ stays with
    its client, made of c and that change: in styles `sample`, `hybrid` and `local` of released values therefore; in
    `user` the clip of the change is what protects. Option I is refused: its cᵢ is a gradient on all records.
    """

    kind: ClassVar[str] = "scaffold"
    server_learning_rate: float = 1.0
    option: int = 2
    share: float = field(default=np.nan, init=False, repr=False)  # m/N
    length: float = field(default=np.nan, init=False, repr=False)  # Kη
    keeps_state: ClassVar[bool] = True
    needs_plain_sgd: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.positive(server_learning_rate=self.server_learning_rate)
        if self.option != 2:
            raise InvalidArgument("option", f"option {self.option!r} needs gradients on all records: leave it out")

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm for the plan's cohort and steps; these must be the same at all clients."""
        share, length = share_of_clients(plan, self.kind), length_of_steps(plan, self.kind)
        return with_constants(self, share=share, length=length)

    def start(self, weights: Floats) -> State:
        """Return the model, and a control variate of zero."""
        return {WEIGHTS: weights, CONTROL: np.zeros(len(weights))}

    def task(self, state: Mapping[str, Vector]) -> Mapping[str, Vector]:
        """Return the model and the server's control variate."""
        return {name: state[name] for name in (WEIGHTS, CONTROL)}

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss, whose gradient is shifted by c − cᵢ."""
        return LocalObjective(task.weights, shift=task.vectors[CONTROL] - state.get(CONTROL, 0.0))

    def keeps(self, left: Floats, task: Task, state: State) -> State:
        """Return the client's next control variate, by option II."""
        return {CONTROL: state.get(CONTROL, 0.0) - task.vectors[CONTROL] - left / self.length}

    def step(self, state: State, mean: Floats) -> State:
        """Return the model moved by the mean update, and the mean of the clients' control variates."""
        control = (1 - self.share) * state[CONTROL] - self.share / self.length * mean
        return {WEIGHTS: state[WEIGHTS] + self.server_learning_rate * mean, CONTROL: control}
