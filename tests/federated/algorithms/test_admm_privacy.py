"""What an ADMM lets out: vectors that are clipped and noised, duals made of these alone, and nothing of a primal twice.

False alarms: every bound on noise is a χ² quantile at 1e-6, and what is seeded is seeded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy.stats import chi2

from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.iadmm import Iadmm
from dpfed.federated.algorithms.iceadmm import Iceadmm
from dpfed.federated.algorithms.iiadmm import Iiadmm
from dpfed.federated.engine import Federation
from dpfed.federated.messages import Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.randomness import SeededSource
from studies import DIMENSION, SilentSource, Study

FALSE_ALARM = 1e-6
ADMMS = {"iadmm": Iadmm(rho=1.0), "iceadmm": Iceadmm(rho=1.0), "iiadmm": Iiadmm(rho=1.0)}
COMBINED = ("iadmm", "iceadmm")  # where the server adds the noise
every = pytest.mark.parametrize("name", ADMMS)
every_combined = pytest.mark.parametrize("name", COMBINED)


def with_one_step(study: Study) -> Study:
    local = {name: replace(part, steps=1) for name, part in study.plan.local.items()}
    study.plan = replace(study.plan, local=local)
    return study


# ---- how far one client moves a release ----


@every_combined
@pytest.mark.parametrize("style", ["user", "hybrid"])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
def test_at_zero_noise_one_client_moves_the_mean_of_a_round_by_the_plans_sensitivity(
    open_study, tmp_path, name, style, adjacency
):
    """Whatever it kept and sends: present or absent by the sensitivity, in another's place by twice that; attained."""
    means = {}
    for value in (None, 1e4, -1e4):
        folder = tmp_path / str(value)
        folder.mkdir()
        study = with_one_step(open_study(style, folder=folder, weighting="equal", rounds=3))
        if value is None:
            study.clients[0].train = fail
        else:
            study.clients[0].value = value
        runner = study.runner(source=SilentSource())
        federation = study.federation(runner, algorithm=ADMMS[name], source=SilentSource())
        before = federation.weights
        next(federation)
        means[value] = federation.weights - before
    bound = float(study.plan.sensitivity)
    if adjacency == ADD_REMOVE:
        assert np.linalg.norm(means[1e4] - means[None]) == pytest.approx(bound)
    else:
        assert np.linalg.norm(means[1e4] - means[-1e4]) == pytest.approx(2 * bound)


def fail(local, objective, source):
    raise RuntimeError("absent")


@every_combined
def test_at_zero_noise_a_later_round_moves_by_the_sensitivity_whatever_a_client_kept(open_study, name):
    """From one and the same released past, with any dual and primal of one client."""
    study = with_one_step(open_study("user", weighting="equal", rounds=3))
    federation = study.federation(algorithm=ADMMS[name], source=SilentSource())
    next(federation)
    task = federation._make_round(2).task
    updates = []
    for value in (0.0, 1e9):
        states = ClientStates(study.folder / "run" / "clients", federation.runner.key(study.plan))
        states.write("north", 1, {"dual": np.full(DIMENSION, value), "primal": np.full(DIMENSION, -value)})
        updates.append({each.client: each.value for each in federation.runner.train(task, list(study.plan.local))})
    one, two = updates
    assert np.abs(one["north"] - two["north"]).max() > 1e6
    assert all(one[other].tobytes() == two[other].tobytes() for other in ("west", "harbour"))
    moved = study.plan.server.query(one, DIMENSION) - study.plan.server.query(two, DIMENSION)
    assert np.linalg.norm(moved) <= 2 * study.plan.client.clip_norm


