"""Style local, whole: each client pays, trains, clips its update, adds noise, and only then does anything leave it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument
from dpfed.federated.algorithms.feddyn import FedDyn
from dpfed.federated.algorithms.protocol import LocalObjective, ModelChange
from dpfed.federated.messages import Failure, Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.runners.processes import PoolRunner
from dpfed.federated.runners.together import EnsembleRunner
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.federated.torch.client import TorchClient, TorchModel
from dpfed.guarantee import Guarantee
from dpfed.ledger import opening
from dpfed.ledger.ledger import Ledger
from dpfed.models.logistic import Logistic
from dpfed.plan import (
    AdaptiveClip,
    ClientPlan,
    FixedCohort,
    LocalPlan,
    Plan,
    PoissonCohort,
    Population,
)
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource
from studies import DIMENSION, SIZES, Crash, SilentSource, Ward, crash_at

NAMES = tuple(SIZES)
TASK = Task(1, {"weights": np.zeros(DIMENSION)})
PEERS = json.loads((Path(__file__).parents[1] / "reference" / "peers.json").read_text())
FALSE_ALARM = 1e-6
CLIENT = Guarantee(8.0, 1e-5, "client", "replace_one")
BARE = LocalPlan(size=100, batch_size=10, steps=5)
every_runner = pytest.mark.parametrize("kind", [LocalRunner, EnsembleRunner, PoolRunner])
every_norm = pytest.mark.parametrize("norm", ["l1", "l2"])


def a_plan(norm="l2", **others):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=4.0, norm=norm)
    values = {"rounds": 10, "local": dict.fromkeys(NAMES, BARE), "style": "local", "client": client, **others}
    return Plan("study", **values)


def enrolled(study, kind=LocalRunner, **options):
    runner = study.runner(kind, **options)
    runner.enroll(study.plan, np.zeros(DIMENSION))
    return runner


def send(study, value, source=None, kind=LocalRunner):
    """What leaves `north`, whose training changes the model by that value."""
    study.clients[0].train = lambda *_: value
    outcomes = list(enrolled(study, kind, source=source or SilentSource()).train(TASK, ["north"]))
    return next(outcome.value for outcome in outcomes if isinstance(outcome, Update))


# ---- what leaves a client ----


@every_runner
@every_norm
def test_records_that_turn_the_update_around_move_what_leaves_by_two_clip_norms_and_never_more(
    open_study, tmp_path, kind, norm
):
    sent = []
    for sign in (-1, 1):
        folder = tmp_path / str(sign)
        folder.mkdir()
        study = open_study("local", folder=folder, client=ClientPlan(clip_norm=0.5, noise_multiplier=5.0, norm=norm))
        sent.append(send(study, sign * np.array([1e6, 0.0, 0.0]), kind=kind))
    moved = np.abs(sent[1] - sent[0]).sum()
    assert moved == pytest.approx(2 * 0.5, rel=1e-9)
    assert moved <= study.plan.sensitivity * (1 + 2.0**-38)  # the grid's step, for which the noise is widened


class Shifted(ModelChange):
    """An algorithm whose local objective has a shift that no record bounds, and which sends ten times the change."""

    def start(self, weights):
        return {"weights": weights}

    def objective(self, task, state):
        return LocalObjective(task.weights, shift=np.full(DIMENSION, 1e6))

    def leaves(self, change, task, state):
        return 10 * change

    def step(self, state, mean):
        return {"weights": state["weights"] + mean}


@every_norm
def test_what_the_algorithm_lets_leave_is_clipped_however_far_its_objective_is_shifted(open_study, norm):
    study = open_study("local", client=ClientPlan(clip_norm=0.5, noise_multiplier=5.0, norm=norm))
    study.clients[0].train = lambda local, objective, source: objective.start - objective.shift
    runner = study.runner(source=SilentSource())
    runner.enroll(study.plan, np.zeros(DIMENSION), algorithm=Shifted())
    (update,) = runner.train(TASK, ["north"])
    length = np.abs(update.value).sum() if norm == "l1" else np.linalg.norm(update.value)
    assert length == pytest.approx(0.5, rel=1e-9)


@every_runner
@every_norm
def test_what_leaves_a_client_is_noised_at_the_stated_scale(open_study, kind, norm):
    rounds = 80
    client = ClientPlan(clip_norm=0.5, noise_multiplier=30.0, norm=norm)
    study = open_study("local", client=client, rounds=rounds)
    for each in study.clients:
        each.train = lambda *_: np.array([9.0, 0.0, 0.0])
    runner = enrolled(study, kind, source=SeededSource(7))
    tasks = [replace(TASK, round=number) for number in range(1, rounds + 1)]
    sent = [update.value for task in tasks for update in runner.train(task, NAMES)]
    noise = (np.array(sent) - study.plan.client_release.query(np.array([9.0, 0.0, 0.0]), DIMENSION)).ravel()
    law = stats.laplace if norm == "l1" else stats.norm
    assert stats.kstest(noise, law(scale=30.0 * 0.5).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, law(scale=2 * 30.0 * 0.5).cdf).pvalue < FALSE_ALARM  # it would notice a half


@every_runner
def test_every_client_draws_noise_of_its_own_and_new_in_every_round(open_study, kind):
    study = open_study("local")
    for client in study.clients:
        client.train = lambda *_: np.zeros(DIMENSION)
    runner = enrolled(study, kind, source=SeededSource(1))
    sent = [update.value for number in (1, 2) for update in runner.train(replace(TASK, round=number), NAMES)]
    assert len({value.tobytes() for value in sent}) == 6


def test_torch_clients_that_train_together_send_the_same_as_one_by_one(tmp_path):
    model = TorchModel(lambda: Logistic(5), "cross_entropy")
    inputs = np.random.default_rng(3).normal(size=(3, 12, 5)).astype(np.float32)
    clients = [
        TorchClient(name, (held, (held[:, 0] > 0).astype(int)), name, model)
        for name, held in zip(NAMES, inputs, strict=True)
    ]
    local = dict.fromkeys(NAMES, LocalPlan(size=12, batch_size=6, steps=3, learning_rate=50.0))
    plan, task = a_plan(local=local, rounds=2), Task(1, {"weights": model.first_weights})
    sent = []
    for kind, options in ((LocalRunner, {}), (EnsembleRunner, {"chunk": 3})):
        with Ledger(tmp_path / f"{kind.__name__}.db") as ledger:
            for name in NAMES:
                ledger.open(name, epsilon=100.0, delta=1e-5, unit="client", adjacency="replace_one")
            runner = kind(clients, ledger, source=SeededSource(8), **options)
            runner.enroll(plan, model.first_weights)
            sent.append({update.client: update.value for update in runner.train(task, NAMES)})
    for name in NAMES:
        assert np.allclose(sent[0][name], sent[1][name], atol=1e-5)
        assert np.linalg.norm(sent[0][name]) > 2.0  # noise of 4 on 12 numbers, and nothing beyond the clip norm of 1
        assert np.linalg.norm(sent[0][name]) < 40.0


@every_runner
def test_a_client_that_fails_sends_noise_around_zero_and_its_owner_is_told(open_study, kind):
    study = open_study("local", client_timeout=30.0)
    study.clients[0].train = lambda *_: int("patient 4711")
    outcomes = list(enrolled(study, kind, source=SilentSource()).train(TASK, ["north"]))
    assert [type(outcome) for outcome in outcomes] == [Failure, Update]
    failure, update = outcomes
    assert (failure.client, failure.reason) == ("north", "failed")
    assert np.array_equal(update.value, np.zeros(DIMENSION))


def test_a_failed_client_is_in_the_mean_as_noise_and_in_the_owners_file_as_failed(open_study):
    study = open_study("local", rounds=1)
    study.clients[0].train = lambda *_: int("patient 4711")
    (result,) = study.federation()
    assert result.participation.failed == ("north",)
    assert result.participation.contributed == ("west", "harbour")
    assert set(study.committed().values()) == {1}


def test_a_round_in_which_all_fail_is_one_of_noise_and_is_told_to_the_owner(open_study):
    study = open_study("local", rounds=1)
    for client in study.clients:
        client.train = lambda *_: int("patient 4711")
    (result,) = study.federation()
    assert result.participation.is_unanswered
    assert np.any(result.weights)


@pytest.mark.parametrize("broken", [np.full(DIMENSION, np.nan), np.zeros(DIMENSION + 1)])
def test_an_update_that_is_no_finite_vector_leaves_as_noise_around_zero(open_study, broken):
    assert np.array_equal(send(open_study("local"), broken), np.zeros(DIMENSION))


@every_norm
def test_no_honest_update_is_refused_for_the_length_of_its_noise(open_study, norm):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=1e9, norm=norm)
    study = open_study("local", rounds=1, client=client, max_update_norm=1.0)
    (result,) = study.federation()
    assert result.participation.refused == {}
    assert set(result.participation.contributed) == set(NAMES)


@every_norm
def test_a_client_keeps_what_it_makes_of_the_noised_vector_that_left_it(open_study, norm):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=50.0, norm=norm)
    study = open_study("local", rounds=1, weighting="equal", client=client)
    runner, folder = study.runner(), study.folder / "states"
    folder.mkdir()
    runner.enroll(study.plan, np.zeros(DIMENSION), algorithm=FedDyn(alpha=2.0), folder=folder)
    sent = {update.client: update.value for update in runner.train(TASK, NAMES)}
    states = ClientStates(folder, runner.key(study.plan))
    for name in NAMES:
        assert np.array_equal(states.read(name, 1)["gradient"], -2.0 * sent[name])
        assert np.linalg.norm(sent[name]) > 2.0  # as nothing within the clip norm is


# ---- what is charged, and when ----


@every_runner
def test_the_whole_cohort_is_charged_before_the_first_client_looks_at_its_data(open_study, kind):
    study = open_study("local")
    seen = []

    def watched(train):
        return lambda *arguments: study.diary.say("seen", str(sorted(study.committed().values()))) or train(*arguments)

    for client in study.clients:
        client.train = watched(client.train)
    list(enrolled(study, kind).train(TASK, NAMES))
    seen = [words[1] for words in study.diary.lines() if words[0] == "seen"]
    assert seen == ["[1, 1, 1]"] * 3


def test_a_crash_while_the_noise_is_drawn_leaves_the_charge(open_study):
    class Breaks(SilentSource):
        def normal(self, shape=()):
            raise Crash

    study = open_study("local")
    with pytest.raises(Crash):
        list(enrolled(study, source=Breaks()).train(TASK, ["north"]))
    assert study.committed() == {"north": 1, "west": 0, "harbour": 0}


@every_norm
def test_every_participation_is_charged_in_full_to_the_clients_own_account(open_study, norm):
    study = open_study(
        "local", rounds=3, spare_rounds=2, client=ClientPlan(clip_norm=1.0, noise_multiplier=5.0, norm=norm)
    )
    event = ev.Laplace(5.0) if norm == "l1" else ev.Gaussian(5.0)
    assert study.plan.charges(study.clients) == {f"account-{name}": {event: 5} for name in NAMES}
    results = list(study.federation())
    assert study.committed() == dict.fromkeys(NAMES, 3)
    spent = accounting.epsilon(ev.Repeated(event, 3), 1e-5, adjacency="replace_one")
    assert results[-1].spent == (Guarantee(spent, 1e-5, "client", "replace_one"),)
    assert results[-1].worst_client == "north"
    study.require_nothing_free()


@pytest.mark.parametrize(
    "cohort", [PoissonCohort(0.5), PoissonCohort(0.5, secret=True), FixedCohort(2), FixedCohort(2, secret=True)]
)
def test_no_cohort_amplifies_what_a_client_sends_itself(cohort):
    plan = a_plan(cohort=cohort)
    assert plan.client_event == ev.Gaussian(4.0)
    assert plan.client_charges == plan.record_charges == plan.participations
    assert plan.client_adjacency == "replace_one"
    event = ev.Repeated(ev.Gaussian(4.0), plan.participations)
    assert plan.client_epsilon(1e-5) == accounting.epsilon(event, 1e-5, adjacency="replace_one")


def test_the_server_averages_and_clips_nothing(open_study):
    study = open_study("local", rounds=1, client=ClientPlan(clip_norm=1.0, noise_multiplier=200.0), weighting="equal")
    federation = study.federation(study.runner(source=SeededSource(2)))
    (result,) = federation
    assert np.linalg.norm(result.weights) > 20  # of three updates with noise 200 each
    with pytest.raises(InvalidArgument, match="only averages"):
        _ = study.plan.server


# ---- what it costs ----


def test_epsilon_is_that_of_the_accountant_for_every_charge_that_there_may_be_under_replacement():
    plan = a_plan("l1", rounds=10, spare_rounds=3)
    whole = ev.Repeated(ev.Laplace(4.0), 13)
    (statement,) = plan.statements(1e-5)
    assert statement == Guarantee(
        accounting.epsilon(whole, 1e-5, adjacency="replace_one"), 1e-5, "client", "replace_one"
    )


@pytest.mark.parametrize("noise_multiplier", [0.5, 4.0, 40.0])
def test_one_round_of_laplace_noise_is_two_over_its_multiplier_purely(noise_multiplier):
    plan = a_plan(rounds=7, client=ClientPlan(clip_norm=3.0, noise_multiplier=noise_multiplier, norm="l1"))
    assert plan.round_cost(CLIENT) == (pytest.approx(2 / noise_multiplier, rel=1e-12), 0.0)
    assert plan.client_epsilon(0.0) == pytest.approx(7 * 2 / noise_multiplier, rel=1e-12)


def test_gaussian_rounds_are_the_analytic_gaussian_of_twice_the_clip_norm():
    # 16 rounds of noise 8 clip norms are one of noise 2, whose shift of two clip norms makes it a Gaussian with μ = 1:
    # Balle and Wang (2018) give its δ in closed form.
    plan = a_plan(rounds=16, client=ClientPlan(clip_norm=3.0, noise_multiplier=8.0))
    found, mu = plan.client_epsilon(1e-5), 1.0
    delta = stats.norm.cdf(mu / 2 - found / mu) - np.exp(found) * stats.norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("name", ["laplace-233", "laplace-236", "laplace-237"])
def test_laplace_rounds_lie_within_the_bounds_of_dp_accounting_for_a_shift_of_two_clip_norms(name):
    # Its cases are for a shift of one scale over the multiplier, so that ours has twice the noise.
    (case,) = (case for case in PEERS["cases"] if case["id"] == name)
    event, peers = case["event"], case["peers"]
    noise_multiplier = 2 * event["event"]["noise_multiplier"]
    client = ClientPlan(clip_norm=3.0, noise_multiplier=noise_multiplier, norm="l1")
    found = a_plan(rounds=event["count"], client=client).client_epsilon(case["delta"])
    assert peers["dp_accounting_pld_lower"] <= found <= peers["dp_accounting_pld"] * (1 + 1e-5)


@every_norm
def test_calibrated_noise_is_enough_and_hardly_more(norm):
    plan = a_plan(client=ClientPlan(clip_norm=1.0, norm=norm)).calibrated(CLIENT)
    assert 7.99 < plan.client_epsilon(1e-5) <= 8.0
    assert plan.client_guarantee == CLIENT
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(InvalidArgument, match="more than"):
        replace(plan, client=replace(plan.client, noise_multiplier=plan.client.noise / 1.01))


def test_noise_for_one_round_is_calibrated_to_it_and_the_total_is_the_accountants():
    plan = a_plan(client=ClientPlan(clip_norm=1.0, norm="l1")).calibrated_per_round(replace(CLIENT, epsilon=0.5))
    assert plan.client.noise == pytest.approx(4.0, rel=2e-5)
    assert 0.4999 < plan.round_cost(CLIENT)[0] <= 0.5
    whole = ev.Repeated(ev.Laplace(plan.client.noise), 10)
    assert plan.client_guarantee.epsilon == accounting.epsilon(whole, 1e-5, adjacency="replace_one") < 5.0
    assert plan.client_guarantee.delta == 1e-5


def test_a_person_at_several_sites_pays_for_all_of_them():
    plan = a_plan(max_sites_per_person=2)
    both = ev.Repeated(ev.Gaussian(4.0), 20)
    assert plan.record_epsilon(1e-5) == accounting.epsilon(both, 1e-5, adjacency="replace_one")
    assert a_plan().record_epsilon(1e-5) == a_plan().client_epsilon(1e-5)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client": None}, "needs client=ClientPlan"),
        ({"client": ClientPlan(clip_norm=1.0, tree=RoundTree())}, "no sum over the rounds has a tree"),
        ({"client": ClientPlan(clip_norm=1.0, adaptive=AdaptiveClip(0.5, 0.2, 9.0))}, "one release more"),
        ({"local": dict.fromkeys(NAMES, replace(BARE, clip_norm=1.0, noise_multiplier=2.0))}, "in the clients' steps"),
        ({"local": Population(9, BARE)}, "have no accounts"),
        ({"client_guarantee": replace(CLIENT, epsilon=100.0, adjacency="add_remove")}, "adjacency='replace_one'"),
        ({"guarantee": Guarantee(100.0, 1e-5, "record", "replace_one")}, "protects one client"),
        ({"style": "user", "client": ClientPlan(clip_norm=1.0, norm="l1")}, "clipped in L2"),
    ],
)
def test_what_is_not_proved_for_the_style_is_refused(change, message):
    with pytest.raises((InvalidArgument, AdjacencyMismatch), match=message):
        a_plan(**change)


def test_a_study_account_is_refused_and_so_is_a_runner_without_a_ledger(open_study):
    study = open_study("local")
    with pytest.raises(InvalidArgument, match="has no use for"):
        study.plan.charges(study.clients, "study")
    with pytest.raises(InvalidArgument, match="give the runner a ledger"):
        LocalRunner(study.clients).enroll(study.plan, np.zeros(DIMENSION))


# ---- accounts ----


@pytest.fixture
def ledger(open_study):
    return open_study("none").ledger


def run_on(ledger, account, plan=None):
    """Enrolls a plan of one client on the account."""
    plan = plan or a_plan(local={"north": BARE})
    runner = LocalRunner([Ward("north", account)], ledger)
    runner.enroll(plan, np.zeros(DIMENSION))
    return runner


@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_an_account_of_any_unit_pays_if_it_is_for_replacement(ledger, unit):
    ledger.open("north", epsilon=100.0, delta=1e-5, unit=unit, adjacency="replace_one")
    list(run_on(ledger, "north").train(TASK, ["north"]))
    assert ledger.balance("north").spent > 0


@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_an_account_for_adding_and_removing_is_refused(ledger, unit):
    ledger.open("north", epsilon=100.0, delta=1e-5, unit=unit)
    with pytest.raises(AdjacencyMismatch, match="opened with --adjacency replace_one"):
        run_on(ledger, "north")
    assert ledger.reservations(open_only=False) == ()


SAMPLED = Plan(
    "sampled",
    rounds=10,
    local={"north": replace(BARE, clip_norm=1.0, noise_multiplier=2.0, adjacency="replace_one")},
)


def test_a_change_of_style_on_one_account_finds_what_the_other_has_spent(ledger):
    # ε = 5 is enough for the one or the other alone.
    ledger.open("north", epsilon=5.0, delta=1e-5, adjacency="replace_one")
    sampled = run_on(ledger, "north", SAMPLED)
    for number in range(1, 11):
        list(sampled.train(replace(TASK, round=number), ["north"]))
    sampled.finish("sampled")
    local = a_plan(local={"north": BARE}, client=ClientPlan(clip_norm=1.0)).calibrated(replace(CLIENT, epsilon=4.0))
    with pytest.raises(BudgetExceeded):
        run_on(ledger, "north", local)


def test_accounts_for_other_units_on_the_same_data_are_charged_as_well(ledger):
    ledger.open("records", epsilon=100.0, delta=1e-5, adjacency="replace_one", source="north/patients")
    ledger.open("persons", epsilon=100.0, delta=1e-5, unit="person", adjacency="replace_one", source="north/patients")
    ledger.open("clients", epsilon=100.0, delta=1e-5, unit="client", adjacency="replace_one", source="north/patients")
    ledger.open("others", epsilon=100.0, delta=1e-5, adjacency="replace_one")
    list(run_on(ledger, "clients").train(TASK, ["north"]))
    spent = {name: ledger.balance(name).spent for name in ("records", "persons", "clients", "others")}
    assert spent["records"] == spent["persons"] == spent["clients"] > 0 == spent["others"]
    ledger.verify()


def test_the_budget_of_a_record_is_not_spent_again_through_a_second_account_of_its_client(ledger):
    ledger.open("records", epsilon=5.0, delta=1e-5, adjacency="replace_one", source="north/patients")
    sampled = run_on(ledger, "records", SAMPLED)
    for number in range(1, 11):
        list(sampled.train(replace(TASK, round=number), ["north"]))
    sampled.finish("sampled")
    ledger.open("clients", epsilon=100.0, delta=1e-5, unit="client", adjacency="replace_one", source="north/patients")
    local = a_plan(local={"north": BARE}, client=ClientPlan(clip_norm=1.0)).calibrated(replace(CLIENT, epsilon=4.0))
    with pytest.raises(BudgetExceeded, match="records"):
        run_on(ledger, "clients", local)


def test_an_account_for_adding_and_removing_on_the_same_data_is_refused(ledger):
    ledger.open("records", epsilon=100.0, delta=1e-5, source="north/patients")
    ledger.open("clients", epsilon=100.0, delta=1e-5, unit="client", adjacency="replace_one", source="north/patients")
    with pytest.raises(AdjacencyMismatch, match="records is for the same data"):
        run_on(ledger, "clients")


def open_on_one_source(ledger, **kinds):
    for name, terms in kinds.items():
        ledger.open(name, **{"epsilon": 100.0, "delta": 1e-5, "source": "north/patients", **terms})


WHOLE = {"unit": "client", "adjacency": "replace_one"}


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_records_are_not_sampled_on_an_account_that_does_not_know_what_the_client_has_sent(
    ledger, adjacency, monkeypatch
):
    open_on_one_source(ledger, clients=WHOLE)
    local = run_on(ledger, "clients")
    with monkeypatch.context() as earlier:
        earlier.setattr(opening, "require_carried", lambda *_: None)  # as an earlier version opened it
        open_on_one_source(ledger, records={"adjacency": adjacency})
    sampled = replace(SAMPLED, local={"north": replace(SAMPLED.local["north"], adjacency=adjacency)})
    with pytest.raises(InvalidArgument, match=r"overlaps=\['clients'\]"):
        run_on(ledger, "records", sampled)
    local.finish("study")


def test_an_account_of_records_that_carries_its_clients_charges_pays_for_both_styles(ledger):
    open_on_one_source(ledger, clients=WHOLE)
    local = run_on(ledger, "clients")
    list(local.train(TASK, ["north"]))
    open_on_one_source(ledger, records={"adjacency": "replace_one", "overlaps": ["clients"]})
    list(local.train(replace(TASK, round=2), ["north"]))
    assert ledger.balance("records").spent > 0
    list(run_on(ledger, "records", SAMPLED).train(TASK, ["north"]))
    assert ledger.balance("records").spent > ledger.balance("clients").spent
    ledger.verify()


def test_the_budget_of_a_client_is_not_spent_again_through_an_account_of_its_records(ledger):
    open_on_one_source(ledger, clients=WHOLE)
    open_on_one_source(ledger, records={"adjacency": "replace_one", "overlaps": ["clients"]})
    with pytest.raises(InvalidArgument, match="name clients in its place"):
        run_on(ledger, "records")
    list(run_on(ledger, "clients").train(TASK, ["north"]))
    assert ledger.balance("clients").spent == ledger.balance("records").spent > 0


def test_an_unused_account_of_the_client_is_in_nobodys_way(ledger):
    open_on_one_source(ledger, clients=WHOLE, records={"adjacency": "replace_one"})
    assert len(list(run_on(ledger, "records", SAMPLED).train(TASK, ["north"]))) == 1


# ---- crashes ----


@pytest.mark.parametrize("is_after", [False, True])
def test_a_run_that_crashes_at_any_write_goes_on_and_nothing_was_free(open_study, is_after):
    number = 1
    while True:
        options = {"rounds": 2, "spare_rounds": 4}
        folder = open_study("none").folder / f"{number}"
        folder.mkdir()
        study = open_study("local", folder=folder, **options)
        try:
            with crash_at(number, is_after=is_after):
                list(study.federation())
            break
        except Crash:
            study.ledger.close()
        study = open_study("local", folder=folder, **options)
        list(study.federation())
        study.require_nothing_free()
        study.require_done()
        number += 1
    assert number > 5


def test_noised_updates_that_were_stored_are_used_again_and_cost_nothing(open_study):
    study = open_study("local", rounds=1, weighting="equal")
    write, stored = UnfinishedRound.write_updates, []

    def crash(self, number, updates):
        write(self, number, updates)
        stored.extend(updates)
        raise Crash

    with mock.patch.object(UnfinishedRound, "write_updates", crash), pytest.raises(Crash):
        list(study.federation())
    study.ledger.close()
    study = open_study("local", rounds=1, weighting="equal")
    (result,) = study.federation()
    assert set(result.participation.reused) == {update.client for update in stored} == set(NAMES)
    assert np.allclose(result.weights, np.mean([update.value for update in stored], axis=0), rtol=1e-12)
    assert study.committed() == dict.fromkeys(NAMES, 1)
