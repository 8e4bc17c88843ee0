from __future__ import annotations

import numpy as np
import pytest

from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.messages import Task
from dpfed.plan.plan import FixedCohort, LocalPlan, Plan

LOCAL = dict.fromkeys("abcd", LocalPlan(size=20, batch_size=5, steps=2))


def test_one_round_by_hand():
    plan = Plan("study", 3, LOCAL, style="none", weighting="equal", cohort=FixedCohort(2))
    algorithm = FedDyn(alpha=0.5).bound_to(plan)
    state = algorithm.start(np.array([1.0]))
    task = Task(1, algorithm.task(state))
    first = algorithm.objective(task, {})
    assert (first.pull, first.shift) == (0.5, None)
    kept = algorithm.keeps(np.array([2.0]), task, {})
    assert kept["gradient"].tolist() == [-1.0]  # 0 − α · change
    assert algorithm.objective(task, kept).shift.tolist() == [1.0]
    after = algorithm.step(state, np.array([2.0]))
    assert after["drift"].tolist() == [-0.5]  # 0 − α · m/N · mean
    assert after["weights"].tolist() == [pytest.approx(1.0 + 2.0 + 0.5 / 0.5)]
