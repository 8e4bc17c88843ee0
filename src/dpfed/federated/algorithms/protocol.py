"""What makes an algorithm of the server: how a mean update becomes the next model.

An algorithm sees the aggregate only after it was noised, so all it computes is post-processing and costs nothing,
whatever it does. It must be pure, though: state goes in and comes out, as plain arrays that a checkpoint can hold.

>>> import numpy as np
>>> class HalfWay:
...     proximal = 0.0
...
...     def start(self, size):
...         return {}
...
...     def step(self, weights, update, state):
...         return weights + 0.5 * update, state
>>> isinstance(HalfWay(), FederatedAlgorithm)
True
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dpfed.structure import Floats

State = dict[str, Floats]


@runtime_checkable
class FederatedAlgorithm(Protocol):
    """The server's side of a federated algorithm, and the one number of it that clients need.

    Privacy: `step` is given released values only: the model, the noised aggregate, and a state made of them. Clients
    add ``proximal × (w − w_start)`` to a gradient after clipping and noise, from released values too.
    """

    @property
    def proximal(self) -> float:
        """How strongly clients are drawn to the model they were sent; 0 for not at all."""

    def start(self, size: int) -> State:
        """The state before the first round, for a model of so many numbers."""

    def step(self, weights: Floats, update: Floats, state: State) -> tuple[Floats, State]:
        """The next model and state; neither argument is changed."""
