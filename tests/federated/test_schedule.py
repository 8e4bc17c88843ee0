"""Rounds whose noise follows a public schedule: the noise that a round draws is the noise that it is charged for."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from scipy.stats import chi2

from dpfed import accounting
from dpfed import events as ev
from dpfed.config.run import RunConfig
from dpfed.federated.engine import Federation
from dpfed.federated.launch import prepare
from dpfed.federated.results import BUDGET_EXHAUSTED, FINISHED
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.guarantee import Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.models.logistic import Logistic
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.by_round import compose
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import ClientPlan, ClientRelease, LocalPlan, Plan
from dpfed.randomness import SeededSource
from studies import DIMENSION, Crash, Study, Ward, committed, crash_at

DELTA = 1e-5
FALSE_ALARM = 1e-6
SCHEDULE = (2.0, 0.5, 1.0)
GAUSSIANS = {"size": 10, "batch_size": 10, "steps": 1, "clip_norm": 1.0}  # no sampling: a round is one Gaussian


class Recorder(Ward):
    """Notes the noise that it was given in each round, whether or not the round was finished."""

    def __post_init__(self):
        self.noises = []

    def train(self, local, objective, source):
        self.noises.append(local.noise_multiplier)
        return super().train(local, objective, source)


class RecordedStudy(Study):
    """A study whose clients and whose server note the noise of every release."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clients = [Recorder(each.name, each.account, each.value, each.say) for each in self.clients]
        for each in self.clients:
            Recorder.__post_init__(each)
        self.server_noises = []

    def watch_server(self):
        """Every noise on a sum of updates; beside it a count may be released, whose noise is the same in all rounds."""
        real = GaussianMechanism.from_noise_multiplier

        def noted(noise, sensitivity, **options):
            if float(sensitivity) != 0.5:
                self.server_noises.append(noise)
            return real(noise, sensitivity, **options)

        return mock.patch.object(GaussianMechanism, "from_noise_multiplier", noted)

    def require_covered(self) -> None:
        """What was drawn costs at most what was committed, and that at most what was reserved and is stated."""
        self.ledger.verify()
        rows = committed(self.ledger)
        if self.plan.noises_steps:
            for client in self.clients:
                local = self.plan.local[client.name]
                drawn = Counter(replace(local, noise_multiplier=noise).event for noise in client.noises)
                stated = self.plan.epsilon(client.name, DELTA)
                charged, reserved = rows.get(client.account, {}), self.plan.local_charges(client.name)
                require_order(drawn, charged, reserved, stated, self.plan.record_adjacency)
        if self.study:
            plan = self.plan
            drawn = Counter(plan.cohort.event(ev.Gaussian(noise), len(plan.local)) for noise in self.server_noises)
            charged, stated = rows.get("study", {}), plan.client_epsilon(DELTA)
            require_order(drawn, charged, plan.study_charges(), stated, plan.client_adjacency)


def require_order(drawn, charged, reserved, stated, adjacency) -> None:
    assert all(times <= reserved.get(event, 0) for event, times in charged.items())
    assert drawn.total() <= sum(charged.values())
    bags = (drawn, charged, reserved)
    costs = [accounting.epsilon(compose(bag), DELTA, adjacency=adjacency) if bag else 0.0 for bag in bags]
    assert costs == sorted(costs)
    assert costs[-1] <= stated * (1 + 1e-12)


def open_recorded(folder, style="sample", sizes=None, **options):
    options.setdefault("noise_schedule", SCHEDULE)
    options.setdefault("rounds", len(options["noise_schedule"]))
    named = {} if sizes is None else {"sizes": sizes}
    return RecordedStudy(folder, style, options, **named)


# ---- the issue's own test ----


