"""Every ADMM is that of its paper: its steps by hand, the optimum that all data in one place have, and its refusals."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from admm_plans import RHO, STEPS, a_plan
from convex import FEATURES, RECORDS, find_optimum, make_clients
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.admm import make_schedule
from dpfed.federated.algorithms.exact_admm import ExactAdmm
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.algorithms.iceadmm import Iceadmm
from dpfed.federated.algorithms.iiadmm import Iiadmm
from dpfed.federated.engine import Federation
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.cohort import All, FixedCohort
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.optimizing import OptimizerSettings

KINDS = {"admm": ExactAdmm, "iadmm": Iadmm, "iceadmm": Iceadmm, "iiadmm": Iiadmm}
every = pytest.mark.parametrize("name", KINDS)


def run(folder, name, kind, rounds, rho=RHO, **options):
    clients = make_clients(kind)
    plan = a_plan(name, rounds, [client.name for client in clients], **options)
    runner = LocalRunner(clients)
    return Federation(plan, np.zeros(FEATURES), runner, folder, algorithm=KINDS[name](rho=rho), source=SeededSource(2))


# ---- the optimum ----

ROUNDS = {("iadmm", "logistic", "all"): 90, ("iadmm", "logistic", "three"): 140, ("iadmm", "ridge", "three"): 60}
ROUNDS |= {("iiadmm", kind, "three"): 60 for kind in ("ridge", "logistic")}


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
@pytest.mark.parametrize(
    ("name", "cohort"),
    [("admm", "all"), ("admm", "three"), ("iadmm", "all"), ("iadmm", "three"), ("iceadmm", "all"), ("iiadmm", "three")],
)
def test_without_noise_each_reaches_the_optimum_of_all_data_in_one_place(tmp_path, name, kind, cohort):
    """Clients are unequal: the mean of their own optima, to which FedAvg tends, is farther from it than 0.02."""
    best = find_optimum(make_clients(kind))
    rounds = ROUNDS.get((name, kind, cohort), 40)
    *_, last = run(tmp_path, name, kind, rounds, cohort=All() if cohort == "all" else FixedCohort(3))
    assert np.abs(last.weights - best).max() < 1e-3


def test_a_penalty_that_changes_by_round_reaches_the_same_optimum(tmp_path):
    best = find_optimum(make_clients("ridge"))
    schedule = tuple(np.linspace(0.4, 1.6, 40))
    for name in KINDS:
        steps = {"admm": 90}.get(name, STEPS[name])
        federation = run_with(tmp_path / name, name, schedule, steps)
        *_, last = federation
        assert np.abs(last.weights - best).max() < 1e-3, name


def run_with(folder, name, schedule, steps):
    clients = make_clients("ridge")
    local = LocalPlan(size=RECORDS, batch_size=RECORDS, steps=steps, learning_rate=0.4)
    plan = Plan("study", len(schedule), {each.name: local for each in clients}, style="none", weighting="equal")
    return Federation(plan, np.zeros(FEATURES), LocalRunner(clients), folder, algorithm=KINDS[name](rho=schedule))


# ---- the duals ----


@pytest.mark.parametrize("name", ["admm", "iadmm", "iiadmm"])
def test_without_noise_the_server_keeps_the_mean_of_the_clients_duals(tmp_path, name):
    federation = run(tmp_path, name, "ridge", 5, cohort=FixedCohort(3))
    states = ClientStates(tmp_path / "clients")
    for _ in federation:
        kept = [states.read(*each)["dual"] for each in federation._checkpoint.counted.items()]
        np.testing.assert_allclose(federation._checkpoint.state["dual"], sum(kept) / 6, atol=1e-9)
        assert np.abs(sum(kept)).max() > 1e-3


# ---- the penalty ----


def test_a_schedule_is_one_number_one_by_round_or_a_start_and_a_factor():
    assert make_schedule(3, 1.0, 2) == (3.0, 3.0)
    assert make_schedule([1, 2], 1.0, 2) == (1.0, 2.0)
    assert make_schedule(8, 0.5, 4) == (8.0, 4.0, 2.0, 1.0)
    assert registry.build("iadmm", rho=[1.0, 2.0]) == Iadmm(rho=(1.0, 2.0))


@every
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rho": 0.0}, "rho must be a positive"),
        ({"rho": -1.0}, "rho must be a positive"),
        ({"rho": "balanced"}, "rho must be a positive"),
        ({"rho": []}, "rho must be a positive"),
        ({"rho": [1.0, 0.0]}, "rho must be a positive"),
        ({"rho": 1.0, "rho_factor": 0.0}, "rho_factor must be a positive"),
        ({"rho": [1.0, 1.0], "rho_factor": 2.0}, "no factor"),
    ],
)
def test_a_penalty_that_is_none_is_refused(name, options, why):
    with pytest.raises(InvalidArgument, match=why):
        KINDS[name](**options)


@every
def test_a_penalty_for_other_rounds_or_one_that_overflows_is_refused(name):
    with pytest.raises(InvalidArgument, match="3 numbers for 2 rounds"):
        registry.bind(KINDS[name](rho=[1.0, 1.0, 1.0]), a_plan(name))
    with pytest.raises(InvalidArgument, match="rho must be a positive finite number"):
        registry.bind(KINDS[name](rho=1.0, rho_factor=1e300), a_plan(name, rounds=3))


@every
def test_steps_too_long_for_the_penalty_are_refused(name):
    registry.bind(KINDS[name](rho=2.5), a_plan(name))  # ζ = 0
    with pytest.raises(InvalidArgument, match="learning_rate × rho must be at most 1"):
        registry.bind(KINDS[name](rho=2.6), a_plan(name))


@every
def test_unequal_weights_are_refused(name):
    with pytest.raises(InvalidArgument, match="weighting: equal"):
        registry.bind(KINDS[name](rho=RHO), a_plan(name, weighting="declared"))


@every
def test_only_plain_steps_will_do(tmp_path, name):
    plan = a_plan(name)
    data = np.zeros((4, 30)), np.zeros(4, dtype=int)
    model = TorchModel(Logistic, "cross_entropy", recipe=OptimizerSettings(momentum=0.5))
    clients = [TorchClient(each, data, "", model) for each in plan.local]
    with pytest.raises(InvalidArgument, match="optimizer: sgd without"):
        LocalRunner(clients).enroll(plan, model.first_weights, algorithm=KINDS[name](rho=RHO), folder=tmp_path)


def test_what_is_bound_twice_is_what_is_bound_once():
    """The engine binds an algorithm and the runner binds it again."""
    for name, kind in KINDS.items():
        once = registry.bind(kind(rho=RHO), a_plan(name))
        assert registry.bind(once, a_plan(name)) == once


@pytest.mark.parametrize("module", ["exact_admm", "iadmm", "iceadmm", "iiadmm"])
def test_each_is_under_eighty_lines(module):
    found = importlib.import_module(f"dpfed.federated.algorithms.{module}")
    with open(found.__file__, encoding="utf-8") as stream:  # noqa: PTH123 - a name is all there is
        assert len(stream.readlines()) < 80
