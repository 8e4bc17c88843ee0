"""ICEADMM by hand: primal and dual leave as one vector."""

from __future__ import annotations

import numpy as np
import pytest

from admm_plans import small
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.iceadmm import Iceadmm
from dpfed.federated.messages import Task


def test_steps_by_hand_where_primal_and_dual_leave_combined():
    """ρ = 2 then 4: from z = 3.5 at w = 3, λ = 1.5 becomes 0.5, and z − λ/4 − w = 0.375 leaves."""
    algorithm = registry.bind(Iceadmm(rho=(2.0, 4.0)), small("iceadmm"))
    state = {"weights": np.array([3.0])}
    task, kept = Task(1, algorithm.task(state)), {"dual": np.array([1.5]), "primal": np.array([2.0])}
    aim = algorithm.objective(task, kept)
    assert (aim.start.tolist(), aim.anchor.tolist(), aim.pull, aim.shift.tolist()) == ([2.0], [3.0], 2.0, [-1.5])
    left = algorithm.leaves(np.array([1.5]), task, kept)
    assert left.tolist() == pytest.approx([0.375])
    after = algorithm.keeps(left, task, kept)
    assert (after["dual"].tolist(), after["primal"].tolist()) == ([pytest.approx(0.5)], [pytest.approx(3.5)])
    clipped = algorithm.keeps(0.5 * left, task, kept)
    assert clipped["primal"].tolist() == [pytest.approx(3 + (0.1875 + 0.375) / 1.5)]
    assert clipped["dual"].tolist() == [pytest.approx(1.5 - 2 * (0.1875 + 0.375) / 1.5)]
    assert algorithm.step(state, np.array([0.375]))["weights"].tolist() == [3.375]
