"""Algorithms of the earlier form, which had the server's side alone: `proximal`, `start(size)` and `step(...)`.

>>> import numpy as np
>>> class HalfWay:
...     proximal = 0.0
...     def start(self, size):
...         return {}
...     def step(self, weights, update, state):
...         return weights + 0.5 * update, state
>>> ServerSide(HalfWay()).step({"weights": np.zeros(2)}, np.ones(2))
{'weights': array([0.5, 0.5])}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.protocol import WEIGHTS, LocalObjective, ModelChange, State, Task


@runtime_checkable
class EarlierAlgorithm(Protocol):
    """The server's step from a mean update to the next model, and the pull of clients to the model they were sent."""

    proximal: float

    def start(self, size: int) -> State:
        """Return the state before the first round, for a model of that size."""

    def step(self, weights: Floats, update: Floats, state: State) -> tuple[Floats, State]:
        """Return the next model and state."""


@dataclass(frozen=True)
class ServerSide(ModelChange):
    """An algorithm of the earlier form with clients that send the change of the model.

    Privacy: that of `FederatedAlgorithm`.
    """

    inner: EarlierAlgorithm

    def start(self, weights: Floats) -> State:
        """Return the model and the algorithm's own state."""
        return self._join(weights, self.inner.start(len(weights)))

    def objective(self, task: Task, state: State) -> LocalObjective:
        """Return the loss with a pull towards the model that was sent."""
        return LocalObjective(task.weights, pull=self.inner.proximal)

    def step(self, state: State, mean: Floats) -> State:
        """Return what the algorithm makes of the model, the mean update and its own state."""
        own = {name: value for name, value in state.items() if name != WEIGHTS}
        return self._join(*self.inner.step(state[WEIGHTS], mean, own))

    def _join(self, weights: Any, own: State) -> State:
        if WEIGHTS in own:
            name = type(self.inner).__name__
            message = f"the state of {name} has an array of the name {WEIGHTS!r}, which is the model's"
            raise InvalidArgument("algorithm", f"{message}: choose another")
        return {WEIGHTS: weights, **own}