# ---- how far one record moves a step ----


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner])
@pytest.mark.parametrize(
    ("name", "style"), [*((name, "sample") for name in ADMMS), *((name, "hybrid") for name in COMBINED)]
)
@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
def test_at_zero_noise_one_record_moves_the_primal_by_the_clip_norm_over_batch_and_rho_plus_zeta(
    tmp_path, name, kind, style, norm, adjacency
):
    """C/(b·(ρ + ζ)) with one record less and twice that with another one: what is kept is the same in both worlds."""
    rate, clip, size = 0.5, 0.25, 20
    local = LocalPlan(
        size=size,
        batch_size=size,
        steps=1,
        learning_rate=rate,
        clip_norm=clip,
        noise_multiplier=1e-9,
        norm=norm,
        adjacency=adjacency,
    )
    options = {"client": ClientPlan(clip_norm=1.0, noise_multiplier=1.0)} if style == "hybrid" else {}
    plan = Plan("study", 2, {"a": local, "b": local}, style=style, weighting="equal", **options)
    draws = np.random.default_rng(2)
    inputs, labels = draws.normal(size=(size, 30)), draws.integers(0, 2, size)
    other, label = inputs.copy(), labels.copy()
    other[0], label[0] = -1e3 * inputs[0], labels[0]  # a gradient against the one it had
    less = (inputs[1:], labels[1:])
    primals = []
    for data in ((inputs, labels), less if adjacency == ADD_REMOVE else (other, label)):
        found = train_second_round(tmp_path, kind, plan, ADMMS[name], data)
        primals.append([task.weights + left if name == "iiadmm" else primal for task, left, primal in found])
    bound = clip / (size * (1.0 + (1 / rate - 1.0))) * (1 if adjacency == ADD_REMOVE else 2)
    order = 1 if norm == "l1" else 2
    for one, two in zip(*primals, strict=True):
        moved = np.linalg.norm(one - two, order)
        assert 0.3 * bound < moved <= bound * (1 + 1e-6)


def train_second_round(folder, kind, plan, algorithm, data):
    """The task, the vector that left and the primal that is kept for each of two clients with a large dual."""
    model = TorchModel(lambda: Logistic().double(), "cross_entropy")
    clients = [TorchClient(each, data, each, model) for each in "ab"]
    runner = kind(clients, source=SilentSource())
    runner._plan, runner._algorithm, runner._run = plan, registry.bind(algorithm, plan), "study"
    runner._states = ClientStates(folder)
    size = model.layout.size
    state = {"dual": np.full(size, 1e3), **({"primal": np.full(size, 0.5)} if algorithm.goes_on else {})}
    for client in clients:
        runner._states.write(client.name, 1, state)
    task = Task(2, {"weights": model.first_weights}, counted={"a": 1, "b": 1})
    for trained in runner._train_all(["a", "b"], task, "1:a"):
        left = runner._algorithm.leaves(trained.value, task, state)
        kept = runner._algorithm.keeps(left, task, state)
        yield task, left, kept.get("primal")


# ---- everything that leaves a client ----


@dataclass
class Scattered:
    """A client whose primal is drawn anew in each round, far apart: no round tells anything of another."""

    name: str
    account: str
    size: int
    noise: float  # that its steps add
    primals: list = field(default_factory=list)

    def rehearse(self, local, weights) -> None: ...

    def train(self, local, objective, source):
        draws = np.random.default_rng([len(self.primals), *self.name.encode()])
        primal = 1e4 * draws.normal(size=self.size)
        self.primals.append(primal)
        return primal + self.noise * draws.normal(size=self.size) - objective.start


