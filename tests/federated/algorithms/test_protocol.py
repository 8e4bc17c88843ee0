from __future__ import annotations

import numpy as np

from dpfed.federated.algorithms.protocol import FederatedAlgorithm, ModelChange, Task


class Frugal(ModelChange):
    """Only what no algorithm can do without."""

    def start(self, weights):
        return {"weights": weights, "own": np.zeros(1)}

    def step(self, state, mean):
        return {**state, "weights": state["weights"] + mean}


def test_whoever_derives_from_model_change_writes_two_functions_and_is_an_algorithm():
    algorithm = Frugal()
    assert isinstance(algorithm, FederatedAlgorithm)
    assert not isinstance(ModelChange(), FederatedAlgorithm)


def test_by_default_the_model_alone_is_sent_its_change_leaves_and_nothing_is_kept():
    algorithm = Frugal()
    sent = algorithm.task(algorithm.start(np.ones(2)))
    assert sent.keys() == {"weights"}
    task, change = Task(1, sent), np.array([3.0, 4.0])
    objective = algorithm.objective(task, {})
    assert (objective.start.tolist(), objective.pull, objective.shift) == ([1.0, 1.0], 0.0, None)
    assert algorithm.leaves(change, task, {}) is change
    assert algorithm.keeps(change, task, {}) == {}
    assert not algorithm.keeps_state
    assert not algorithm.needs_plain_sgd
