"""The plan is what is executed and what is charged: sensitivity, sampling, noise and sizes, each able to fail."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.plan import LocalPlan, Mean, Plan

FALSE_ALARM = 1e-6  # of each statistical test here, were its seed drawn anew
PROMISE = Guarantee(epsilon=4.0, delta=1e-5)
LOCAL = LocalPlan(size=100, batch_size=16, steps=10, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.5)


@dataclass(frozen=True)
class Hospital:
    name: str
    account: str


def squared_norm(vector: np.ndarray) -> Fraction:
    return sum((Fraction(float(value)) ** 2 for value in vector), Fraction(0))


numbers = st.floats(-1e12, 1e12) | st.sampled_from([np.nan, np.inf])
gradient_rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=12).map(np.array)


@pytest.mark.parametrize(("batch_size", "size"), [(16, 182), (1, 3), (16, 36), (7, 10**9), (5, 5)])
def test_the_rate_is_exactly_how_often_a_uniform_draw_falls_below_it(batch_size, size):
    rate = Fraction(replace(LOCAL, size=size, batch_size=batch_size).sample_rate)
    assert (rate * 2**53).denominator == 1
    assert 0 <= rate - Fraction(batch_size, size) < Fraction(1, 2**53)


def test_the_event_is_what_the_steps_do():
    step = ev.PoissonSampled(ev.Gaussian(noise_multiplier=1.5), LOCAL.sample_rate)
    assert LOCAL.event == ev.Repeated(step, 10)
    assert replace(LOCAL, batch_size=100, steps=1).event == ev.Gaussian(noise_multiplier=1.5)


def test_a_plan_without_noise_has_no_event():
    bare = replace(LOCAL, noise_multiplier=None)
    with pytest.raises(InvalidArgument, match="calibrated"):
        _ = bare.event


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 0),
        ("size", True),
        ("batch_size", 101),
        ("steps", 1.5),
        ("learning_rate", 0),
        ("clip_norm", np.inf),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", np.nan),
    ],
)
def test_a_bad_setting_is_refused_by_name(name, value):
    with pytest.raises(InvalidArgument) as refusal:
        replace(LOCAL, **{name: value})
    assert refusal.value.argument == name


def bare_plan(**sizes: int) -> Plan:
    local = {name: replace(LOCAL, size=size, noise_multiplier=None) for name, size in sizes.items()}
    return Plan("study", rounds=10, local=local)


def test_calibrated_noise_keeps_the_promise_for_each_client_and_wastes_nothing():
    plan = bare_plan(north=182, harbour=36).calibrated(PROMISE)
    for name, local in plan.local.items():
        whole = ev.Repeated(local.event, plan.rounds)
        assert accounting.epsilon_bounds(whole, PROMISE.delta)[0] <= PROMISE.epsilon
        assert plan.epsilon(name, PROMISE.delta) <= PROMISE.epsilon
        less = replace(local, noise_multiplier=local.noise_multiplier * (1 - 2e-5))
        assert accounting.epsilon(ev.Repeated(less.event, plan.rounds), PROMISE.delta) > PROMISE.epsilon


def test_a_smaller_client_needs_more_noise():
    plan = bare_plan(north=182, harbour=36).calibrated(PROMISE)
    assert plan.local["harbour"].noise_multiplier > 2 * plan.local["north"].noise_multiplier


def test_calibration_agrees_with_another_accountant():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    local = bare_plan(west=55).calibrated(PROMISE).local["west"]
    step = PoissonSampledDpEvent(local.sample_rate, GaussianDpEvent(local.noise_multiplier))
    other = PLDAccountant().compose(SelfComposedDpEvent(step, 100)).get_epsilon(PROMISE.delta)
    assert other == pytest.approx(PROMISE.epsilon, rel=1e-3)


def test_a_promise_that_the_plan_does_not_keep_is_refused():
    plan = bare_plan(north=182).calibrated(PROMISE)
    with pytest.raises(InvalidArgument, match="calibrated"):
        replace(plan, rounds=11)
    with pytest.raises(InvalidArgument, match="calibrated"):
        replace(plan, guarantee=Guarantee(epsilon=3.9, delta=1e-5))


@pytest.mark.parametrize("promise", [Guarantee(4.0, 1e-5, "client")])
def test_a_promise_for_another_unit_is_refused(promise):
    with pytest.raises(InvalidArgument, match="protects one record, not"):
        bare_plan(north=182).calibrated(promise)


def by_person(plan):
    return replace(plan, local={name: replace(part, unit="person") for name, part in plan.local.items()})


def test_a_plan_for_persons_says_so_wherever_a_unit_is_named():
    plan = by_person(bare_plan(north=182, west=55)).calibrated(replace(PROMISE, unit="person"))
    assert plan.units == ("person",)
    assert [each.unit for each in plan.statements()] == ["person"]
    assert Plan.from_json(plan.to_json()) == plan
    assert "about 16 of 182 declared persons" in plan.explain()
    assert "Assumed: nobody is in two sites" in plan.explain()
    assert plan.binding() == "west"
    same = bare_plan(north=182, west=55).calibrated(PROMISE)
    assert [part.event for part in plan.local.values()] == [part.event for part in same.local.values()]


def test_records_and_persons_do_not_mix_in_a_plan():
    plan = bare_plan(north=182, west=55)
    with pytest.raises(InvalidArgument, match="for one unit, record or person, and several were found"):
        replace(plan, local={**plan.local, "west": replace(plan.local["west"], unit="person")})


def test_neither_promise_of_record_and_person_stands_for_the_other():
    plan = bare_plan(north=182)
    with pytest.raises(InvalidArgument, match="protects one record, not what was asked"):
        plan.calibrated(replace(PROMISE, unit="person"))
    with pytest.raises(InvalidArgument, match="protects one person, not what was asked"):
        by_person(plan).calibrated(PROMISE)
    made = plan.calibrated(PROMISE)
    with pytest.raises(InvalidArgument, match="protects one person, not what was asked"):
        by_person(made)


def test_public_sizes_ask_for_replace_one_and_twice_the_shift():
    promise = replace(PROMISE, adjacency="replace_one")
    plan = bare_plan(north=182, west=55).calibrated(promise)
    (statement,) = plan.statements()
    assert statement.adjacency == plan.record_adjacency == "replace_one"
    assert 3.99 < statement.epsilon <= 4.0
    added = bare_plan(north=182, west=55).calibrated(PROMISE)
    for name, part in plan.local.items():
        assert part.noise > 1.2 * added.local[name].noise
        event = ev.Repeated(part.event, plan.rounds)
        assert part.epsilon(1e-5, plan.rounds) == accounting.epsilon(event, 1e-5, adjacency="replace_one")
    assert "this or another one" in plan.explain()
    assert Plan.from_json(plan.to_json()) == plan


def test_clients_with_two_relations_are_refused():
    parts = bare_plan(north=182, west=55).calibrated(PROMISE).local
    mixed = {**parts, "west": replace(parts["west"], adjacency="replace_one")}
    with pytest.raises(InvalidArgument, match="one adjacency"):
        Plan("study", 10, mixed)


def test_charges_are_each_clients_event_once_per_round_on_its_account():
    plan = bare_plan(north=182, west=55).calibrated(PROMISE)
    charges = plan.charges([Hospital("north", "n"), Hospital("west", "w")])
    assert charges == {"n": {plan.local["north"].event: 10}, "w": {plan.local["west"].event: 10}}


@pytest.mark.parametrize(
    "clients",
    [
        [],
        [Hospital("north", "n")],
        [Hospital("north", "n"), Hospital("west", "n")],
        [Hospital("north", "n"), Hospital("west", "w"), Hospital("east", "e")],
    ],
)
def test_clients_other_than_the_plans_or_on_a_shared_account_are_refused(clients):
    with pytest.raises(InvalidArgument, match="account of its own"):
        bare_plan(north=182, west=55).calibrated(PROMISE).charges(clients)


def test_weights_are_the_declared_shares():
    assert bare_plan(north=75, west=25).weights == {"north": 0.75, "west": 0.25}


def test_a_plan_cannot_be_changed():
    plan = bare_plan(north=182)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.rounds = 20
    with pytest.raises(TypeError):
        plan.local["north"] = LOCAL
    sizes = {"north": LOCAL}
    kept = Plan("study", rounds=1, local=sizes)
    sizes["west"] = LOCAL
    assert list(kept.local) == ["north"]


def test_a_plan_comes_back_from_json_equal():
    for plan in (bare_plan(north=182, west=55), bare_plan(north=182).calibrated(PROMISE)):
        assert Plan.from_json(plan.to_json()) == plan
        assert Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_a_plans_json_with_other_or_missing_fields_is_refused():
    plain = json.loads(bare_plan(north=182).to_json())
    for change in ({"version": 5}, {"extra": 1}, {"rounds": 0}, {"local": {}}, {"local": 3}):
        with pytest.raises(InvalidArgument):
            Plan.from_json(json.dumps({**plain, **change}))
    del plain["rounds"]
    for text in ("{", "[]", "3", json.dumps(plain)):
        with pytest.raises(InvalidArgument):
            Plan.from_json(text)


def test_a_plan_of_the_version_before_rules_of_aggregation_is_read_and_means_the_mean():
    plan = bare_plan(north=182)
    plain = {**json.loads(plan.to_json()), "version": 3}
    with pytest.raises(InvalidArgument, match="its fields must be"):
        Plan.from_json(json.dumps(plain))
    assert plain.pop("aggregation") == {"kind": "mean"}
    assert Plan.from_json(json.dumps(plain)) == plan
    assert plan.aggregation == Mean()
    del plain["rounds"]
    with pytest.raises(InvalidArgument, match="its fields must be"):
        Plan.from_json(json.dumps(plain))


@pytest.mark.parametrize("rule", [{"kind": "median"}, {"kind": "mean", "trim": 1}, "mean", None])
def test_an_unknown_rule_of_aggregation_is_refused(rule):
    plain = json.loads(bare_plan(north=182).to_json())
    with pytest.raises(InvalidArgument):
        Plan.from_json(json.dumps({**plain, "aggregation": rule}))
    with pytest.raises(InvalidArgument, match="noise is proved for no other"):
        replace(bare_plan(north=182), aggregation=rule)


def test_a_plans_json_that_claims_more_than_its_noise_gives_is_refused():
    plain = json.loads(bare_plan(north=182).calibrated(PROMISE).to_json())
    plain["local"]["north"]["noise_multiplier"] /= 2
    with pytest.raises(InvalidArgument, match="more than"):
        Plan.from_json(json.dumps(plain))


def test_the_explanation_names_every_client_with_its_noise_and_epsilon():
    text = bare_plan(north=182, west=55).calibrated(PROMISE).explain()
    assert "north: 10 steps a round on about 16 of 182 declared records" in text
    assert text.count("ε ≤") == 2 + 2  # and one round beside all of them
    assert "noise multiplier" not in bare_plan(north=182).explain()


@pytest.mark.parametrize("bad", [{"name": " "}, {"rounds": 0}, {"local": {}}, {"server_learning_rate": -1.0}])
def test_a_bad_plan_is_refused_by_name(bad):
    with pytest.raises(InvalidArgument) as refusal:
        replace(bare_plan(north=182), **bad)
    assert refusal.value.argument in bad


def test_epochs_are_passes_over_the_declared_size_in_whole_steps():
    assert LocalPlan(size=60_000, batch_size=256, epochs=10, clip_norm=1.0).steps == 2344  # 2343.75
    assert LocalPlan(size=100, batch_size=10, epochs=0.5, clip_norm=1.0).steps == 5
    with pytest.raises(InvalidArgument, match="give one"):
        LocalPlan(size=100, batch_size=10, epochs=1, steps=10, clip_norm=1.0)
    with pytest.raises(InvalidArgument, match="steps"):
        LocalPlan(size=100, batch_size=10, clip_norm=1.0)


def test_a_local_plan_alone_can_be_calibrated():
    plan = LocalPlan(size=60_000, batch_size=256, epochs=10, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
    assert plan.steps == 2344
    assert 2.999 < plan.epsilon(1e-5) <= 3.0
    with pytest.raises(InvalidArgument, match="one record"):
        plan.calibrated(Guarantee(3.0, 1e-5, unit="client"))