class Recorder(LocalRunner):
    """Writes down every task that is sent and every vector that leaves a client."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.sent: list[Task] = []
        self.left: list[dict[str, np.ndarray]] = []

    def train(self, task, cohort):
        self.sent.append(task)
        self.left.append({})
        for outcome in super().train(task, cohort):
            if isinstance(outcome, Update):
                self.left[-1][outcome.client] = np.array(outcome.value)
            yield outcome


RHOS, NAMES, SIZE = (1.0, 1.2, 1.2, 0.9, 1.0), ("a", "b", "c"), 1000
LOCAL = ClientPlan(clip_norm=4e6, noise_multiplier=2e-4)  # nothing is as long as that
NOISE = LOCAL.clip_norm * LOCAL.noise_multiplier


def open_run(folder, ledger, algorithm, style, rounds=5):
    """A run of scattered clients, recorded; the noise on what leaves has a deviation of NOISE."""
    clients = [Scattered(name, name, SIZE, 0.0 if style == "local" else NOISE) for name in NAMES]
    noise = {} if style == "local" else {"clip_norm": 1.0, "noise_multiplier": 100.0}
    local = LocalPlan(size=50, batch_size=50, steps=1, learning_rate=0.4, **noise)
    options = {"client": LOCAL} if style == "local" else {}
    plan = Plan("study", rounds, dict.fromkeys(NAMES, local), style=style, weighting="equal", **options)
    plan = replace(plan, max_update_norm=1e9)
    whom = {"unit": "client", "adjacency": REPLACE_ONE} if style == "local" else {"unit": "record"}
    for client in clients:
        ledger.open(client.name, epsilon=9e8, delta=1e-5, **whom)
    runner = Recorder(clients, ledger, source=SeededSource(3))
    return Federation(plan, np.zeros(SIZE), runner, folder / "run", algorithm=algorithm, source=SeededSource(4))


@pytest.mark.parametrize("style", ["sample", "local"])
def test_least_squares_on_all_iceadmm_traffic_finds_no_primal_better_than_its_own_release(tmp_path, ledger, style):
    federation = open_run(tmp_path, ledger, Iceadmm(rho=RHOS), style)
    *_, last = federation
    longest = max(np.linalg.norm(left) for each in federation.runner.left for left in each.values())
    assert longest < 0.99 * LOCAL.clip_norm  # so that all of it is linear
    require_each_primal_hidden(federation.runner, last.weights, style)


def require_each_primal_hidden(runner, last, style):
    """The best linear guess from all rounds, fitted with the truth at hand, errs by the noise of the release itself."""
    models = [task.weights for task in runner.sent] + [last]
    seen = np.array([*models, *(left for each in runner.left for left in each.values()), np.ones(SIZE)]).T
    seen = seen / np.linalg.norm(seen, axis=0).clip(1e-300)
    basis, sizes, _ = np.linalg.svd(seen, full_matrices=False)
    basis = basis[:, sizes > 1e-10 * sizes[0]]
    freedom = SIZE - basis.shape[1]
    for client in runner.clients.values():
        for number, primal in enumerate(client.primals):
            missed = np.square(primal - basis @ (basis.T @ primal)).sum() / noise_on_primal(style, number) ** 2
            assert missed > chi2.ppf(FALSE_ALARM, freedom), f"{client.name} {number} is known too well"
            assert missed < chi2.isf(FALSE_ALARM, freedom)  # its own release tells that much


def noise_on_primal(style, number):
    """In style local noise is added to (1 + ρ/ρ′)·z and more, else to z."""
    after = RHOS[min(number + 1, len(RHOS) - 1)]
    return NOISE / (1 + RHOS[number] / after) if style == "local" else NOISE


@pytest.mark.parametrize("style", ["sample", "local"])
def test_least_squares_would_find_what_an_exact_dual_gives_away(tmp_path, ledger, style):
    """The attack works: with the duals that another system sends beside the noised primals, no noise is left."""
    federation = open_run(tmp_path, ledger, Iceadmm(rho=RHOS), style)
    *_, last = federation
    runner = federation.runner
    duals = dict.fromkeys(NAMES, 0.0)
    for number, sent in enumerate(runner.sent):
        for client in runner.clients.values():
            duals[client.name] = duals[client.name] + RHOS[number] * (sent.weights - client.primals[number])
            runner.left[number][f"dual of {client.name}"] = duals[client.name]
    with pytest.raises(AssertionError, match="a 0 is known too well"):
        require_each_primal_hidden(runner, last.weights, style)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


@every
def test_the_noise_of_a_round_is_in_all_that_leaves_a_client(tmp_path, name):
    """Of real records: what left, less the same computed without noise from the same past, is the plan's noise."""
    draws = np.random.default_rng(5)
    model = TorchModel(lambda: Logistic(features=300).double(), "cross_entropy")
    size, rate, noise = 30, 0.4, 2.0
    clients = [
        TorchClient(each, (draws.normal(size=(size, 300)), draws.integers(0, 2, size)), each, model) for each in NAMES
    ]
    local = LocalPlan(size=size, batch_size=size, steps=1, learning_rate=rate, clip_norm=1.0, noise_multiplier=noise)
    plan = Plan("study", 4, dict.fromkeys(NAMES, local), style="sample", weighting="equal")
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        for each in NAMES:
            ledger.open(each, epsilon=1e3, delta=1e-5, unit="record")
        runner = Silenced(clients, ledger, source=SeededSource(8))
        options = {"algorithm": ADMMS[name], "layout": model.layout, "source": SeededSource(9)}
        for _ in Federation(plan, model.first_weights, runner, tmp_path / "run", **options):
            pass
    times = 1.0 if name in ("iadmm", "iiadmm") else 2.0  # 1 + ρ/ρ′
    for number, left in enumerate(runner.left):
        for client, value in left.items():
            found = (value - runner.quiet[number][client]) / (times * rate * noise / size)
            assert (found != 0).all()
            total = np.square(found).sum()
            assert chi2.ppf(FALSE_ALARM, len(found)) < total < chi2.isf(FALSE_ALARM, len(found))


