"""SCAFFOLD and FedDyn: each is that of its paper, one client moves them by no more than the clip, and noise does more.

The table of what is offered: every style and cohort, but no secret cohort of fixed size where a client is protected.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Task
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.optimizing import Cosine, OptimizerSettings
from studies import DIMENSION, SilentSource

STATEFUL = {"scaffold": Scaffold(), "feddyn": FedDyn(alpha=2.0)}
KEPT = {"scaffold": ("control", "control"), "feddyn": ("drift", "gradient")}  # at the server, at a client
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.6),
    "poisson, secret": PoissonCohort(0.6, secret=True),
    "fixed": FixedCohort(2),
    "fixed, secret": FixedCohort(2, secret=True),
}
STYLES = ("none", "sample", "user", "hybrid", "local")
REFUSED = {("user", "fixed, secret"), ("hybrid", "fixed, secret")}
every = pytest.mark.parametrize("name", STATEFUL)


# ---- what is offered ----


@every
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", COHORTS)
def test_each_style_and_cohort_is_offered_or_refused(open_study, name, style, kind):
    study = open_study(style, cohort=COHORTS[kind], weighting="equal", rounds=2)
    if (style, kind) in REFUSED:
        with pytest.raises(InvalidArgument, match="secret cohort of fixed size"):
            study.federation(algorithm=STATEFUL[name])
        assert study.ledger.reservations() == ()
        return
    results = list(study.federation(algorithm=STATEFUL[name]))
    assert [result.number for result in results] == [1, 2]
    study.require_nothing_free()


def a_plan(**changed):
    local = LocalPlan(size=20, batch_size=5, steps=3, learning_rate=0.1)
    return Plan("study", 2, dict.fromkeys("abcd", local), **{"style": "none", "weighting": "equal", **changed})


@every
def test_unequal_weights_are_refused(name):
    with pytest.raises(InvalidArgument, match="weighting: equal"):
        registry.bind(STATEFUL[name], a_plan(weighting="declared"))


@pytest.mark.parametrize("changed", [{"steps": 4}, {"learning_rate": 0.2}])
def test_scaffold_is_for_equal_steps_and_feddyn_for_any(changed):
    plan = a_plan()
    plan = replace(plan, local={**plan.local, "b": replace(plan.local["b"], **changed)})
    with pytest.raises(InvalidArgument, match="same steps and learning_rate"):
        registry.bind(STATEFUL["scaffold"], plan)
    registry.bind(STATEFUL["feddyn"], plan)


RECIPES = [
    OptimizerSettings(momentum=0.5),
    OptimizerSettings(optimizer="adam"),
    OptimizerSettings(weight_decay=0.1),
    OptimizerSettings(schedule=Cosine()),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_scaffold_is_for_plain_gradient_descent(tmp_path, recipe):
    plan = a_plan()
    data = np.zeros((4, 30)), np.zeros(4, dtype=int)
    clients = [TorchClient(name, data, "", TorchModel(Logistic, "cross_entropy", recipe=recipe)) for name in plan.local]
    weights = clients[0].model.first_weights
    with pytest.raises(InvalidArgument, match="optimizer: sgd without"):
        LocalRunner(clients).enroll(plan, weights, algorithm=STATEFUL["scaffold"], folder=tmp_path)
    LocalRunner(clients).enroll(plan, weights, algorithm=STATEFUL["feddyn"], folder=tmp_path)


def test_option_1_is_refused():
    with pytest.raises(InvalidArgument, match="gradients on all records"):
        Scaffold(option=1)


def test_strengths_and_rates_that_are_none_are_refused():
    for options in ({"alpha": 0.0}, {"alpha": -1.0}):
        with pytest.raises(InvalidArgument, match="alpha"):
            FedDyn(**options)
    with pytest.raises(InvalidArgument, match="server_learning_rate"):
        Scaffold(server_learning_rate=0.0)


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_each_is_under_eighty_lines(name):
    import importlib

    module = importlib.import_module(f"dpfed.federated.algorithms.{name}")
    with open(module.__file__, encoding="utf-8") as stream:  # noqa: PTH123 - a name is all there is
        assert len(stream.readlines()) < 80


# ---- each is that of its paper ----


def problems():
    """The curvatures and the centres of six quadratic losses."""
    draws = np.random.default_rng(1)
    curves = [draws.uniform(0.2, 2.0, DIMENSION) for _ in range(6)]
    return curves, [draws.normal(size=DIMENSION) for _ in range(6)]


CURVES, CENTRES = problems()
OPTIMUM = sum(a * b for a, b in zip(CURVES, CENTRES, strict=True)) / sum(CURVES)
LOCAL = LocalPlan(size=20, batch_size=5, steps=10, learning_rate=0.1)


class Quadratic:
    """A client whose loss is ½ Σ a·(w − b)², which it descends by plain steps."""

    account = ""

    def __init__(self, number: int) -> None:
        self.name = f"c{number}"
        self.curve, self.centre = CURVES[number], CENTRES[number]

    def rehearse(self, local, weights) -> None: ...

    def train(self, local, objective, source):
        weights = np.array(objective.start, dtype=float)
        shift = 0.0 if objective.shift is None else objective.shift
        for _ in range(local.steps):
            gradient = self.curve * (weights - self.centre) + objective.pull * (weights - objective.anchor) + shift
            weights -= local.learning_rate * gradient
        return weights - objective.start


def quadratics(folder, algorithm, rounds, style="none", ledger=None, source=None, **options):
    """A run of clients whose losses have different shapes and centres."""
    local = {f"c{number}": LOCAL for number in range(len(CURVES))}
    plan = Plan("study", rounds, local, style=style, weighting="equal", **options)
    study = "study" if "client" in plan.units else None
    runner = LocalRunner([Quadratic(number) for number in range(len(CURVES))], ledger, study=study)
    return Federation(plan, np.zeros(DIMENSION), runner, folder, algorithm=algorithm, source=source)


@pytest.mark.parametrize("cohort", [All(), FixedCohort(3)], ids=["all", "three"])
def test_without_noise_both_find_the_optimum_of_unequal_clients_and_fedavg_another_point(tmp_path, cohort):
    ends = {}
    for name, algorithm in {**STATEFUL, "fedavg": registry.build("fedavg")}.items():
        source = SeededSource(3)
        *_, last = quadratics(tmp_path / name, algorithm, 60, cohort=cohort, source=source)
        ends[name] = np.abs(last.weights - OPTIMUM).max()
    assert ends["scaffold"] < 1e-6
    assert ends["feddyn"] < 1e-4
    assert ends["fedavg"] > 0.02


@every
@pytest.mark.parametrize("cohort", [All(), FixedCohort(3)], ids=["all", "three"])
@pytest.mark.parametrize("style", ["none", "user"])
def test_without_noise_the_server_keeps_the_mean_of_what_clients_keep(tmp_path, open_ledger, name, cohort, style):
    """In style user some changes are clipped: clients keep what the server used."""
    options = {"client": ClientPlan(clip_norm=0.3, noise_multiplier=5.0)} if style == "user" else {}
    ledger = open_ledger() if style == "user" else None
    source = Drawing(5)
    federation = quadratics(tmp_path / "run", STATEFUL[name], 6, style, ledger, source, cohort=cohort, **options)
    at_server, at_client = KEPT[name]
    states = ClientStates(tmp_path / "run" / "clients", federation.runner.key(federation.plan))
    for _ in federation:
        kept = [states.read(*each)[at_client] for each in federation._checkpoint.counted.items()]
        mean = sum(kept) / len(CURVES)
        np.testing.assert_allclose(federation._checkpoint.state[at_server], mean, atol=1e-8)
        assert np.abs(mean).max() > 1e-3


class Drawing(SeededSource):
    """Draws cohorts as they come, and no noise."""

    def once(self, name):
        return SilentSource() if name.startswith("noise") else super().once(name)


@pytest.fixture
def open_ledger(tmp_path):
    from dpfed.ledger.ledger import Ledger

    opened = []

    def opens():
        opened.append(Ledger(f"sqlite:///{tmp_path / 'ledger.db'}"))
        opened[-1].open("study", epsilon=1e6, delta=1e-5, unit="client")
        return opened[-1]

    yield opens
    for each in opened:
        each.close()


def test_scaffold_takes_the_steps_computed_by_hand():
    """K = 3, η = 0.1, m/N = 1/2: c ← c/2 − mean/0.6, cᵢ ← cᵢ − c − Δᵢ/0.3."""
    scaffold = registry.bind(Scaffold(server_learning_rate=2.0), a_plan(cohort=FixedCohort(2)))
    state = {"weights": np.array([1.0]), "control": np.array([4.0])}
    task = Task(1, scaffold.task(state))
    assert task.vectors == state
    assert scaffold.objective(task, {"control": np.array([1.5])}).shift.tolist() == [2.5]
    assert scaffold.objective(task, {}).shift.tolist() == [4.0]
    assert scaffold.keeps(np.array([0.6]), task, {"control": np.array([1.5])})["control"] == pytest.approx([-4.5])
    after = scaffold.step(state, np.array([0.6]))
    assert after["weights"] == pytest.approx([2.2])
    assert after["control"] == pytest.approx([1.0])


def test_feddyn_takes_the_steps_computed_by_hand():
    """α = 2, m/N = 1/2: h ← h − mean, w ← w + mean − h/2, gᵢ ← gᵢ − 2Δᵢ."""
    feddyn = registry.bind(FedDyn(alpha=2.0), a_plan(cohort=FixedCohort(2)))
    state = {"weights": np.array([1.0]), "drift": np.array([4.0])}
    task = Task(1, feddyn.task(state))
    assert list(task.vectors) == ["weights"]
    aim = feddyn.objective(task, {"gradient": np.array([1.5])})
    assert (aim.pull, aim.shift.tolist(), aim.anchor is task.weights) == (2.0, [-1.5], True)
    assert feddyn.objective(task, {}).shift is None
    assert feddyn.keeps(np.array([0.5]), task, {"gradient": np.array([1.5])})["gradient"].tolist() == [0.5]
    after = feddyn.step(state, np.array([0.5]))
    assert (after["drift"].tolist(), after["weights"].tolist()) == ([3.5], [-0.25])


# ---- how far one client or record moves them ----


@every
@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("cohort", [All(), PoissonCohort(0.9)], ids=["all", "poisson"])
def test_at_zero_noise_one_client_moves_the_mean_of_a_round_by_the_plans_sensitivity_at_most(
    open_study, tmp_path, name, style, cohort
):
    """Its state may be anything, too: whatever it kept and sends, its clipped update is all that counts."""
    means = []
    for number, value in enumerate((0.0, 1e7, -1e7)):
        folder = tmp_path / str(number)
        folder.mkdir()
        study = open_study(style, folder=folder, weighting="equal", rounds=3, cohort=cohort)
        heard = Heard(registry.bind(STATEFUL[name], study.plan))
        study.clients[0].value = value  # from the first round on: it shapes its state
        federation = study.federation(
            study.runner(source=SilentSource()), algorithm=heard.algorithm, source=SilentSource()
        )
        first = heard.listen(federation)
        means.append(first)
    for mean in means[1:]:
        assert np.linalg.norm(mean - means[0]) <= 2 * float(study.plan.sensitivity) * (1 + 1e-9)


class Heard:
    """Notes the mean that an algorithm is given in its first round."""

    def __init__(self, algorithm) -> None:
        self.algorithm = algorithm

    def listen(self, federation):
        before = federation._checkpoint
        next(federation)
        after = federation._checkpoint
        moved = after.weights - before.weights
        return moved if "drift" not in after.state else moved + after.state["drift"] / self.algorithm.alpha


@every
def test_at_zero_noise_a_later_round_moves_by_the_sensitivity_whatever_a_client_kept(open_study, tmp_path, name):
    """From one and the same released past, with any state of one client: the others' updates are the same bits."""
    study = open_study("user", weighting="equal", rounds=3)
    federation = study.federation(algorithm=STATEFUL[name], source=SilentSource())
    next(federation)
    task = federation._make_round(2).task
    updates = []
    for value in (0.0, 1e9):
        states = ClientStates(study.folder / "run" / "clients", federation.runner.key(study.plan))
        states.write("north", 1, {KEPT[name][1]: np.full(DIMENSION, value)})
        study.clients[0].train = lambda local, objective, source: (
            -0.1 * (objective.shift if objective.shift is not None else np.zeros(DIMENSION))
        )
        updates.append({each.client: each.value for each in federation.runner.train(task, list(study.plan.local))})
    one, two = updates
    assert np.abs(one["north"] - two["north"]).max() > 1e6
    assert all(one[other].tobytes() == two[other].tobytes() for other in ("west", "harbour"))
    moved = study.plan.server.query(one, DIMENSION) - study.plan.server.query(two, DIMENSION)
    assert np.linalg.norm(moved) <= 2 * study.plan.client.clip_norm