def two_in_different_rounds(tmp_path, most):
    """Two clients, one in the round of noise 2 and the other in that of 0.5: their rows in this order."""
    part = LocalPlan(**GAUSSIANS, noise_multiplier=1.0)
    local = {"a": part, "b": part}
    options = {"cohort": FixedCohort(1), "max_participations": most, "noise_schedule": (2.0, 0.5)}
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        plan = Plan("study", 2, local, **options)
        clients = [Recorder(name, f"account-{name}") for name in local]
        for each in clients:
            Recorder.__post_init__(each)
        with Ledger(f"sqlite:///{folder / 'ledger.db'}") as ledger:
            for client in clients:
                ledger.open(client.account, epsilon=1000.0, delta=DELTA)
            *_, last = Federation(
                plan, np.zeros(DIMENSION), LocalRunner(clients, ledger), folder / "run", source=SeededSource(seed)
            )
            ledger.verify()
            rows = committed(ledger)
        if len(rows) == 2:
            clients.sort(key=lambda client: client.noises, reverse=True)
            assert [client.noises for client in clients] == [[2.0], [0.5]]
            return plan, [rows[client.account] for client in clients], last
    raise AssertionError("twenty seeds drew the same client twice")


def test_of_two_clients_in_different_rounds_each_pays_for_its_own(tmp_path):
    plan, rows, last = two_in_different_rounds(tmp_path, most=2)
    assert rows == [{ev.Gaussian(2.0): 1}, {ev.Gaussian(0.5): 1}]
    (spent,) = last.spent
    assert spent.epsilon == accounting.epsilon(ev.Gaussian(0.5), DELTA)  # that of the one who pays most
    both = ev.Composed([ev.Gaussian(2.0), ev.Gaussian(0.5)])
    assert plan.record_epsilon(DELTA) == accounting.epsilon(both, DELTA)


def test_of_two_clients_in_one_round_each_whichever_the_reserved_one_covers_the_worst(tmp_path):
    plan, rows, last = two_in_different_rounds(tmp_path, most=1)
    assert rows == [{ev.Gaussian(0.5): 1}, {ev.Gaussian(0.5): 1}]
    (spent,) = last.spent
    assert spent.epsilon == plan.record_epsilon(DELTA) == accounting.epsilon(ev.Gaussian(0.5), DELTA)


# ---- the noise that is drawn is the noise that is charged ----


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_where_all_take_part_every_round_charges_the_noise_that_it_drew(tmp_path, style):
    study = open_recorded(tmp_path, style)
    results, plan = [], study.plan
    with study.watch_server():
        for result in study.federation():
            results.append(result)
            rounds = [plan.in_round(number) for number in range(1, len(results) + 1)]
            rows = committed(study.ledger)
            if style != "user":
                assert rows["account-west"] == {each.local_event("west"): 1 for each in rounds}
            if style != "sample":
                assert rows["study"] == {each.client_event: 1 for each in rounds}
    for number, result in enumerate(results, 1):
        alone = plan.in_round(number)
        for statement in result.cost:
            event = alone.client_event if statement.unit == "client" else alone.local["harbour"].event
            assert statement.epsilon == accounting.epsilon(event, DELTA)
    if style != "user":
        assert {tuple(client.noises) for client in study.clients} == {(10.0, 2.5, 5.0)}
        for name in study.sizes:
            assert rows[f"account-{name}"] == plan.local_charges(name)
    if style != "sample":
        assert study.server_noises == [10.0, 2.5, 5.0]
        assert rows["study"] == dict.fromkeys(map(ev.Gaussian, (10.0, 2.5, 5.0)), 1)
    assert results[-1].spent == plan.statements(DELTA)
    study.require_covered()
    study.ledger.close()


def test_the_rounds_so_far_cost_what_their_own_events_do(tmp_path):
    study = open_recorded(tmp_path, "user")
    events = [ev.Gaussian(5.0 * factor) for factor in SCHEDULE]
    for number, result in enumerate(study.federation(), 1):
        (spent,) = result.spent
        assert spent.epsilon == accounting.epsilon(compose(Counter(events[:number])), DELTA)
        assert study.directory().rounds()[-1]["spent"][0]["epsilon"] == spent.epsilon
    study.ledger.close()


