from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.earlier import ServerSide
from dpfed.federated.messages import Task


class Speeding:
    """Adds half of the last update to this one."""

    proximal = 0.25

    def start(self, size):
        return {"last": np.zeros(size)}

    def step(self, weights, update, state):
        return weights + update + state["last"] / 2, {"last": update}


def test_an_earlier_algorithm_steps_with_its_own_state_and_pulls_its_clients():
    algorithm = ServerSide(Speeding())
    state = algorithm.step(algorithm.start(np.zeros(2)), np.array([2.0, 4.0]))
    assert algorithm.step(state, np.zeros(2))["weights"].tolist() == [3.0, 6.0]
    objective = algorithm.objective(Task(1, {"weights": np.ones(2)}), {})
    assert (objective.pull, objective.start.tolist()) == (0.25, [1.0, 1.0])


def test_a_state_of_the_models_name_is_refused():
    class Greedy(Speeding):
        def start(self, size):
            return {"weights": np.zeros(size)}

    with pytest.raises(InvalidArgument, match="Greedy has an array of the name 'weights'"):
        ServerSide(Greedy()).start(np.zeros(2))
