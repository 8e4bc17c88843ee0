"""Clients with handwritten digits of their own: softmax regression with momentum, in numpy, so that rounds are fast."""

from __future__ import annotations

from functools import cache

import numpy as np
from sklearn.datasets import load_digits

from dpfed.data.partition import dirichlet
from dpfed.plan.plan import LocalPlan

SIZE, CLASSES, TEST = 650, 10, 360
LOCAL = LocalPlan(size=60, batch_size=32, steps=5, learning_rate=0.5)
MOMENTUM = 0.9


class DigitClient:
    """Sends the running mean of what it has learned from its digits in a round."""

    account = ""

    def __init__(self, name, features, labels, momentum=MOMENTUM):
        self.name, self.features, self.labels = name, features, labels
        self._momentum, self._kept = momentum, np.zeros(SIZE)
        self._draws = np.random.default_rng([len(name), *name.encode()])

    def rehearse(self, local, weights):
        """Any plan fits."""

    def train(self, local, objective, source):
        weights = objective.start.reshape(-1, CLASSES).astype(float)
        for _ in range(LOCAL.steps):
            some = self._draws.integers(0, len(self.labels), LOCAL.batch_size)
            weights = weights - LOCAL.learning_rate * gradient(weights, self.features[some], self.labels[some])
        self._kept = self._momentum * self._kept + (1 - self._momentum) * (weights.ravel() - objective.start)
        return self._kept.copy()


def gradient(weights, features, labels):
    scores = features @ weights
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    return features.T @ shares / len(labels)


@cache
def digits(seed):
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    return np.c_[features / 16, np.ones(len(labels))][order], labels[order]


def make_clients(count, alpha, seed=0, momentum=MOMENTUM, flipped=0):
    """Return clients of a Dirichlet partition; the last `flipped` of them have their labels turned around."""
    features, labels = (part[TEST:] for part in digits(seed))
    parts = dirichlet(labels, count, alpha, seed, minimum=10)
    names = [f"c{place:02d}" for place in range(count)]
    honest = {name: labels[part] for name, part in zip(names, parts, strict=True)}
    turned = {name: CLASSES - 1 - honest[name] for name in names[count - flipped :]}
    each = zip(names, parts, strict=True)
    return [DigitClient(name, features[part], {**honest, **turned}[name], momentum) for name, part in each]


def accuracy(weights, seed=0):
    features, labels = (part[:TEST] for part in digits(seed))
    return float(((features @ weights.reshape(-1, CLASSES)).argmax(axis=1) == labels).mean())