def test_the_servers_noise_has_the_size_of_its_round():
    plan = Plan(
        "study",
        3,
        {"a": LocalPlan(size=10, batch_size=5, steps=1)},
        style="user",
        client=ClientPlan(clip_norm=0.5, noise_multiplier=3.0),
        noise_schedule=SCHEDULE,
    )
    size = 4000
    for number, factor in enumerate(SCHEDULE, 1):
        released = plan.in_round(number).server.release({"a": np.zeros(size)}, size, SeededSource(7))
        require_size(released.average, 3.0 * factor * 0.5, 0.0)


def require_size(noise, std, signal):
    """Fails a true size once in a million times: noise of that std on a signal of at most that length."""
    length = np.linalg.norm(noise) / std
    low, high = (math.sqrt(chi2.ppf(at, noise.size)) for at in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    assert low - signal / std < length < high + signal / std


@pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner, PoolRunner])
def test_a_clients_noise_has_the_size_of_its_round_whoever_trains_it(tmp_path, kind):
    draws = np.random.default_rng(3)
    model = TorchModel(Logistic, "cross_entropy")
    data = draws.normal(size=(20, 30)), draws.integers(2, size=20)
    clients = [TorchClient(f"ward {n}", data, f"account-{n}", model) for n in range(3)]
    part = LocalPlan(size=20, batch_size=20, steps=1, learning_rate=1.0, clip_norm=1.0, noise_multiplier=300.0)
    plan = Plan("study", 3, {client.name: part for client in clients}, noise_schedule=SCHEDULE)
    with Ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        for client in clients:
            ledger.open(client.account, epsilon=4.0, delta=DELTA)
        options = {"chunk": 3} if kind is EnsembleRunner else {}
        runner = kind(clients, ledger, source=SeededSource(11), **options)
        before = model.first_weights.copy()
        for result in Federation(plan, before, runner, tmp_path / "run", layout=model.layout):
            moved, before = result.weights - before, result.weights.copy()
            std = 300.0 * SCHEDULE[result.number - 1] / 20 / math.sqrt(3)  # of the mean of three clients
            require_size(moved, std, 1.0)
        assert set(map(str, committed(ledger)["account-0"])) == {str(ev.Gaussian(300.0 * f)) for f in SCHEDULE}


def test_with_adaptive_clipping_each_rounds_sum_has_the_noise_of_its_event(tmp_path):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=8.0))
    study = open_recorded(tmp_path, "user", client=client)
    with study.watch_server():
        list(study.federation())
    charged = committed(study.ledger)["study"]
    pairs = {ev.Composed([ev.Gaussian(noise), ev.Gaussian(16.0)]) for noise in study.server_noises}
    assert set(charged) == pairs
    study.ledger.close()


# ---- style local ----


def a_local_study(folder, norm="l2", **options):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0, norm=norm)
    return open_recorded(folder, "local", client=client, **options)


