"""What makes a federated algorithm: what is sent, what clients minimise, what leaves them, and the server's step.

Nothing of it gets data. A client's side sees what was sent, its own state, and a change of the model; the server sees
the aggregate only after it was noised. So all it computes costs nothing. It must be pure, though: state goes in and
comes out, as plain arrays that a file can hold.

>>> import numpy as np
>>> class HalfWay(ModelChange):
...     def start(self, weights):
...         return {"weights": weights}
...
...     def step(self, state, mean):
...         return {"weights": state["weights"] + 0.5 * mean}
>>> isinstance(HalfWay(), FederatedAlgorithm)
True
>>> HalfWay().step(HalfWay().start(np.zeros(2)), np.ones(2))
{'weights': array([0.5, 0.5])}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol, Self, runtime_checkable

from dpfed.arrays import Floats
from dpfed.federated.messages import WEIGHTS, Task
from dpfed.federated.state.layout import Vector
from dpfed.plan.plan import Plan
from dpfed.training.objective import LocalObjective

__all__ = ["WEIGHTS", "FederatedAlgorithm", "LocalObjective", "ModelChange", "State", "Task"]

State = dict[str, Floats]


@runtime_checkable
class FederatedAlgorithm(Protocol):
    """Both sides of a federated algorithm. The server's state has the model under "weights".

    Privacy: `task` and `step` are given released values only: the model, the noised aggregate, and a state made of
    them. `objective`, `leaves` and `keeps` are given no data either: in styles `sample` and `hybrid` the change of a
    model comes from noised steps, so what leaves and what stays is post-processing of them; in style `user` what leaves
    is clipped as a whole, whatever it depends on of that client; in style `local` its client noises it as well, and
    `keeps` is given the noised vector. The state of one client depends on another only through released values. Draws
    of a secret Poisson cohort are independent of each other: given those of all other clients, what these keep follows
    from what was released, and a round is still a sampled Gaussian for the one left. Draws of a secret cohort of fixed
    size are not, and `keeps_state` is refused there (`plan.rules.require_stateful`).
    """

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep arrays from round to round."""

    @property
    def needs_plain_sgd(self) -> bool:
        """Whether clients must take plain steps of stochastic gradient descent, all of one length."""

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm with the plan's constants; refuse a plan that it must not be used with."""

    def start(self, weights: Floats) -> State:
        """Return the server's state before the first round."""

    def task(self, state: Mapping[str, Vector]) -> Mapping[str, Vector]:
        """Return the named vectors that are sent to every client of a round; the model is among them."""

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return what a client with that state minimises."""

    def leaves(self, change: Floats, task: Task, state: State) -> Floats:
        """Return the one vector that leaves a client whose model changed so."""

    def keeps(self, left: Floats, task: Task, state: State) -> State:
        """Return what a client keeps for its next round, from what left it: clipped as the server clips it, or noised.

        A client that has kept nothing yet has an empty state.
        """

    def step(self, state: State, mean: Floats) -> State:
        """Return the server's next state, from the noised mean of what left the clients; change no argument."""


class ModelChange:
    """The client's side of most algorithms: minimise the loss from the model that was sent, and send its change."""

    keeps_state: ClassVar[bool] = False
    needs_plain_sgd: ClassVar[bool] = False

    def bound_to(self, plan: Plan) -> Self:
        """Return the algorithm itself: no constant of the plan is needed, and every plan will do."""
        return self

    def describe(self) -> str:
        """Return a sentence on what follows from the plan, for `dpfed plan`; none where nothing does."""
        return ""

    def task(self, state: Mapping[str, Vector]) -> Mapping[str, Vector]:
        """Return the model."""
        return {WEIGHTS: state[WEIGHTS]}

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss alone, from the model that was sent."""
        return LocalObjective(task.weights)

    def leaves(self, change: Floats, task: Task, state: State) -> Floats:
        """Return the change of the model."""
        return change

    def keeps(self, left: Floats, task: Task, state: State) -> State:
        """Return nothing: no client keeps anything."""
        return {}
