"""IIADMM by hand: the primal leaves, and both sides follow the dual."""

from __future__ import annotations

import numpy as np

from admm_plans import small
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.iiadmm import Iiadmm
from dpfed.federated.messages import Task
from dpfed.plan.cohort import FixedCohort


def test_steps_by_hand_where_the_primal_leaves():
    """ρ = 2 then 4, m/N = 1/2: λ ← λ − 2·left; λ̄ ← λ̄ − mean; w ← w + mean − λ̄/4."""
    algorithm = registry.bind(Iiadmm(rho=(2.0, 4.0), rho_factor=1.0), small("iiadmm", cohort=FixedCohort(2)))
    state = {"weights": np.array([1.0]), "dual": np.array([4.0]), "rounds": np.array([0.0])}
    task = Task(1, algorithm.task(state))
    assert list(task.vectors) == ["weights"]
    aim = algorithm.objective(task, {"dual": np.array([1.5])})
    assert (aim.pull, aim.shift.tolist(), aim.start is task.weights) == (2.0, [-1.5], True)
    assert algorithm.objective(task, {}).shift is None
    assert algorithm.leaves(np.array([0.5]), task, {"dual": np.array([1.5])}).tolist() == [0.5]
    assert algorithm.keeps(np.array([0.5]), task, {"dual": np.array([1.5])}) == {"dual": np.array([0.5])}
    after = algorithm.step(state, np.array([0.5]))
    assert {name: value.tolist() for name, value in after.items()} == {
        "weights": [1.0 + 0.5 - 3.5 / 4],
        "dual": [3.5],
        "rounds": [1.0],
    }
