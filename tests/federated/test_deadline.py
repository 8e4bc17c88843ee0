"""A client that hangs has failed: it contributes zero, the others go on, and the run ends as if it had raised."""

from __future__ import annotations

import hashlib
import importlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfed.config.run import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.federated import deadline
from dpfed.federated.deadline import Late, within
from dpfed.federated.messages import Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.models.logistic import Logistic
from dpfed.plan.plan import LocalPlan, Plan
from studies import a_plan

SHORT = 0.2
AMPLE = 3.0  # for a client that adds two numbers, on a busy machine
FOREVER = 1e6


def sleeps() -> None:
    time.sleep(FOREVER)


def spins() -> None:
    while True:
        pass


def waits() -> None:
    threading.Event().wait()


def locks() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def listens() -> None:
    first, second = socket.socketpair()
    with first, second:
        first.recv(1)


def clings() -> None:
    while True:
        with suppress(Exception):
            time.sleep(FOREVER)


HANGING = (sleeps, spins, waits, locks, listens, clings)


@pytest.mark.parametrize("hang", HANGING)
def test_whatever_a_client_hangs_in_it_is_interrupted(hang):
    with pytest.raises(Late):
        within(SHORT, hang)


def test_what_comes_in_time_is_returned_and_its_own_errors_are_raised():
    assert within(FOREVER, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(FOREVER, lambda: 1 / 0)


def test_code_that_catches_everything_once_is_interrupted_again():
    def stubborn():
        with suppress(BaseException):
            time.sleep(FOREVER)
        time.sleep(FOREVER)

    with pytest.raises(Late):
        within(SHORT, stubborn)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that takes a while to load, and that a half of would spoil for everybody."""
    folder = tmp_path / "slowly_loaded"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import part\nimport signal, time\nAT_WORK\nwhole = part.number\n")
    (folder / "part.py").write_text("number = 7\n")
    monkeypatch.syspath_prepend(tmp_path)

    def load(at_work: str):
        text = (folder / "__init__.py").read_text().replace("AT_WORK", at_work)
        (folder / "__init__.py").write_text(text)
        return importlib.import_module("slowly_loaded")

    yield load
    for name in ("slowly_loaded", "slowly_loaded.part"):
        sys.modules.pop(name, None)


def test_a_late_client_is_not_interrupted_in_the_middle_of_an_import_that_others_need(package):
    """Half of a module stays loaded, and those who import it next fail because somebody else was late."""
    with pytest.raises(Late):
        within(FOREVER, lambda: (package("signal.raise_signal(signal.SIGALRM)"), time.sleep(FOREVER)))
    assert "slowly_loaded" in sys.modules
    assert sys.modules["slowly_loaded"].whole == 7


def test_an_import_that_never_ends_is_interrupted_too(package, monkeypatch):
    monkeypatch.setattr(deadline, "IMPORTING", SHORT)
    with pytest.raises(Late):
        within(SHORT, lambda: package(f"time.sleep({FOREVER})"))


def test_somebody_elses_alarm_is_given_back_with_the_time_that_is_left():
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rang.set())
    signal.setitimer(signal.ITIMER_REAL, FOREVER)
    try:
        within(FOREVER, lambda: None)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= FOREVER
        signal.raise_signal(signal.SIGALRM)
        assert rang.is_set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_in_another_thread_what_comes_late_is_thrown_away():
    found = []

    def work():
        try:
            found.append(within(0.0, lambda: time.sleep(0.01)))
        except Late as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[0], Late)


def hanging(study, place: int, hang=sleeps):
    study.clients[place].train = lambda *_: hang()
    return study


def raising(study, place: int):
    study.clients[place].train = lambda *_: int("not a number")
    return study


@pytest.mark.parametrize(
    ("kind", "style"),
    [(LocalRunner, "none"), (LocalRunner, "user"), (EnsembleRunner, "sample"), (PoolRunner, "hybrid")],
)
def test_a_client_that_hangs_fails_and_the_others_go_on(open_study, kind, style):
    limit = 2 * AMPLE if kind is PoolRunner else AMPLE
    study = hanging(open_study(style, rounds=1, client_timeout=limit), 1)
    (result,) = study.federation(study.runner(kind))
    assert set(result.participation.contributed) == {"north", "harbour"}
    assert result.participation.failed == ("west",)
    assert isinstance(result.participation.errors["west"], (TimeoutError, RuntimeError))
    assert type(result.participation.errors["west"]).__name__ == "TimeoutError"


@pytest.mark.parametrize(("style", "place"), [("sample", 0), ("user", 1), ("hybrid", 2)])
def test_a_late_client_ends_a_run_like_one_that_raises_whoever_it_is(tmp_path, open_study, style, place):
    seen = []
    for name, fail in (("late", hanging), ("raising", raising), ("none", lambda study, _: study)):
        folder = tmp_path / f"{name}"
        folder.mkdir()
        study = fail(open_study(style, folder=folder, rounds=1, client_timeout=AMPLE), place)
        list(study.federation())
        records = study.directory().rounds()
        for record in records:
            record["head"] = record["head"] and record["head"].partition(":")[0]
        seen.append((records, study.committed(), study.committed_releases() if study.study else 0))
    assert seen[0] == seen[1] == seen[2]


def test_when_everybody_hangs_a_protected_run_ends_as_any_other(open_study):
    study = open_study("sample", rounds=2, client_timeout=SHORT)
    for place in range(3):
        hanging(study, place)
    results = list(study.federation())
    assert [result.number for result in results] == [1, 2]
    assert results[-1].participation.failed == ("north", "west", "harbour")
    study.require_nothing_free()


def test_a_pool_kills_a_client_that_no_exception_reaches():
    class Deaf:
        name, account = "deaf", ""

        def rehearse(self, local, weights): ...

        def train(self, local, objective, source):
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            time.sleep(FOREVER)

    runner = PoolRunner([Deaf()])
    runner.enroll(a_plan("none", {"deaf": 10}, client_timeout=SHORT), np.zeros(3))
    (outcome,) = runner.train(Task(1, {"weights": np.zeros(3)}), ["deaf"])
    assert isinstance(outcome.error, TimeoutError)


def computes() -> None:
    """Stay in one call of compiled code, which no signal ends, for longer than any test."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def multiplies() -> None:
    """Stay in calls of torch, in a thread that catches whatever is raised."""
    square = torch.ones(2000, 2000)
    while True:
        with suppress(BaseException):
            square @ square


def leaves_a_thread() -> None:
    """Wait for a thread that never ends."""
    thread = threading.Thread(target=spins, daemon=True)
    thread.start()
    while True:
        with suppress(BaseException):
            thread.join()


@pytest.mark.parametrize("hang", [*HANGING, computes, multiplies, leaves_a_thread])
def test_a_pool_ends_a_client_in_whatever_code_it_hangs(open_study, hang):
    study = hanging(open_study("user", rounds=1, client_timeout=2 * AMPLE), 1, hang)
    (result,) = study.federation(study.runner(PoolRunner))
    assert set(result.participation.contributed) == {"north", "harbour"}
    assert type(result.participation.errors["west"]).__name__ == "TimeoutError"
    study.require_nothing_free()


UNINTERRUPTED = """
from dpfed.federated import deadline
deadline.GRACE = 0.1
import hashlib
deadline.within(0.1, lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1))
"""


def test_the_owner_is_told_of_a_client_that_hangs_in_compiled_code_where_it_is_not_ended():
    process = subprocess.Popen([sys.executable, "-c", UNINTERRUPTED], stderr=subprocess.PIPE, text=True)
    try:
        said = process.stderr.readline()
    finally:
        process.kill()
        process.communicate()
    assert "for the owner alone: a client has taken longer than client_timeout" in said
    assert "put `runner: processes` into the run's config.yaml" in said


def test_nothing_will_be_said_of_a_client_that_came_in_time_or_was_interrupted():
    within(FOREVER, lambda: 7)
    with pytest.raises(Late):
        within(SHORT, sleeps)
    with pytest.raises(ZeroDivisionError):
        within(FOREVER, lambda: 1 / 0)
    assert not deadline._WATCH._ends  # of which the owner would be told


def test_clients_one_after_the_other_are_watched_by_one_thread():
    within(FOREVER, lambda: 7)
    threads = within(FOREVER, threading.enumerate)
    assert within(FOREVER, threading.enumerate) == threads


class Stuck(Logistic):
    """A model that hangs on a batch of records whose first number is large."""

    def forward(self, inputs):
        if bool((inputs[..., 0].detach() > 50).any()):
            sleeps()
        return super().forward(inputs)


def test_of_torch_clients_that_share_a_model_only_the_late_one_fails():
    model = TorchModel(Stuck, "cross_entropy")
    rng = np.random.default_rng(0)
    features = {name: rng.normal(size=(20, 30)) for name in ("a", "b", "c")}
    features["b"][:, 0] = 100.0
    labels = np.zeros(20, dtype=int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stuck, "forward", Logistic.forward)  # data are looked at before any round, in nobody's time
        clients = [TorchClient(name, (values, labels), "", model) for name, values in features.items()]
        local = LocalPlan(size=20, batch_size=10, steps=2)
        plan = Plan("study", 1, dict.fromkeys(features, local), style="none", client_timeout=2 * AMPLE)
        first = LocalRunner(clients)  # what torch loads at a first step is loaded in nobody's time
        first.enroll(replace(plan, client_timeout=FOREVER), model.first_weights)
        assert all(
            isinstance(each, Update) for each in first.train(Task(1, {"weights": model.first_weights}), list(features))
        )
        runner = EnsembleRunner(clients)
        runner.enroll(plan, model.first_weights)
    outcomes = {each.client: each for each in runner.train(Task(1, {"weights": model.first_weights}), list(features))}
    assert {name: isinstance(each, Update) for name, each in outcomes.items()} == {"a": True, "b": False, "c": True}
    assert isinstance(outcomes["b"].error, TimeoutError)


def test_the_file_and_the_plan_have_a_public_limit():
    config = RunConfig.parse(
        """
name: wards
data: {source: "sklearn:digits", partition: {kind: iid, clients: 10}, sizes: 140}
model: {kind: logistic}
rounds: 5
local: {steps: 10, batch_size: 14, learning_rate: 0.5}
privacy: {style: sample, record: {epsilon: 4, delta: 1e-5, clip_norm: 1}}
"""
    )
    assert config.client_timeout == 3600
    assert "client_timeout: 3600" in config.to_yaml()
    plan = a_plan("sample", {"north": 60})
    assert plan.client_timeout == 3600
    assert json.loads(plan.to_json())["client_timeout"] == 3600
    assert "takes longer than 3600 s" in plan.explain()
    for bad in (0, -1.0, float("inf"), float("nan"), "1"):
        with pytest.raises(InvalidArgument, match="client_timeout"):
            a_plan("sample", {"north": 60}, client_timeout=bad)
