"""What clients keep goes with the updates that were used: whatever crashes, neither is there without the other."""

from __future__ import annotations

import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.protocol import ModelChange
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import AdaptiveClip, ClientPlan
from studies import DIMENSION, Crash, Study, WatchedSource, crash_at
from worlds import fork, told

STYLES = ("none", "sample", "user", "hybrid")
COHORTS = {
    "all": All(),
    "poisson": PoissonCohort(0.6),
    "poisson, secret": PoissonCohort(0.6, secret=True),
    "fixed": FixedCohort(2),
}
FIVE = {"north": 60, "west": 30, "harbour": 10, "east": 10, "south": 40}
OPTIONS = {"weighting": "equal", "rounds": 3, "spare_rounds": 3}


@dataclass(frozen=True)
class Adding(ModelChange):
    """FedAvg, where each client keeps the sum of all that it sent and the server that of all that came."""

    expected: float = field(default=np.nan, init=False)
    keeps_state: ClassVar[bool] = True

    def bound_to(self, plan):
        made = replace(self)
        object.__setattr__(made, "expected", float(plan.cohort.expected(len(plan.local))))
        return made

    def start(self, weights):
        return {"weights": weights, "came": np.zeros(len(weights))}

    def keeps(self, left, task, state):
        return {"sent": state.get("sent", 0.0) + left}

    def step(self, state, mean):
        return {"weights": state["weights"] + mean, "came": state["came"] + self.expected * mean}


class QuietSource(WatchedSource):
    """Draws cohorts as they come, and no noise."""

    def _child(self, name):
        return QuietSource(self._say, name)

    def normal(self, shape=()):
        return 0.0 * super().normal(shape)


def opened(study, **options):
    return study.federation(algorithm=Adding(), source=QuietSource(study.diary.say), **options)


def states_of(study, federation):
    key = federation.runner.key(study.plan)
    states = ClientStates(study.folder / "run" / "clients", key)
    return {name: states.read(name, last) for name, last in federation._checkpoint.counted.items()}


def require_each_with_the_other(study, federation):
    """Clients kept just what came: no update without its state, no state without its update."""
    kept = sum((state["sent"] for state in states_of(study, federation).values()), np.zeros(DIMENSION))
    np.testing.assert_allclose(kept, federation._checkpoint.state["came"], atol=1e-8)


def run_to_the_end(study, **options):
    federation = opened(study, **options)
    for _ in federation:
        require_each_with_the_other(study, federation)
    assert federation.round == study.plan.rounds


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("cohort", COHORTS.values(), ids=COHORTS)
def test_clients_keep_what_they_sent(open_study, style, cohort):
    study = open_study(style, sizes=FIVE, cohort=cohort, **OPTIONS)
    run_to_the_end(study)
    assert list((study.folder / "run" / "clients").iterdir()) == []  # nothing stays once the run has ended


@pytest.mark.parametrize(
    ("style", "kind"),
    [("none", "poisson"), ("sample", "poisson"), ("user", "poisson, secret"), ("user", "all"), ("hybrid", "fixed")],
)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_crash_at_each_durable_write_leaves_no_update_without_its_state(tmp_path, style, kind, is_after):
    options = {**OPTIONS, "rounds": 2, "cohort": COHORTS[kind]}
    number, is_over = 0, False
    while not is_over:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        study = Study(folder, style, options)
        with suppress(Crash), crash_at(number, is_after=is_after):
            run_to_the_end(study)
            is_over = True
        study.ledger.close()
        other = Study(folder, style, options)
        run_to_the_end(other)
        other.require_nothing_free()
        other.ledger.close()
    assert number > 10


