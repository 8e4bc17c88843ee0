"""Clients with convex losses on unequal data, and the optimum of all of them together: no torch, no noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FEATURES, CLIENTS, RECORDS = 4, 6, 25
DECAY = 0.05  # of both losses, times ½‖w‖²


@dataclass(frozen=True)
class Regression:
    """A client that descends its mean loss on all its records, squared or logistic, with a decay of the weights."""

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    is_logistic: bool
    account: str = ""

    def rehearse(self, local, weights) -> None: ...

    def gradient(self, weights):
        outputs = self.inputs @ weights
        errors = 1 / (1 + np.exp(-outputs)) - self.targets if self.is_logistic else outputs - self.targets
        return self.inputs.T @ errors / len(self.targets) + DECAY * weights

    def train(self, local, objective, source):
        weights = np.array(objective.start, dtype=float)
        shift = 0.0 if objective.shift is None else objective.shift
        for _ in range(local.steps):
            pulled = objective.pull * (weights - objective.anchor) + shift
            weights -= local.learning_rate * (self.gradient(weights) + pulled)
        return weights - objective.start


def make_clients(kind: str) -> list[Regression]:
    """Clients whose inputs have other scales and whose targets follow other weights."""
    draws = np.random.default_rng(7)
    made = []
    for number in range(CLIENTS):
        inputs = draws.normal(size=(RECORDS, FEATURES)) * draws.uniform(0.3, 1.2, FEATURES)
        outputs = inputs @ (1.5 * draws.normal(size=FEATURES)) + 0.3 * draws.normal(size=RECORDS)
        targets = (outputs > 0).astype(float) if kind == "logistic" else outputs
        made.append(Regression(f"c{number}", inputs, targets, kind == "logistic"))
    return made


def find_optimum(clients: list[Regression]) -> np.ndarray:
    """The minimum of the mean of all clients' losses, by descending it with all data in one place."""
    weights = np.zeros(FEATURES)
    for _ in range(20_000):
        weights -= 0.3 * sum(client.gradient(weights) for client in clients) / len(clients)
    assert np.abs(sum(client.gradient(weights) for client in clients)).max() < 1e-10
    return weights
