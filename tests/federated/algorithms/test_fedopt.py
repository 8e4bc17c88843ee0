from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.fedopt import FedOpt

# The first step from τ = 0.1 at an update of 3, with β₁ = 0.9, β₂ = 0.99 and a rate of 0.5.
SQUARES = {"adam": 0.99 * 0.01 + 0.01 * 9, "adagrad": 0.01 + 9, "yogi": 0.01 + 0.01 * 9}


@pytest.mark.parametrize("optimizer", SQUARES)
def test_an_adaptive_step_divides_the_mean_by_the_root_of_the_squares(optimizer):
    algorithm = FedOpt(optimizer, 0.5, tau=0.1)
    after = algorithm.step(algorithm.start(np.zeros(1)), np.array([3.0]))
    assert after["square"] == pytest.approx(SQUARES[optimizer])
    assert after["weights"] == pytest.approx(0.5 * 0.3 / (math.sqrt(SQUARES[optimizer]) + 0.1))


def test_an_unknown_optimizer_is_answered_with_those_there_are():
    with pytest.raises(InvalidArgument, match="momentum, adam, yogi, adagrad, got 'sgd'"):
        FedOpt("sgd")
