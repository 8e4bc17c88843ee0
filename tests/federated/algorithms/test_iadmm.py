"""IADMM: its equation, both forms of what leaves, and one step only."""

from __future__ import annotations

import numpy as np
import pytest

from admm_plans import RHO, a_plan
from convex import FEATURES, make_clients
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Task
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.objective import LocalObjective
from studies import SilentSource


def test_the_step_of_iadmm_is_the_proximal_equation_with_a_torch_model():
    """z = (ρw + λ + ζz − g)/(ρ + ζ) with ζ = 1/η − ρ, on all records of a logistic regression."""
    rho, rate = 0.8, 0.25
    zeta = 1 / rate - rho
    draws = np.random.default_rng(3)
    inputs, labels = draws.normal(size=(12, 30)), draws.integers(0, 2, 12)
    model = TorchModel(lambda: Logistic().double(), "cross_entropy")
    local = LocalPlan(size=12, batch_size=12, steps=1, learning_rate=rate)
    client = TorchClient("a", (inputs, labels), "", model)
    plan = Plan("study", 1, {"a": local}, style="none", weighting="equal")
    iadmm = registry.bind(Iadmm(rho=rho), plan)
    w, before, dual = draws.normal(size=(3, model.layout.size))
    task, state = Task(1, {"weights": w}), {"primal": before, "dual": dual}
    change = client.train(local, iadmm.objective(task, state), SeededSource(1))
    gradient = -client.train(local, LocalObjective(before), SeededSource(1)) / rate
    expected = (rho * w + dual + zeta * before - gradient) / (rho + zeta)
    np.testing.assert_allclose(w + iadmm.leaves(change, task, state), expected, atol=1e-9)


def test_both_forms_of_iadmm_are_the_same_without_noise_and_clip(tmp_path):
    """In style user, with a clip that nothing reaches and no noise, the model is that of style none."""
    from dpfed.ledger.ledger import Ledger

    clients, schedule = make_clients("ridge"), (0.5, 1.0, 2.0, 1.5)
    ends = {}
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.open("study", epsilon=1e6, delta=1e-5, unit="client")
        for style in ("none", "user"):
            options = {"client": ClientPlan(clip_norm=1e3, noise_multiplier=5.0)} if style == "user" else {}
            plan = a_plan("iadmm", 4, [each.name for each in clients], style=style, **options)
            runner = LocalRunner(clients, *([ledger] if options else []), study="study" if options else None)
            algorithm = Iadmm(rho=schedule)
            weights = np.zeros(FEATURES)
            source = SilentSource()
            federation = Federation(plan, weights, runner, tmp_path / style, algorithm=algorithm, source=source)
            *_, last = federation
            ends[style] = last.weights
    np.testing.assert_allclose(ends["user"], ends["none"], atol=1e-7)


def test_iadmm_is_for_one_local_step():
    with pytest.raises(InvalidArgument, match="write steps: 1"):
        registry.bind(Iadmm(rho=RHO), a_plan("iiadmm"))