class Silenced(Recorder):
    """Beside each vector that leaves, the one that would have left without the noise of this round."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.quiet: list[dict[str, np.ndarray]] = []

    def _train_all(self, names, task, head):
        self.quiet.append({})
        for name in names:
            aim, state = self._make_objective(name, task).copied(), self._read_state(name, task)
            local = replace(self._plan.local[name], noise_multiplier=1e-12)
            change = self.clients[name].train(local, aim, SilentSource())
            self.quiet[-1][name] = self._algorithm.leaves(change, task, state)
        yield from super()._train_all(names, task, head)


@every
@pytest.mark.parametrize("style", ["sample", "local"])
def test_what_a_client_keeps_is_made_of_what_left_it(tmp_path, ledger, name, style):
    """From the record of what left alone, anybody computes the duals and primals that clients have."""
    federation = open_run(tmp_path, ledger, ADMMS[name], style, rounds=3)
    runner, algorithm = federation.runner, registry.bind(ADMMS[name], federation.plan)
    states = ClientStates(tmp_path / "run" / "clients", runner.key(federation.plan))
    followed = {each: {} for each in NAMES}
    for number in range(1, 3):
        next(federation)
        require_followed(states, followed, runner, algorithm, number)


@every
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_at_zero_noise_whatever_a_client_is_and_kept_moves_what_leaves_it_by_two_clip_norms_in_style_local(
    open_study, tmp_path, name, norm
):
    sent = []
    for sign in (-1, 1):
        folder = tmp_path / str(sign)
        folder.mkdir()
        client = ClientPlan(clip_norm=0.5, noise_multiplier=5.0, norm=norm)
        study = with_one_step(open_study("local", folder=folder, weighting="equal", client=client))
        runner = study.runner(source=SilentSource())
        federation = study.federation(runner, algorithm=ADMMS[name], source=SilentSource())
        next(federation)
        states = ClientStates(folder / "run" / "clients", runner.key(study.plan))
        states.write("north", 1, {"dual": np.full(DIMENSION, 1e5 * sign), "primal": np.full(DIMENSION, -1e5 * sign)})
        study.clients[0].train = lambda *_, sign=sign: np.array([-1e6 * sign, 0.0, 0.0])
        task = federation._make_round(2).task
        sent.append(next(each.value for each in runner.train(task, ["north"]) if isinstance(each, Update)))
    moved = np.linalg.norm(sent[0] - sent[1], 1 if norm == "l1" else 2)
    assert moved == pytest.approx(2 * 0.5, rel=1e-3)
    assert moved <= 2 * 0.5 * (1 + 2.0**-30)


def require_followed(states, followed, runner, algorithm, number):
    for client, before in followed.items():
        followed[client] = algorithm.keeps(runner.left[number - 1][client], runner.sent[number - 1], before)
        kept = states.read(client, number)
        assert kept.keys() == followed[client].keys()
        assert all(kept[key].tobytes() == followed[client][key].tobytes() for key in kept)


@every_combined
@pytest.mark.parametrize("style", ["user", "hybrid"])
def test_what_a_client_keeps_is_made_of_what_the_server_uses_of_it(open_study, name, style):
    """The clip of the server comes first: a client that sends 1e4 keeps what a vector of the clip norm says."""
    study = with_one_step(open_study(style, weighting="equal", rounds=2))
    study.clients[0].value = 1e4
    federation = study.federation(algorithm=ADMMS[name])
    next(federation)
    kept = ClientStates(study.folder / "run" / "clients", federation.runner.key(study.plan)).read("north", 1)
    assert np.linalg.norm(kept["dual"]) == pytest.approx(study.plan.client.clip_norm / 2)  # ρ·clip/(1 + ρ/ρ′)
