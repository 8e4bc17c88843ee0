"""FedOpt: an optimizer on the server takes the mean update for a gradient (Reddi et al. 2021, Algorithm 2).

Δ is the mean update of the round, all products are by coordinate::

    momentum   m ← β₁m + Δ                        w ← w + ηm                (Hsu et al. 2019)
    adam       v ← β₂v + (1−β₂)Δ²                 w ← w + ηm/(√v + τ)
    yogi       v ← v − (1−β₂)Δ² sign(v − Δ²)
    adagrad    v ← v + Δ²

where the last three have m ← β₁m + (1−β₁)Δ, start at m = 0 and v = τ², and correct no bias, as in the paper. There
adagrad goes with β₁ = 0.

>>> import numpy as np
>>> yogi = FedOpt(optimizer="yogi", server_learning_rate=0.1, beta1=0.0, beta2=0.0, tau=1.0)
>>> state = yogi.step(yogi.start(np.zeros(1)), np.array([2.0]))
>>> state["square"], state["weights"].round(6)
(array([5.]), array([0.061803]))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.protocol import WEIGHTS, ModelChange, State

OPTIMIZERS = ("momentum", "adam", "yogi", "adagrad")


@dataclass(frozen=True)
class FedOpt(ModelChange):
    """FedOpt, an optimizer on the server; `tau` bounds the step where updates are small.

    Privacy: post-processing of the noised aggregate and of a state made of earlier ones. Under noise of standard
    deviation s on the mean, squares of updates are at least about s²: a `tau` far below s adapts to nothing but noise.
    """

    kind: ClassVar[str] = "fedopt"
    optimizer: str = "adam"
    server_learning_rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            message = f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            raise InvalidArgument("optimizer", message)
        for name in ("server_learning_rate", "tau"):
            object.__setattr__(self, name, checks.positive(**{name: getattr(self, name)}))
        for name in ("beta1", "beta2"):
            object.__setattr__(self, name, checks.probability(**{name: getattr(self, name)}))

    def start(self, weights: Floats) -> State:
        """Return the model with no momentum yet, and τ² for the squares."""
        first = {WEIGHTS: weights, "mean": np.zeros(len(weights))}
        return first if self.optimizer == "momentum" else {**first, "square": np.full(len(weights), self.tau**2)}

    def step(self, state: State, mean: Floats) -> State:
        """Return the model moved by what the optimizer makes of the mean update, and what it remembers."""
        weights, rate = state[WEIGHTS], self.server_learning_rate
        if self.optimizer == "momentum":
            speed = self.beta1 * state["mean"] + mean
            return {WEIGHTS: weights + rate * speed, "mean": speed}
        speed = self.beta1 * state["mean"] + (1 - self.beta1) * mean
        square = self._squares(state["square"], np.square(mean))
        return {WEIGHTS: weights + rate * speed / (np.sqrt(square) + self.tau), "mean": speed, "square": square}

    def _squares(self, before: Floats, now: Floats) -> Floats:
        if self.optimizer == "adagrad":
            return before + now
        if self.optimizer == "adam":
            return self.beta2 * before + (1 - self.beta2) * now
        return np.asarray(before - (1 - self.beta2) * now * np.sign(before - now))