@pytest.mark.parametrize("style", STYLES)
def test_kill_9_at_random_moments_leaves_no_update_without_its_state(tmp_path, style, campaign_scale):
    kills = 3 * campaign_scale
    options = {**OPTIONS, "cohort": PoissonCohort(0.6), "spare_rounds": 2 * kills}
    moments = np.random.default_rng(12 if campaign_scale == 1 else None)

    def work(say) -> None:
        study = Study(tmp_path, style, options, FIVE)
        say("ready")
        run_to_the_end(study)

    for _ in range(kills):
        child = fork(work)
        child.hear()
        time.sleep(moments.uniform(0.0, 0.15))
        child.kill()
        child.end()
    told(work)


@pytest.mark.parametrize("style", ["sample", "user"])
def test_a_client_whose_update_is_turned_away_keeps_what_it_had(open_study, style):
    study = open_study(style, **OPTIONS)
    federation = opened(study)
    next(federation)
    before = states_of(study, federation)["west"]["sent"]
    study.clients[1].train = lambda *_: np.full(DIMENSION, 1e20)
    next(federation)
    assert federation._checkpoint.counted == {"north": 2, "west": 1, "harbour": 2}
    assert states_of(study, federation)["west"]["sent"].tolist() == before.tolist()
    require_each_with_the_other(study, federation)


def test_a_client_keeps_its_change_as_the_server_clips_it_by_the_clip_norm_of_the_round(open_study):
    client = ClientPlan(clip_norm=0.1, noise_multiplier=5.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=9.0))
    study = open_study("user", client=client, **OPTIONS)
    federation = opened(study)
    norms = []
    for _ in federation:
        require_each_with_the_other(study, federation)
        norms.append(federation._checkpoint.clip_norm)
    assert len(set(norms)) > 1


def test_processes_give_what_they_keep_back(open_study):
    study = open_study("none", **OPTIONS)
    run_to_the_end(study, runner=study.runner(PoolRunner))


def test_what_clients_keep_is_for_the_owner_alone_and_named_by_no_client(open_study):
    study = open_study("sample", **OPTIONS)
    next(opened(study))
    folder = study.folder / "run" / "clients"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert not any(client.name in path.name for path in files for client in study.clients)


@pytest.mark.parametrize("damage", ["bit", "gone", "another client's", "another round's", "forged"])
def test_a_state_that_was_changed_is_refused_before_a_round_is_run(open_study, damage):
    study = open_study("sample", **OPTIONS)
    federation = opened(study)
    next(federation)
    next(federation)
    first, second = sorted((study.folder / "run" / "clients").glob("*-000002.npz"))[:2]
    content = bytearray(first.read_bytes())
    content[150] ^= 1
    if damage == "bit":
        first.write_bytes(content)
    elif damage == "gone":
        first.unlink()
    elif damage == "another client's":
        first.write_bytes(second.read_bytes())
    elif damage == "another round's":
        (older,) = first.parent.glob(first.name.replace("-000002", "-000001"))
        first.write_bytes(older.read_bytes())
    else:
        ClientStates(first.parent).write("north", 2, {"sent": np.zeros(3)})  # without the ledger's key
    entries = study.ledger.head()
    with pytest.raises(InvalidArgument, match="which a client keeps from its last round"):
        opened(open_study("sample", **OPTIONS))
    assert study.ledger.head() == entries


def test_an_algorithm_that_keeps_state_must_not_change_in_itself(open_study):
    class Loose(Adding):
        pass

    Loose.__dataclass_params__ = None
    with pytest.raises(InvalidArgument, match="frozen dataclass"):
        open_study("none", **OPTIONS).federation(algorithm=Loose())


def test_a_subclass_of_a_frozen_algorithm_must_be_frozen_itself(open_study):
    """Python lets it set what is no field of the class above: a place to carry one client's change to the next."""

    class Carrying(Adding):
        def leaves(self, change, task, state):
            before, self.last = getattr(self, "last", 0.0), change
            return change + before

    with pytest.raises(InvalidArgument, match="frozen dataclass"):
        open_study("user", **OPTIONS).federation(algorithm=Carrying())