@every
@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner])
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_at_zero_noise_one_record_moves_a_step_by_the_clip_norm_over_the_batch_whatever_is_kept(
    open_study, tmp_path, name, kind, style
):
    """What was kept follows from released values, so it is the same with and without the record."""
    local = LocalPlan(size=20, batch_size=20, steps=1, learning_rate=0.5, clip_norm=0.25, noise_multiplier=1e-9)
    options = {"client": ClientPlan(clip_norm=1.0, noise_multiplier=1.0)} if style == "hybrid" else {}
    plan = Plan("study", 2, {"a": local, "b": local}, style=style, weighting="equal", **options)
    algorithm = registry.bind(STATEFUL[name], plan)
    draws = np.random.default_rng(2)
    inputs, labels = draws.normal(size=(20, 30)), draws.integers(0, 2, 20)
    changes = []
    for records in (slice(0, 20), slice(1, 20)):
        model = TorchModel(lambda: Logistic().double(), "cross_entropy")
        clients = [TorchClient(each, (inputs[records], labels[records]), each, model) for each in "ab"]
        runner = kind(clients, source=SilentSource())
        runner._plan, runner._algorithm, runner._run = plan, algorithm, "study"
        runner._states = ClientStates(tmp_path)
        state = {KEPT[name][1]: np.full(model.layout.size, 1e3)}
        for client in clients:
            runner._states.write(client.name, 1, state)
        size = model.layout.size
        vectors = {"weights": model.first_weights, "control": np.ones(size), "drift": np.ones(size)}
        task = Task(2, vectors, counted={"a": 1, "b": 1})
        changes.append([each.value for each in runner._train_all(["a", "b"], task, "1:a")])
    for one, two in zip(*changes, strict=True):
        assert 0 < np.linalg.norm(one - two) <= 0.5 * 0.25 / 20 * (1 + 1e-6)
        assert np.linalg.norm(one) > 100


# ---- under noise ----


def test_under_noise_fedavg_is_better_than_both(tmp_path, open_ledger):
    """The server's correction adds up the noise of all rounds, as the how-to says: here by a factor of 3 at least."""
    ledger, ends = open_ledger(), {}
    for name, algorithm in {"fedavg": registry.build("fedavg"), **STATEFUL}.items():
        options = {"client": ClientPlan(clip_norm=3.0, noise_multiplier=0.5)}
        local = {f"c{number}": LOCAL for number in range(len(CURVES))}
        plan = Plan(name, 30, local, style="user", weighting="equal", **options)
        runner = LocalRunner([Quadratic(number) for number in range(len(CURVES))], ledger, study="study")
        federation = Federation(
            plan, np.zeros(DIMENSION), runner, tmp_path / name, algorithm=algorithm, source=SeededSource(4)
        )
        errors = [np.square(result.weights - OPTIMUM).sum() for result in federation]
        ends[name] = np.mean(errors[10:])
    assert ends["scaffold"] > 3 * ends["fedavg"]
    assert ends["feddyn"] > 3 * ends["fedavg"]
