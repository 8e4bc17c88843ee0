"""Every ADMM is that of its paper: its steps by hand, the optimum that all data in one place have, and its refusals."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from convex import FEATURES, RECORDS, find_optimum, make_clients
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.admm import make_schedule
from dpfed.federated.algorithms.exact_admm import ExactAdmm
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.algorithms.iceadmm import Iceadmm
from dpfed.federated.algorithms.iiadmm import Iiadmm
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Task
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.cohort import All, FixedCohort
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.objective import LocalObjective
from dpfed.training.optimizing import OptimizerSettings
from studies import SilentSource

RHO = 1.0
STEPS = {"admm": 30, "iadmm": 1, "iceadmm": 5, "iiadmm": 5}
KINDS = {"admm": ExactAdmm, "iadmm": Iadmm, "iceadmm": Iceadmm, "iiadmm": Iiadmm}
SERVER = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
every = pytest.mark.parametrize("name", KINDS)


def a_plan(name, rounds=2, clients="abcd", **changed):
    local = LocalPlan(size=RECORDS, batch_size=RECORDS, steps=STEPS[name], learning_rate=0.4)
    options = {"style": "none", "weighting": "equal", **changed}
    return Plan("study", rounds, dict.fromkeys(clients, local), **options)


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


# ---- the equations ----


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


def small(name, rate=0.2, **changed):
    plan = a_plan(name, **changed)
    return replace(plan, local={key: replace(part, learning_rate=rate) for key, part in plan.local.items()})


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


def test_iadmm_is_for_one_local_step():
    with pytest.raises(InvalidArgument, match="write steps: 1"):
        registry.bind(Iadmm(rho=RHO), a_plan("iiadmm"))


def test_exact_admm_is_refused_where_its_steps_do_not_solve_the_local_problem():
    """(1 − 0.4·1)^K ≤ 1e-6 from K = 28 on; the smallest penalty decides."""
    registry.bind(ExactAdmm(rho=RHO), with_steps(28))
    for plan, rho in ((with_steps(27), RHO), (with_steps(28), (RHO, 0.9))):
        with pytest.raises(InvalidArgument, match="take "):
            registry.bind(ExactAdmm(rho=rho), plan)
    plan = with_steps(100)
    plan = replace(plan, local={name: replace(part, batch_size=RECORDS - 1) for name, part in plan.local.items()})
    with pytest.raises(InvalidArgument, match="all records"):
        registry.bind(ExactAdmm(rho=RHO), plan)


def with_steps(steps):
    plan = a_plan("admm")
    return replace(plan, local={name: replace(part, steps=steps) for name, part in plan.local.items()})


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
