from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.federated.messages import Task
from dpfed.plan.plan import FixedCohort, LocalPlan, Plan

LOCAL = dict.fromkeys("abcd", LocalPlan(size=20, batch_size=5, steps=2, learning_rate=0.25))


def test_one_round_by_hand():
    plan = Plan("study", 3, LOCAL, style="none", weighting="equal", cohort=FixedCohort(2))
    algorithm = Scaffold(server_learning_rate=2.0).bound_to(plan)  # m/N = 1/2, Kη = 1/2
    state = {"weights": np.array([1.0]), "control": np.array([4.0])}
    task = Task(1, algorithm.task(state))
    assert algorithm.objective(task, {"control": np.array([1.0])}).shift.tolist() == [3.0]  # c − cᵢ
    kept = algorithm.keeps(np.array([2.0]), task, {"control": np.array([1.0])})
    assert kept["control"].tolist() == [1.0 - 4.0 - 2.0 / 0.5]  # cᵢ − c − change/(Kη)
    after = algorithm.step(state, np.array([2.0]))
    assert after["weights"].tolist() == [5.0]
    assert after["control"].tolist() == [0.5 * 4.0 - 0.5 / 0.5 * 2.0]


def test_option_one_needs_gradients_on_all_records_and_is_refused():
    with pytest.raises(InvalidArgument, match="option 1 needs gradients on all records"):
        Scaffold(option=1)
