"""What the contestants of `throughput.py` train: read in the peers' venvs too, so only numpy and torch are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench import Task

PLAIN, PFL, FLOWER, OURS = "plain torch", "pfl-research", "Flower's simulation", "dpfed"
EXAMPLES, BATCH, ROUNDS = 20, 10, 5
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Case:
    """A model, what it is fed, how many clients there are, and the goals by peer."""

    title: str
    name: str
    features: int
    widths: tuple[int, ...]
    clients: int
    goals: Mapping[str, float]

    def model(self) -> Any:
        """The model at its first weights, which are everybody's."""
        import torch
        from torch import nn

        torch.manual_seed(0)
        layers = [
            layer for sizes in pairwise((self.features, *self.widths)) for layer in (nn.Linear(*sizes), nn.ReLU())
        ]
        return nn.Sequential(*layers[:-1])

    def data(self) -> list[tuple[Any, Any]]:
        """Inputs and labels of every client, as tensors."""
        import numpy as np
        import torch

        draws = np.random.default_rng(0)
        inputs = draws.normal(size=(self.clients, EXAMPLES, self.features)).astype(np.float32)
        return [(torch.from_numpy(x), torch.from_numpy((x[:, 0] > 0).astype(np.int64))) for x in inputs]


CASES = {
    case.name: case
    for case in (
        Case("logistic 30", "logistic", 30, (2,), 1000, {PLAIN: 15, PFL: 30}),
        Case("MLP 784-64-10", "mlp", 784, (64, 10), 1000, {PLAIN: 1.7, PFL: 2.5}),
        Case("logistic 30", "few", 30, (2,), 250, {FLOWER: 250}),
    )
}


def learned(first: Mapping[str, Any], last: Mapping[str, Any]) -> float:
    """How far all weights have moved together."""
    return sum(float((last[name] - value).abs().sum()) for name, value in first.items())


class Prepared:
    """A task whose clients are made before the clock runs; it is the learned distance of a whole run."""

    def __init__(self, case: Case, prepare: Callable[[Case], Callable[[], float]]) -> None:
        self._case, self._prepare = case, prepare
        self._run: Callable[[], float] | None = None

    def ready(self) -> None:
        if self._run is None:
            self._run = self._prepare(self._case)

    def __call__(self, nudge: float) -> float:
        return self._run() if self._run is not None else 0.0


def tasks(prepare: Callable[[Case], Callable[[], float]], who: str) -> dict[str, Task]:
    """The tasks of one contestant: the cases that have a goal for it; the plain loop and we take part in all."""
    import torch

    torch.set_num_threads(1)
    return {name: Prepared(case, prepare) for name, case in CASES.items() if who in (PLAIN, OURS, *case.goals)}
