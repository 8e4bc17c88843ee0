"""Every runner computes with a sensible number of threads, and gives back what the process had."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfed.federated.messages import Task
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.torch import threads
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import LocalPlan, Plan

RUNNERS = [LocalRunner, EnsembleRunner, PoolRunner]


@pytest.fixture(autouse=True)
def three():
    """A process with three threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


class Counting(Logistic):
    """A model whose bias moves by the number of threads that it is run with."""

    def forward(self, inputs):
        return super().forward(inputs) * 0 + self.linear.bias * float(torch.get_num_threads())


def counting(outputs, targets):
    return -outputs[:, 0]


def seen_by(kind, monkeypatch, *, is_small: bool, wanted: int | None = None) -> float:
    """With how many threads a client was trained."""
    monkeypatch.setattr(threads, "SMALL", threads.SMALL if is_small else 1)
    model = TorchModel(Counting, counting)
    model.threads = wanted
    data = np.zeros((8, 30)), np.zeros(8, dtype=int)
    clients = [TorchClient(name, data, "", model) for name in ("a", "b")]
    local = LocalPlan(size=8, batch_size=8, steps=1, learning_rate=1.0)
    runner = kind(clients)
    runner.enroll(Plan("study", 1, {"a": local, "b": local}, style="none"), model.first_weights)
    updates = list(runner.train(Task(1, {"weights": model.first_weights}), ["a", "b"]))
    assert len(updates) == 2
    (found,) = {round(float(np.abs(update.value).max()), 6) for update in updates}
    return found


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_small_model_is_trained_with_one_thread(monkeypatch, kind):
    assert seen_by(kind, monkeypatch, is_small=True) == 1


@pytest.mark.parametrize(("kind", "expected"), [(LocalRunner, 3), (EnsembleRunner, 3), (PoolRunner, 1)])
def test_a_large_model_has_what_torch_likes_and_one_thread_where_processes_share_the_cores(monkeypatch, kind, expected):
    assert seen_by(kind, monkeypatch, is_small=False) == expected


@pytest.mark.parametrize(("kind", "expected"), [(LocalRunner, 2), (EnsembleRunner, 2), (PoolRunner, 1)])
def test_a_number_of_threads_that_was_asked_for_is_used(monkeypatch, kind, expected):
    assert seen_by(kind, monkeypatch, is_small=True, wanted=2) == expected


def test_a_client_that_raises_gives_the_threads_back():
    with pytest.raises(ZeroDivisionError), threads.computing(numbers=1):
        1 / 0  # noqa: B018
