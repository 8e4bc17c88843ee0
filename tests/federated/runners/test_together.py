"""A cohort trained at once is the cohort trained one by one, and no client's data moves another's bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dpfed.federated.algorithms.fedavg import FedAvg
from dpfed.federated.algorithms.fedprox import FedProx
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.ledger.ledger import Ledger
from dpfed.models.cnn import CNN
from dpfed.models.logistic import Logistic
from dpfed.models.mlp import MLP
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.randomness import SeededSource
from dpfed.training.optimizing import Cosine, OptimizerSettings

SIZES = {"a": 20, "b": 20, "c": 13, "d": 31, "e": 1}
CASES = {
    "logistic": (Logistic, (30,), OptimizerSettings()),
    "momentum": (Logistic, (30,), OptimizerSettings(momentum=0.9, weight_decay=0.01, schedule=Cosine())),
    "adam": (Logistic, (30,), OptimizerSettings(optimizer="adamw", weight_decay=0.1)),
    "mlp": (lambda: MLP(features=12, hidden=(8,), classes=3), (12,), OptimizerSettings()),
    "cnn": (CNN, (1, 28, 28), OptimizerSettings()),
    "deep": (lambda: MLP(features=3, hidden=(33, 33), classes=2), (3,), OptimizerSettings(weight_decay=0.01)),
}


def world(case: str, changed: str = "", sizes=SIZES):
    """A model and clients with made-up data; that of `changed` is another."""
    factory, shape, recipe = CASES[case]
    model = TorchModel(factory, "cross_entropy", recipe=recipe)
    clients = []
    for number, (name, size) in enumerate(sizes.items()):
        draws = np.random.default_rng([number, name == changed])
        data = draws.normal(size=(size, *shape)), draws.integers(0, 2, size)
        clients.append(TorchClient(name, data, f"{name}-2026", model))
    return model, clients


def plan(clients, noise: float | None, style: str = "sample", **settings) -> Plan:
    clip = {} if noise is None else {"clip_norm": 0.5, "noise_multiplier": noise}
    local = {"batch_size": 10, "steps": 3, "learning_rate": 0.05, **clip, **settings}
    parts = {client.name: LocalPlan(size=max(20, len(client.examples)), **local) for client in clients}
    return Plan("study", 1, parts, style=style)


def changes(kind, case, noise, tmp_path, pull=0.0, changed="", sizes=SIZES, **options) -> dict[str, np.ndarray]:
    model, clients = world(case, changed, sizes)
    made = plan(clients, noise, "none" if noise is None else "sample")
    with Ledger(f"sqlite:///{tmp_path / kind.__name__}{len(list(tmp_path.iterdir()))}.db") as ledger:
        for client in clients:
            ledger.open(client.account, epsilon=1e6, delta=1e-5)
        runner = kind(clients, ledger, source=SeededSource(7), **options)
        runner.enroll(made, model.first_weights, algorithm=FedProx(pull))
        weights = model.first_weights + np.float32(0.01)
        outcomes = list(runner.train(Task(1, {"weights": weights}), [client.name for client in clients]))
    return {update.client: update.value for update in outcomes}


@dataclass(frozen=True)
class Ending(FedAvg):
    """Ends the process when it is asked what a client minimises."""

    def objective(self, task, state):
        raise SystemExit(3)


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner])
def test_an_algorithm_that_ends_the_process_is_a_failure_of_the_client(kind):
    model, clients = world("mlp")
    runner = kind(clients)
    runner.enroll(plan(clients, None, "none"), model.first_weights, algorithm=Ending())
    outcomes = list(runner.train(Task(1, {"weights": model.first_weights}), list(SIZES)))
    assert outcomes == [Failure(name, "failed") for name in SIZES]


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    assert set(one) == set(other) == set(SIZES)
    largest = max(np.abs(value).max() for value in one.values())
    return max(np.abs(one[name] - other[name]).max() for name in one) / largest


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", [None, 0.5])
def test_a_cohort_at_once_is_the_cohort_one_by_one(case, noise, tmp_path):
    one_by_one = changes(LocalRunner, case, noise, tmp_path)
    at_once = changes(EnsembleRunner, case, noise, tmp_path)
    assert apart(one_by_one, at_once) < 1e-5


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("noise", [None, 0.5])
@pytest.mark.parametrize("case", ["logistic", "mlp", "cnn"])
def test_first_steps_in_one_pass_can_be_pinned_and_change_nothing(case, noise, one_pass, tmp_path):
    one_by_one = changes(LocalRunner, case, noise, tmp_path)
    assert apart(one_by_one, changes(EnsembleRunner, case, noise, tmp_path, one_pass=one_pass)) < 1e-5


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_the_number_trained_at_once_can_be_pinned_and_changes_nothing(chunk, tmp_path):
    one_by_one = changes(LocalRunner, "mlp", 0.5, tmp_path)
    assert apart(one_by_one, changes(EnsembleRunner, "mlp", 0.5, tmp_path, chunk=chunk)) < 1e-5


def test_the_proximal_term_is_each_models_own(tmp_path):
    pulled = changes(EnsembleRunner, "mlp", 0.5, tmp_path, pull=3.0)
    assert apart(changes(LocalRunner, "mlp", 0.5, tmp_path, pull=3.0), pulled) < 1e-5
    assert apart(changes(LocalRunner, "mlp", 0.5, tmp_path), pulled) > 1e-3


@pytest.mark.parametrize("case", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("noise", [None, 0.5])
@pytest.mark.parametrize("one_pass", [False, True])
def test_other_data_of_one_client_leave_all_others_bit_for_bit(case, noise, one_pass, tmp_path):
    before = changes(EnsembleRunner, case, noise, tmp_path, one_pass=one_pass)
    after = changes(EnsembleRunner, case, noise, tmp_path, one_pass=one_pass, changed="b")
    assert not np.array_equal(before["b"], after["b"])
    for name in set(SIZES) - {"b"}:
        assert np.array_equal(before[name], after[name])


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("records", [0, 1, 20])
def test_more_or_fewer_records_of_one_client_leave_all_others_bit_for_bit(records, one_pass, tmp_path):
    few = dict.fromkeys("abcd", 7)  # below the batch size
    before = changes(EnsembleRunner, "deep", None, tmp_path, sizes=few, one_pass=one_pass, pull=0.1)
    after = changes(EnsembleRunner, "deep", None, tmp_path, sizes={**few, "b": records}, one_pass=one_pass, pull=0.1)
    assert np.any(before["b"] != after["b"])
    assert after["b"].any() == (records > 0)
    for name in "acd":
        assert np.array_equal(before[name], after[name])


def test_a_model_that_mixes_parameters_is_trained_one_by_one(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(30, 30)

        def forward(self, x):
            return self.linear(torch.tanh(self.linear(x)))

    CASES["tied"] = (Tied, (30,), OptimizerSettings())
    try:
        one_by_one = changes(LocalRunner, "tied", 0.5, tmp_path)
        assert apart(one_by_one, changes(EnsembleRunner, "tied", 0.5, tmp_path)) == 0
    finally:
        del CASES["tied"]


def test_charges_are_made_before_the_cohort_trains(tmp_path):
    model, clients = world("logistic")
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        for client in clients:
            ledger.open(client.account, epsilon=1e6, delta=1e-5)
        runner = EnsembleRunner(clients, ledger)
        runner.enroll(plan(clients, 0.5), model.first_weights)
        next(runner.train(Task(1, {"weights": model.first_weights}), list(SIZES)))
        assert runner.charged().local == dict.fromkeys(SIZES, 1)
        assert all(ledger.statement(client.account).lines[-1].kind == "committed" for client in clients)


def test_a_client_whose_data_fail_fails_alone(tmp_path):
    def loss(outputs, targets):
        """Fails in training alone, so that it is not found when the client is made."""
        shown = targets if torch.is_grad_enabled() else targets.clamp(max=1)
        return nn.functional.cross_entropy(outputs, shown, reduction="none")

    model = TorchModel(Logistic, loss)
    draws = np.random.default_rng(1)
    labels = {name: np.full(20, 7 if name == "b" else 1) for name in SIZES}  # the model has no class 7
    clients = [TorchClient(name, (draws.normal(size=(20, 30)), own), "", model) for name, own in labels.items()]
    runner = EnsembleRunner(clients)
    runner.enroll(plan(clients, None, "none"), model.first_weights)
    outcomes = {
        outcome.client: outcome for outcome in runner.train(Task(1, {"weights": model.first_weights}), list(SIZES))
    }
    assert isinstance(outcomes["b"], Failure)
    assert all(isinstance(outcomes[name], Update) for name in set(SIZES) - {"b"})


# ---- who else is there, and what becomes of them ----


class Listed(Dataset):
    """Records one by one, which no pass of several models takes."""

    def __init__(self, inputs, targets) -> None:
        self.inputs, self.targets = torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number):
        return self.inputs[number], self.targets[number]


@dataclass(frozen=True)
class FailingForSome(FedAvg):
    """Has no objective for a client that is said to have taken part before."""

    def objective(self, task, state):
        if task.counted:
            raise RuntimeError("of this client's own")
        return super().objective(task, state)


NEIGHBOURS = {
    "as the others": lambda inputs, labels: (inputs[:7], labels[:7]),
    "of one record": lambda inputs, labels: (inputs[:1], labels[:1]),
    "of many records": lambda inputs, labels: (inputs, labels),
    "empty": lambda inputs, labels: (inputs[:0], labels[:0]),
    "of another form": lambda inputs, labels: (inputs, np.eye(2)[labels]),
    "of a data set": Listed,
    "raising in training": lambda inputs, labels: (inputs, labels + 7),  # the model has no class 7
    "without an objective": lambda inputs, labels: (inputs, labels),
}
CROWD = [f"client-{number}" for number in range(17)]
BATCHES = {"all alike": {}, "one of a large batch": {CROWD[1]: 19}, "of one record": dict.fromkeys(CROWD, 1)}


def loss(outputs, targets):
    """Fail in training alone, so that it is not found when the client is made."""
    shown = targets if torch.is_grad_enabled() or targets.is_floating_point() else targets.clamp(max=1)
    return nn.functional.cross_entropy(outputs, shown, reduction="none")


def neighbours(kind: str) -> tuple[TorchModel, list[TorchClient]]:
    """A model on which training is chaotic and seventeen clients; the second has a peculiarity."""
    model, clients = TorchModel(CASES["deep"][0], loss), []
    for number, name in enumerate(CROWD):
        draws = np.random.default_rng(number)
        data = draws.normal(size=(60, 3)), draws.integers(0, 2, 60)
        clients.append(TorchClient(name, NEIGHBOURS[kind if number == 1 else "as the others"](*data), name, model))
    return model, clients


def of_the_first(kind: str, cohort, folder, noise=None, batches="all alike", **options) -> bytes:
    """The first client's update in a cohort, in which it may have that neighbour."""
    model, clients = neighbours(kind)
    clip = {"steps": 8, "clip_norm": 0.5, "noise_multiplier": noise}
    settings = {"steps": 30, "learning_rate": 50.0} if noise is None else clip
    sizes = {name: BATCHES[batches].get(name, 10) for name in CROWD}
    parts = {name: LocalPlan(size=60, batch_size=size, **settings) for name, size in sizes.items()}
    folder = folder / str(len(list(folder.iterdir())))
    folder.mkdir()
    with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
        for client in () if noise is None else clients:
            ledger.open(client.account, epsilon=1e9, delta=1e-5)
        runner = EnsembleRunner(clients, None if noise is None else ledger, source=SeededSource(7), **options)
        plan = Plan("study", 1, parts, style="none" if noise is None else "sample")
        runner.enroll(plan, model.first_weights, algorithm=FailingForSome())
        runner._states = ClientStates(folder)  # each has an objective of its own
        counted = {CROWD[1]: 0} if kind == "without an objective" else {}
        outcomes = list(runner.train(Task(1, {"weights": model.first_weights}, counted=counted), cohort))
    assert {outcome.client for outcome in outcomes} == set(cohort)
    (found,) = (outcome for outcome in outcomes if outcome.client == CROWD[0])
    assert np.isfinite(found.value).all()
    assert found.value.any()
    return found.value.tobytes()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The first client's update beside one as itself, by the runner's options."""
    known: dict[tuple, bytes] = {}

    def find(**options) -> bytes:
        key = tuple(options.items())
        if key not in known:
            known[key] = of_the_first("as the others", CROWD[:2], tmp_path_factory.mktemp("usual"), **options)
        return known[key]

    return find


@pytest.mark.parametrize("noise", [None, 0.5])
@pytest.mark.parametrize("kind", NEIGHBOURS)
def test_whatever_another_client_is_a_clients_update_stays_bit_for_bit(usual, kind, noise, tmp_path):
    for cohort in (CROWD[:2], CROWD[:3]):
        assert of_the_first(kind, cohort, tmp_path, noise=noise) == usual(noise=noise)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("noise", [None, 0.5])
@pytest.mark.parametrize("count", [1, 3, 5, 16, 17])
def test_however_many_others_train_a_clients_update_stays_bit_for_bit(usual, count, noise, one_pass, tmp_path):
    found = of_the_first("as the others", CROWD[:count], tmp_path, noise=noise, one_pass=one_pass)
    assert found == usual(noise=noise, one_pass=one_pass)


@pytest.mark.parametrize("one_pass", [None, True])
def test_batches_of_one_record_are_rounded_alike_however_many_others_there_are(one_pass, tmp_path):
    options = {"batches": "of one record", "one_pass": one_pass}
    alone = of_the_first("as the others", CROWD[:1], tmp_path, **options)
    assert all(of_the_first("as the others", CROWD[:count], tmp_path, **options) == alone for count in (2, 4, 17))


@pytest.mark.parametrize("kind", ["raising in training", "without an objective"])
def test_one_of_many_that_fails_leaves_a_clients_update_bit_for_bit(usual, kind, tmp_path):
    for chunk in (2, 3, 32):
        assert of_the_first(kind, CROWD, tmp_path, noise=None, chunk=chunk) == usual(noise=None)


@pytest.mark.parametrize("noise", [None, 0.5])
def test_the_batch_size_of_one_who_is_away_moves_no_bit_of_a_clients_update(noise, tmp_path):
    options = {"noise": noise, "batches": "one of a large batch"}
    both = of_the_first("as the others", CROWD[:2], tmp_path, **options)
    assert of_the_first("as the others", CROWD[:1], tmp_path, **options) == both
    assert of_the_first("as the others", [CROWD[0], CROWD[2]], tmp_path, **options) == both