@contextmanager
def watched_updates(study):
    """Every noise on an update, by the client whose it is: they are released in the order of training."""
    found, real = [], ClientRelease.release

    def noted(release, *arguments):
        found.append(release.client.noise)
        return real(release, *arguments)

    with mock.patch.object(ClientRelease, "release", noted):
        yield found


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_in_style_local_every_participation_charges_the_noise_that_it_drew(tmp_path, norm):
    study, kind = a_local_study(tmp_path, norm), ev.Laplace if norm == "l1" else ev.Gaussian
    with watched_updates(study) as noises:
        *_, last = study.federation()
    assert noises == [noise for noise in (10.0, 2.5, 5.0) for _ in study.sizes]
    rows = committed(study.ledger)
    for name in study.sizes:
        assert (
            rows[f"account-{name}"] == dict.fromkeys(map(kind, (10.0, 2.5, 5.0)), 1) == study.plan.local_charges(name)
        )
    together = ev.Composed([kind(noise) for noise in (10.0, 2.5, 5.0)])
    (statement,) = study.plan.statements(DELTA)
    assert statement.epsilon == accounting.epsilon(together, DELTA, adjacency="replace_one")
    assert last.spent == study.plan.statements(DELTA)
    study.ledger.close()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_in_style_local_a_drawn_client_pays_with_rounds_of_no_more_noise(tmp_path, most):
    study = a_local_study(tmp_path, cohort=FixedCohort(2), max_participations=most, spare_rounds=1)
    assert sum(study.plan.local_charges("north").values()) == most + 1
    with watched_updates(study) as noises:
        federation = study.federation()
        list(federation)
    assert federation.status == FINISHED
    charged = committed(study.ledger)
    paid = sorted(event.noise_multiplier for rows in charged.values() for event in Counter(rows).elements())
    assert len(paid) == len(noises)
    assert all(one <= other for one, other in zip(paid, sorted(noises), strict=True))
    for name in study.sizes:
        reserved = study.plan.local_charges(name)
        assert all(times <= reserved[event] for event, times in charged.get(f"account-{name}", {}).items())
    study.ledger.verify()
    study.ledger.close()


def test_in_style_local_noise_is_calibrated_over_the_schedule_also_for_persons_at_several_sites():
    local = dict.fromkeys(("a", "b"), LocalPlan(size=10, batch_size=5, steps=1))
    options = {"client": ClientPlan(clip_norm=1.0), "noise_schedule": SCHEDULE, "max_sites_per_person": 2}
    plan = Plan("study", 3, local, style="local", **options)
    found = plan.calibrated(Guarantee(3.0, DELTA, "client", "replace_one"))
    assert 2.98 < found.client_epsilon(DELTA) <= 3.0
    noise = found.client.noise
    twice = ev.Composed([ev.Gaussian(noise * factor) for factor in SCHEDULE * 2])
    assert found.record_epsilon(DELTA) == pytest.approx(accounting.epsilon(twice, DELTA, adjacency="replace_one"))
    alone = plan.calibrated_per_round(Guarantee(3.0, DELTA, "client", "replace_one"))
    least = alone.in_round(2).client_event
    assert 2.98 < accounting.epsilon(least, DELTA, adjacency="replace_one") <= 3.0
    assert alone.round_cost(alone.client_guarantee)[0] <= 3.0
    assert alone.largest_norm(4) >= 50 * alone.client.noise * 2.0 * 2


# ---- crashes ----


def crash_in(study, rounds_before):
    """The run ends in the round after so many, when it is charged and its noise is drawn, before anything is stored."""
    federation = study.federation()
    for _ in range(rounds_before):
        next(federation)
    target = "write_updates" if study.style == "sample" else "write_release"
    with mock.patch.object(type(federation._stored), target, side_effect=Crash), suppress(Crash):
        next(federation)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
@pytest.mark.parametrize("cohort", [All(), PoissonCohort(0.99, secret=True)], ids=str)
@pytest.mark.parametrize("rounds_before", [0, 1, 2])
def test_a_round_lost_to_a_crash_is_paid_again_and_the_run_finishes(tmp_path, style, cohort, rounds_before):
    options = {"cohort": cohort, "spare_rounds": 1}
    if cohort.secret:
        options["max_participations"] = 3
    study = open_recorded(tmp_path, style, **options)
    with study.watch_server():
        crash_in(study, rounds_before)
        federation = study.federation()
        list(federation)
    assert federation.status == FINISHED
    study.require_covered()
    if style != "sample":
        assert len(study.server_noises) == 4
        assert study.server_noises.count(5.0 * SCHEDULE[rounds_before]) == 2
    study.ledger.close()


