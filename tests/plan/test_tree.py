"""Plans whose noise is a tree's: how often a record takes part is declared, and more is refused."""

from __future__ import annotations

import json

import pytest

from dpfed.accounting.queries import epsilon
from dpfed.errors import InvalidArgument
from dpfed.events import Repeated, TreeAggregation
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.client import ClientPlan
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan
from dpfed.plan.tree import TreeNoise

PROMISE = Guarantee(3.0, 1e-5)


def a_plan(**others: object) -> LocalPlan:
    defaults = {"size": 105, "batch_size": 10, "steps": 11, "clip_norm": 1.0, "tree": TreeNoise()}
    return LocalPlan(**{**defaults, **others})  # type: ignore[arg-type]


def test_a_pass_is_one_event_with_one_participation() -> None:
    plan = a_plan(noise_multiplier=4.0)
    assert plan.pass_steps == 11
    assert plan.event == TreeAggregation(4.0, 11, 1, 11)
    assert plan.charge == (plan.event, 1)


def test_a_second_pass_that_is_not_declared_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="12 steps are more than max_participations=1 passes of 11"):
        a_plan(steps=12)
    with pytest.raises(InvalidArgument, match="21 steps are more"):
        a_plan(steps=0, epochs=2)
    assert a_plan(steps=0, epochs=2, tree=TreeNoise(2)).steps == 21


def test_declared_passes_and_restarts_are_in_the_event() -> None:
    plan = a_plan(steps=33, noise_multiplier=9.0, tree=TreeNoise(max_participations=3, restarts=2))
    assert plan.event == TreeAggregation(9.0, 33, 3, 11, 2)


def test_noise_is_calibrated_for_all_rounds_of_trees() -> None:
    plan = a_plan(steps=22, tree=TreeNoise(2)).calibrated(PROMISE, rounds=3)
    spent = epsilon(Repeated(TreeAggregation(plan.noise, 22, 2, 11), 3), 1e-5)
    assert 2.999 < spent <= 3.0
    assert plan.epsilon(1e-5, rounds=3) == spent


def test_nothing_is_gained_from_smaller_batches() -> None:
    """Half the batch is twice the steps: one more level, and no amplification by sampling."""
    large, small = (a_plan(size=1024, batch_size=size, steps=1024 // size).calibrated(PROMISE) for size in (64, 32))
    assert small.noise > large.noise


def test_a_step_of_a_tree_has_no_event_of_its_own() -> None:
    with pytest.raises(InvalidArgument, match=r"one event together: ask for plan\.event"):
        _ = a_plan(noise_multiplier=4.0).step_event


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("tree", {"norm": "l1"}),
        ("tree", {"adaptive": AdaptiveClip(0.5, 0.2, 10.0)}),
        ("tree", {"tree": True}),
        ("restarts", {"tree": TreeNoise(restarts=11)}),
    ],
)
def test_what_is_not_proved_for_a_tree_is_refused(name: str, others: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        a_plan(**others)
    assert caught.value.argument == name


@pytest.mark.parametrize(("name", "bad"), [("max_participations", 0), ("restarts", -1), ("restarts", 1.5)])
def test_a_bad_number_is_refused_by_its_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidArgument, match=name):
        TreeNoise(**{name: bad})  # type: ignore[arg-type]


def test_a_plan_with_a_tree_comes_back_from_json() -> None:
    plan = a_plan(steps=22, noise_multiplier=4.0, tree=TreeNoise(2, 1))
    assert LocalPlan.from_plain(json.loads(json.dumps(plan.to_plain()))) == plan
    whole = Plan("study", rounds=2, local={"ward": plan})
    assert Plan.from_json(whole.to_json()) == whole


def test_a_plan_written_before_there_were_trees_is_read() -> None:
    plain = a_plan(tree=None, noise_multiplier=4.0).to_plain()
    del plain["tree"]
    assert LocalPlan.from_plain(plain) == a_plan(tree=None, noise_multiplier=4.0)


def test_a_federated_plan_charges_a_tree_for_every_round() -> None:
    whole = Plan("study", rounds=4, local={"ward": a_plan()}).calibrated(PROMISE)
    event = whole.local["ward"].event
    assert isinstance(event, TreeAggregation)
    assert epsilon(Repeated(event, 4), 1e-5) == whole.record_epsilon(1e-5) <= 3.0
    assert "a tree of partial sums" in whole.explain()


@pytest.mark.parametrize("style", ["none", "user"])
def test_a_tree_at_clients_that_add_no_noise_is_refused(style: str) -> None:
    client = ClientPlan(clip_norm=1.0) if style == "user" else None
    with pytest.raises(InvalidArgument, match="adds no noise at the clients"):
        Plan("study", rounds=4, local={"ward": a_plan()}, style=style, client=client)