def test_an_algorithm_that_begins_to_keep_state_when_it_is_bound_is_refused_alike(open_study, tmp_path):
    class Later(ModelChange):
        def start(self, weights):
            return {"weights": weights}

        def step(self, state, mean):
            return state

        def bound_to(self, plan):
            return Adding().bound_to(plan)

    study = open_study("user", cohort=FixedCohort(2, secret=True), **{**OPTIONS, "spare_rounds": 0})
    with pytest.raises(InvalidArgument, match="secret cohort of fixed size"):
        study.runner().enroll(study.plan, np.zeros(DIMENSION), algorithm=Later(), folder=tmp_path)


@dataclass(frozen=True)
class Census(Adding):
    """Sends how many clients have taken part so far, as far as it is told."""

    def leaves(self, change, task, state):
        return np.full(DIMENSION, 0.1 * len(task.counted))


def test_what_a_client_sends_depends_on_no_other_clients_rounds(open_study, tmp_path):
    """One that failed, or was not drawn in secret, must not change what others send: no clip holds them together."""
    sent = []
    for is_there in (True, False):
        folder = tmp_path / str(is_there)
        folder.mkdir()
        study = open_study("user", folder=folder, **OPTIONS)
        if not is_there:
            study.clients[0].train = None
        federation = study.federation(algorithm=Census(), source=QuietSource(study.diary.say))
        next(federation)
        outcomes = federation.runner.train(federation._make_round(2).task, ["west", "harbour"])
        sent.append([outcome.value.tolist() for outcome in outcomes])
    assert sent[0] == sent[1]


@dataclass(frozen=True)
class Leaving(Adding):
    """Ends the process at what one client sends."""

    place: str = "leaves"

    def leaves(self, change, task, state):
        self._look("leaves", change)
        return change

    def keeps(self, left, task, state):
        self._look("keeps", left)
        return super().keeps(left, task, state)

    def _look(self, place, values):
        if place == self.place and values.max() > 0.57:
            raise SystemExit(3)


@pytest.mark.parametrize("place", ["leaves", "keeps"])
def test_an_algorithm_that_ends_the_process_at_one_client_leaves_that_one_out(open_study, place):
    study = open_study("user", **OPTIONS)
    study.clients[1].train = lambda *_: np.full(DIMENSION, 9.0)
    study.clients[2].train = lambda *_: np.zeros(DIMENSION)
    federation = study.federation(algorithm=Leaving(place=place), source=QuietSource(study.diary.say))
    failed = None
    with suppress(SystemExit):
        failed = next(federation).participation.failed
    assert failed == ("west",)


def test_nothing_stays_of_a_run_that_crashed_when_all_its_rounds_were_done(open_study):
    study = open_study("user", **OPTIONS)
    federation = opened(study)
    for _ in range(OPTIONS["rounds"]):
        next(federation)
    del federation  # the process ends before the run does
    folder = study.folder / "run" / "clients"
    assert list(folder.iterdir()) != []
    assert list(opened(open_study("user", **OPTIONS))) == []
    assert list(folder.iterdir()) == []


def test_a_runner_without_a_folder_keeps_no_state(open_study):
    study = open_study("none", **OPTIONS)
    with pytest.raises(InvalidArgument, match="give the folder"):
        study.runner().enroll(study.plan, np.zeros(DIMENSION), algorithm=Adding())


@pytest.mark.parametrize("style", STYLES)
def test_state_with_a_secret_cohort_of_fixed_size_is_refused_where_a_client_is_protected(open_study, style):
    study = open_study(style, cohort=FixedCohort(2, secret=True), **{**OPTIONS, "spare_rounds": 0})
    if style in ("none", "sample"):
        run_to_the_end(study)
        return
    entries = study.ledger.head()
    with pytest.raises(InvalidArgument, match="secret cohort of fixed size"):
        opened(study)
    assert study.ledger.head() == entries