@pytest.mark.parametrize("style", ["sample", "user"])
def test_the_round_of_least_noise_is_not_done_again_where_no_spare_round_was_reserved(tmp_path, style):
    study = open_recorded(tmp_path, style)
    with study.watch_server():
        crash_in(study, 1)
        federation = study.federation()
        assert list(federation) == []
    assert (federation.status, federation.round) == (BUDGET_EXHAUSTED, 1)
    study.require_covered()
    study.ledger.close()


def test_a_round_done_again_without_a_spare_one_takes_the_place_of_a_costlier_round(tmp_path):
    study = open_recorded(tmp_path, "user")
    with study.watch_server():
        crash_in(study, 0)
        federation = study.federation()
        results = list(federation)
    assert study.server_noises == [10.0, 10.0, 2.5]  # paid with 10, 5 and 2.5: none is left for the last round
    assert [result.number for result in results] == [1, 2]
    assert federation.status == BUDGET_EXHAUSTED
    study.require_covered()
    study.ledger.close()


COHORTS = (
    All(),
    PoissonCohort(0.6),
    PoissonCohort(0.6, secret=True),
    FixedCohort(2),
    FixedCohort(2, secret=True),
)


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
@pytest.mark.parametrize("cohort", COHORTS, ids=str)
def test_whatever_crashes_there_were_what_ran_costs_no_more_than_is_charged_and_stated(tmp_path, style, cohort):
    draws = np.random.default_rng([STYLES[style], COHORTS.index(cohort)])
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        rounds = int(draws.integers(2, 6))
        options = {"cohort": cohort, "spare_rounds": int(draws.integers(0, 3))}
        if not isinstance(cohort, FixedCohort) or not cohort.secret or style == "sample":
            options["max_participations"] = int(draws.integers(1, rounds + 1))
        schedule = tuple(draws.choice([0.3, 0.7, 1.0, 1.5, 3.0], size=rounds).tolist())
        live(open_recorded(folder, style, noise_schedule=schedule, **options), draws)


STYLES = {"sample": 1, "user": 2, "hybrid": 3}


def live(study, draws) -> None:
    with study.watch_server():
        federation = study.federation()
        for act in draws.choice(["step", "crash"], size=5):
            if act == "step":
                next(federation, None)
                continue
            with crash_at(int(draws.integers(1, 9)), is_after=bool(draws.integers(2))), suppress(Crash):
                next(federation, None)
            federation = study.federation()
        list(federation)
    assert federation.status in (FINISHED, BUDGET_EXHAUSTED)
    study.require_covered()
    study.ledger.close()


# ---- from a file ----

TEXT = """
name: flowers
data: {{source: "sklearn:iris", feature_bounds: [0, 8], partition: {{kind: iid, clients: 2}}, sizes: 60}}
model: {{kind: logistic}}
rounds: 3
local: {{steps: 2, batch_size: 20, learning_rate: 0.5}}
privacy: {{style: sample, record: {{epsilon: 4, delta: 1e-5, clip_norm: 1}}, noise_schedule: {schedule}}}
"""


@pytest.mark.parametrize(
    ("schedule", "expected"), [("[2, 1, 0.5]", (2.0, 1.0, 0.5)), ("{first: 4, last: 1}", (4.0, 2.0, 1.0))]
)
def test_a_configuration_has_a_schedule_that_is_run_and_charged(tmp_path, schedule, expected):
    config = RunConfig.parse(TEXT.format(schedule=schedule))
    assert RunConfig.parse(config.to_yaml()) == config
    launch = prepare(config)
    assert launch.plan.noise_schedule == expected
    (kept,) = launch.plan.statements()
    assert 3.98 < kept.epsilon <= 4.0
    with launch.ledger(tmp_path / "run") as ledger:
        *_, last = launch.federation(tmp_path / "run", ledger)
        rows = committed(ledger)
        for client in launch.clients:
            assert rows[client.account] == launch.plan.local_charges(client.name)
    assert last.spent == launch.plan.statements()
