from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.fedprox import FedProx
from dpfed.federated.messages import Task


def test_clients_are_pulled_to_the_model_that_was_sent_and_the_server_moves_as_fedavg():
    algorithm = FedProx(0.3, 0.5)
    objective = algorithm.objective(Task(1, {"weights": np.array([1.0, 2.0])}), {})
    assert (objective.pull, objective.start.tolist()) == (0.3, [1.0, 2.0])
    state = algorithm.step(algorithm.start(np.zeros(2)), np.array([4.0, -2.0]))
    assert state["weights"].tolist() == [2.0, -1.0]


def test_a_strength_below_zero_is_refused():
    with pytest.raises(InvalidArgument, match="proximal"):
        FedProx(-0.1)
