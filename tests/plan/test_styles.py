"""Four styles, three cohorts: what each charges, promises and refuses, and that a file keeps all of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.plan import AdaptiveClip, Algorithm, All, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort
from dpfed.randomness import SeededSource

RECORD = Guarantee(4.0, 1e-5)
CLIENT = Guarantee(8.0, 1e-5, unit="client")
BARE = LocalPlan(size=100, batch_size=10, steps=5, clip_norm=1.0)
NOISED = replace(BARE, noise_multiplier=2.0)
SERVER = ClientPlan(clip_norm=0.5, noise_multiplier=3.0)
NAMES = tuple(f"c{number}" for number in range(8))


@dataclass(frozen=True)
class Ward:
    name: str
    account: str


WARDS = [Ward(name, f"account-{name}") for name in NAMES]


def a_plan(style="hybrid", **others):
    local = dict.fromkeys(NAMES, NOISED if style in ("sample", "hybrid") else BARE)
    client = SERVER if style in ("user", "hybrid") else None
    return Plan(**{"name": "study", "rounds": 20, "local": local, "style": style, "client": client, **others})


def test_style_none_charges_nothing_and_states_nothing():
    plan = a_plan("none")
    assert plan.charges(WARDS) == {}
    assert plan.statements() == ()


def test_style_user_charges_the_study_and_no_clients_records():
    assert a_plan("user").charges(WARDS, "study") == {"study": {ev.Gaussian(3.0): 20}}


def test_hybrid_gives_two_statements_and_never_their_sum():
    plan = a_plan()
    charges = plan.charges(WARDS, "study")
    assert charges.pop("study") == {ev.Gaussian(3.0): 20}
    assert charges == {f"account-{name}": {NOISED.event: 20} for name in NAMES}
    record, client = plan.statements(1e-5)
    assert (record.unit, client.unit) == ("record", "client")
    assert record.epsilon == NOISED.epsilon(1e-5, rounds=20)
    assert client.epsilon == accounting.epsilon(ev.Repeated(ev.Gaussian(3.0), 20), 1e-5)


def test_both_noises_are_calibrated_each_to_its_own_promise():
    local = dict.fromkeys(NAMES, BARE)
    plan = a_plan(local=local, client=ClientPlan(clip_norm=0.5)).calibrated(CLIENT, RECORD)
    record, client = plan.statements()
    assert 3.999 < record.epsilon <= 4.0
    assert 7.999 < client.epsilon <= 8.0
    assert (plan.guarantee, plan.client_guarantee) == (RECORD, CLIENT)
    with pytest.raises(InvalidArgument, match="a client"):
        replace(plan, client=SERVER, client_guarantee=Guarantee(0.1, 1e-5, "client"))


def test_a_cohort_gains_nothing_for_records_but_fewer_participations():
    plan = a_plan("sample", rounds=100, cohort=PoissonCohort(0.1, secret=True))
    assert plan.participations == 20
    assert plan.charges(WARDS)["account-c0"] == {NOISED.event: 20}


def test_a_secret_cohort_is_charged_sampled_in_every_round_and_a_known_one_in_full_per_participation():
    secret = a_plan("user", rounds=100, cohort=PoissonCohort(0.125, secret=True))
    known = replace(secret, cohort=PoissonCohort(0.125))
    assert secret.charges(WARDS, "study")["study"] == {ev.PoissonSampled(ev.Gaussian(3.0), 0.125): 100}
    assert known.charges(WARDS, "study")["study"] == {ev.Gaussian(3.0): known.participations}
    assert secret.client_epsilon(1e-5) < known.client_epsilon(1e-5) / 2


def test_a_secret_fixed_cohort_is_charged_without_replacement_and_stated_for_replacement():
    plan = a_plan("user", cohort=FixedCohort(2, secret=True))
    assert plan.client_event == ev.SampledWithoutReplacement(ev.Gaussian(3.0), 2, 8)
    assert plan.client_adjacency == "replace_one"
    assert plan.sensitivity == 2 * 0.5 / 2
    with pytest.raises(InvalidArgument, match="replace_one only"):
        plan.calibrated(CLIENT)
    assert replace(plan, cohort=FixedCohort(2)).client_adjacency == "add_remove"


def test_an_adaptive_client_clip_is_one_sampled_event_as_private_as_one_gaussian():
    adaptive = AdaptiveClip(0.5, 0.2, count_noise=4.0)
    secret = PoissonCohort(0.125, secret=True)
    plan = a_plan("user", cohort=secret, client=replace(SERVER, adaptive=adaptive))
    pair = ev.Composed((ev.Gaussian(plan.client.sum_noise), ev.Gaussian(8.0)))
    assert plan.client_event == ev.PoissonSampled(pair, 0.125)
    plain = a_plan("user", cohort=secret)
    assert plan.client_epsilon(1e-5) == pytest.approx(plain.client_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_promise_about_clients_holds_under_the_relation_that_was_asked(adjacency):
    asked = replace(CLIENT, adjacency=adjacency)
    cohort = PoissonCohort(0.25, secret=True)
    plan = a_plan("user", cohort=cohort, client=ClientPlan(clip_norm=0.5)).calibrated(asked)
    whole = ev.Repeated(ev.PoissonSampled(ev.Gaussian(plan.client.noise), 0.25), 20)
    assert 7.99 < accounting.epsilon(whole, 1e-5, adjacency=adjacency) <= 8.0
    assert plan.statements()[0].adjacency == plan.sensitivity.adjacency == adjacency


def test_spare_rounds_are_charged_and_paid_for():
    plan = a_plan(spare_rounds=3)
    charges = plan.charges(WARDS, "study")
    assert charges["study"] == {ev.Gaussian(3.0): 23}
    assert charges["account-c1"] == {NOISED.event: 23}
    assert plan.record_epsilon(1e-5) > a_plan().record_epsilon(1e-5)


def test_fewer_participations_cost_less():
    plan = a_plan(max_participations=4)
    assert plan.charges(WARDS, "study")["study"] == {ev.Gaussian(3.0): 4}
    assert plan.charges(WARDS, "study")["account-c1"] == {NOISED.event: 4}
    assert a_plan(cohort=PoissonCohort(0.1, secret=True), max_participations=4).client_charges == 20


def test_commits_follow_whoever_took_part_most():
    known, secret = a_plan("user", cohort=PoissonCohort(0.5)), a_plan("user", cohort=PoissonCohort(0.5, secret=True))
    taken, committed = dict.fromkeys(NAMES, 0), 0
    source = SeededSource(8)
    for _ in range(known.rounds):
        cohort = known.draw(source)
        assert secret.client_commits(taken, cohort, committed) == 1
        committed += known.client_commits(taken, cohort, committed)
        taken = {name: count + (name in cohort) for name, count in taken.items()}
        assert committed == max(taken.values())
    assert known.client_commits(taken, (), committed) == 0
    everyone = dict.fromkeys(NAMES, 3)
    assert known.client_commits(everyone, NAMES, committed=4, lost=2) == 2  # anybody may be in what was lost


def test_a_cohort_is_drawn_over_the_clients_of_the_plan():
    assert a_plan().draw(SeededSource(1)) == NAMES
    assert len(a_plan(cohort=FixedCohort(3)).draw(SeededSource(1))) == 3


def test_a_cohort_below_the_minimum_is_not_used():
    plan = a_plan(cohort=PoissonCohort(0.5), minimum_cohort=3)
    assert (plan.is_enough(3), plan.is_enough(2)) == (True, False)


KNOWN = PoissonCohort(0.5)
SECRET = PoissonCohort(0.5, secret=True)


@pytest.mark.parametrize(
    ("style", "bad", "why"),
    [
        ("user", {"client": None}, "without a clip nothing bounds"),
        ("hybrid", {"client": None}, "without a clip nothing bounds"),
        ("sample", {"client": SERVER}, "no noise at the server"),
        ("none", {"client": SERVER}, "no noise at the server"),
        ("user", {"local": {"a": NOISED}}, "no noise at the clients"),
        ("none", {"local": {"a": NOISED}}, "no noise at the clients"),
        ("sample", {"local": {"a": LocalPlan(size=9, batch_size=3, steps=1)}}, "has no bound"),
        ("global", {}, "style must be one of"),
        ("sample", {"weighting": "num_examples"}, "weights from the data tell sizes"),
        ("sample", {"weighting": {"c0": 0.5}}, "weights from the data tell sizes"),
        ("sample", {"cohort": "connected"}, "has no rate"),
        ("sample", {"cohort": FixedCohort(9)}, "at most the 8 clients"),
        ("sample", {"max_participations": 21}, "at most the 20 rounds"),
        ("sample", {"max_participations": 0}, "max_participations"),
        ("sample", {"spare_rounds": -1}, "spare_rounds"),
        ("sample", {"spare_rounds": True}, "spare_rounds"),
        ("sample", {"max_sites_per_person": 9}, "at most the 8 sites"),
        ("sample", {"minimum_cohort": 9}, "at most 8"),
        ("user", {"cohort": SECRET, "minimum_cohort": 2}, "tell if a client was drawn"),
        ("user", {"cohort": FixedCohort(2, secret=True), "max_participations": 5}, "tells of earlier draws"),
        ("sample", {"local": {"a": "plan"}}, "local must map"),
        ("user", {"guarantee": RECORD}, "protects one client"),
        ("sample", {"client_guarantee": CLIENT}, "protects one record"),
        ("none", {"guarantee": RECORD}, "protects nobody"),
        ("hybrid", {"client_guarantee": RECORD}, "must be for one client"),
    ],
)
def test_what_is_unsound_is_refused_in_one_sentence(style, bad, why):
    with pytest.raises(InvalidArgument, match=why) as refusal:
        a_plan(style, **bad)
    assert "\n" not in str(refusal.value)


def test_a_minimum_is_allowed_where_nothing_is_claimed_of_secrecy():
    for plan in (a_plan("user", cohort=KNOWN, minimum_cohort=2), a_plan("sample", cohort=SECRET, minimum_cohort=2)):
        assert not plan.is_enough(1)


def test_a_secret_fixed_cohort_asks_a_client_as_often_as_it_is_drawn():
    assert a_plan(cohort=FixedCohort(2, secret=True)).participations == 20
    assert a_plan(cohort=FixedCohort(2)).participations < 20
    assert a_plan("sample", cohort=FixedCohort(2, secret=True)).participations < 20


@pytest.mark.parametrize(
    ("style", "asked", "why"),
    [
        ("hybrid", (), "at least one"),
        ("hybrid", (RECORD, RECORD), "one per unit"),
        ("hybrid", (Guarantee(1.0, 1e-5, "person"),), "protects one record and one client"),
        ("user", (RECORD,), "protects one client"),
        ("none", (RECORD,), "protects nobody"),
    ],
)
def test_a_promise_that_the_style_cannot_make_is_refused(style, asked, why):
    with pytest.raises(InvalidArgument, match=why):
        a_plan(style).calibrated(*asked)


def test_noise_is_own_or_shared():
    with pytest.raises(InvalidArgument, match="'own' or 'shared'"):
        a_plan().calibrated(RECORD, noise="average")


@pytest.mark.parametrize(
    ("style", "study", "why"),
    [
        ("hybrid", None, "needs a study account"),
        ("sample", "study", "no use for"),
        ("hybrid", "account-c0", "of its own"),
    ],
)
def test_the_studys_account_is_asked_for_where_the_server_adds_noise_and_nowhere_else(style, study, why):
    with pytest.raises(InvalidArgument, match=why):
        a_plan(style).charges(WARDS, study)


def test_in_style_user_clients_may_share_an_account():
    shared = [Ward(name, "one") for name in NAMES]
    assert list(a_plan("user").charges(shared, "study")) == ["study"]
    with pytest.raises(InvalidArgument, match="account of its own"):
        a_plan().charges(shared, "study")


def test_a_delta_is_asked_for_where_none_was_promised():
    with pytest.raises(InvalidArgument, match="delta is missing"):
        a_plan().statements()


FULL = a_plan(
    cohort=PoissonCohort(0.25, secret=True),
    client=replace(SERVER, adaptive=AdaptiveClip(0.6, 0.3, 5.0)),
    weighting="equal",
    algorithm=Algorithm("fedopt", {"kind": "adam", "beta": 0.9}),
    max_participations=9,
    spare_rounds=2,
    max_sites_per_person=2,
    server_learning_rate=0.5,
)


@pytest.mark.parametrize(
    "plan",
    [
        FULL,
        a_plan("none", local={"a": LocalPlan(size=9, batch_size=3, steps=1)}),
        a_plan("user", cohort=FixedCohort(2), client=ClientPlan(clip_norm=1.0)),
        a_plan("sample", minimum_cohort=4, local=dict.fromkeys(NAMES, replace(NOISED, norm="l1", layers="each"))),
        a_plan(local=dict.fromkeys(NAMES, BARE)).calibrated(RECORD, CLIENT),
    ],
)
def test_everything_comes_back_from_json(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_a_plan_of_the_first_version_is_still_read():
    old = {
        "version": 1,
        "name": "study",
        "rounds": 10,
        "local": {
            "north": {
                "size": 182,
                "batch_size": 16,
                "clip_norm": 1.0,
                "steps": 10,
                "learning_rate": 0.5,
                "noise_multiplier": 1.5,
                "delta": None,
            }
        },
        "server_learning_rate": 1.0,
        "guarantee": None,
    }
    plan = Plan.from_json(json.dumps(old))
    assert (plan.style, plan.cohort, plan.weighting, plan.participations) == ("sample", All(), "declared", 10)
    for field in ("style", "cohort", "spare_rounds"):
        new = json.loads(plan.to_json())
        del new[field]
        with pytest.raises(InvalidArgument, match="its fields must be"):
            Plan.from_json(json.dumps(new))


@pytest.mark.parametrize(
    "change",
    [
        {"cohort": {"kind": "fixed"}},
        {"cohort": None},
        {"client": {"clip_norm": 1.0, "surprise": 1}},
        {"algorithm": "fedavg"},
        {"style": "user"},
        {"client_guarantee": {"epsilon": 0.01, "delta": 1e-5, "unit": "client", "adjacency": "add_remove"}},
    ],
)
def test_a_file_that_was_tampered_with_is_refused(change):
    plain = {**json.loads(FULL.to_json()), **change}
    with pytest.raises(InvalidArgument, match="JSON form of a plan"):
        Plan.from_json(json.dumps(plain))


def test_an_algorithm_is_a_name_and_plain_values_that_nobody_else_can_change():
    parameters = {"proximity": [0.1]}
    algorithm = Algorithm("fedprox", parameters)
    parameters["proximity"].append(1.0)
    assert algorithm.parameters == {"proximity": [0.1]}
    for bad in ({"name": " "}, {"parameters": {"a": float("nan")}}, {"parameters": {"a": object()}}):
        with pytest.raises(InvalidArgument):
            Algorithm(**{"name": "fedavg", **bad})


@pytest.mark.parametrize("style", ["none", "sample", "user", "hybrid"])
def test_the_charges_of_a_run_are_those_of_each_client_and_of_the_study(style):
    noise = {"clip_norm": 1.0, "noise_multiplier": 2.0}
    local = LocalPlan(size=20, batch_size=5, steps=2, **(noise if style in ("sample", "hybrid") else {}))
    server = {"client": ClientPlan(**noise)} if style in ("user", "hybrid") else {}
    plan = Plan("study", 3, {"a": local, "b": replace(local, steps=3)}, style=style, spare_rounds=1, **server)
    clients = [Ward(name, f"account-{name}") for name in plan.local]
    charges = plan.charges(clients, "study" if server else None)
    assert plan.local_charges("b") == ({plan.local["b"].event: 4} if style in ("sample", "hybrid") else {})
    assert plan.study_charges() == ({plan.client_event: 4} if server else {})
    assert charges.get("account-b", {}) == plan.local_charges("b")
    assert charges.get("study", {}) == plan.study_charges()


@pytest.mark.parametrize(
    ("cohort", "is_secret"),
    [
        (All(), False),
        (PoissonCohort(0.5), False),
        (PoissonCohort(0.5, secret=True), True),
        (PoissonCohort(1.0, secret=True), False),
        (FixedCohort(1, secret=True), True),
        (FixedCohort(2, secret=True), False),
    ],
    ids=repr,
)
def test_a_plan_says_whether_who_takes_part_is_secret(cohort, is_secret):
    local = LocalPlan(size=20, batch_size=5, steps=2)
    assert Plan("study", 3, {"a": local, "b": local}, style="none", cohort=cohort).is_secret is is_secret
