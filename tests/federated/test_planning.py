from __future__ import annotations

import json

import pytest

from dpfed.config import RunConfig
from dpfed.errors import InvalidArgument
from dpfed.events import TreeAggregation
from dpfed.federated.data import prepare
from dpfed.federated.planning import describe_algorithm, make_plan
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.algorithm import Algorithm
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort

RUN = {
    "name": "wards",
    "data": {"source": "sklearn:iris", "partition": {"kind": "quantity", "sizes": [80, 40]}, "names": ["a", "b"]},
    "model": {"kind": "logistic"},
    "rounds": 4,
    "local": {"steps": 3, "batch_size": 10, "learning_rate": 0.5},
    "privacy": {"style": "sample", "record": {"epsilon": 4, "delta": 1e-5, "clip_norm": 1.5}},
}
LOCAL = RUN["local"]
CLIENT = {"epsilon": 8, "delta": 1e-6, "clip_norm": 2.0}


def plan(**changes):
    values = json.loads(json.dumps(RUN))
    for path, value in changes.items():
        block = values
        *outer, last = path.split("__")
        for key in outer:
            block = block[key]
        block[last] = value
    config = RunConfig.of(values)
    return make_plan(config, prepare(config.data))


def test_each_client_gets_its_declared_size_and_the_noise_it_needs():
    made = plan()
    assert {name: part.size for name, part in made.local.items()} == {"a": 80, "b": 40}
    assert made.local["b"].noise > made.local["a"].noise
    assert made.guarantee.epsilon == 4
    assert made.record_epsilon(1e-5) == pytest.approx(4, rel=1e-3)
    assert (made.local["a"].clip_norm, made.local["a"].steps, made.local["a"].batch_size) == (1.5, 3, 10)


def test_one_noise_for_all_is_that_of_the_binding_client():
    made = plan(privacy__record={**RUN["privacy"]["record"], "noise": "shared"})
    assert made.local["a"].noise == made.local["b"].noise
    assert made.local["b"].noise == pytest.approx(plan().local["b"].noise, rel=1e-3)


def test_noise_that_is_given_promises_what_it_keeps_at_the_delta_asked_for():
    made = plan(privacy__record={"noise_multiplier": 1.3, "delta": 1e-7, "clip_norm": 1})
    assert {part.noise for part in made.local.values()} == {1.3}
    assert made.guarantee.delta == 1e-7
    assert made.guarantee.epsilon == made.record_epsilon(1e-7) == made.epsilon("b", 1e-7)


def test_noise_of_the_server_that_is_given_promises_what_it_keeps():
    given = {"noise_multiplier": 2.0, "delta": 1e-6, "clip_norm": 1}
    made = plan(privacy={"style": "user", "client": given})
    assert made.client_guarantee.epsilon == made.client_epsilon(1e-6)
    assert made.guarantee is None


def test_hybrid_keeps_both_promises():
    made = plan(privacy={**RUN["privacy"], "style": "hybrid", "client": CLIENT})
    assert [(promise.unit, promise.epsilon, promise.delta) for promise in made.guarantees] == [
        ("record", 4, 1e-5),
        ("client", 8, 1e-6),
    ]
    assert made.client.clip_norm == 2.0
    assert made.client_epsilon(1e-6) <= 8


def test_true_counts_as_sizes_promise_for_replacing_a_record():
    made = plan(data__sizes="public")
    assert {part.adjacency for part in made.local.values()} == {"replace_one"}
    assert made.guarantee.adjacency == "replace_one"
    assert made.local["a"].noise > plan().local["a"].noise
    given = plan(data__sizes="public", privacy__record={"noise_multiplier": 1.3, "delta": 1e-5, "clip_norm": 1})
    assert given.guarantee.adjacency == "replace_one"


def test_a_secret_cohort_of_fixed_size_promises_for_replacing_a_client():
    client = {"noise_multiplier": 2.0, "delta": 1e-6, "clip_norm": 1}
    made = plan(cohort={"kind": "fixed", "size": 1, "secret": True}, privacy={"style": "user", "client": client})
    assert made.cohort == FixedCohort(1, secret=True)
    assert made.client_guarantee.adjacency == "replace_one"


def test_style_none_takes_true_counts_and_no_larger_batch():
    made = plan(privacy={"style": "none"}, data__partition={"kind": "iid", "clients": 60, "minimum": 1}, data__names=[])
    assert made.units == ()
    assert {part.batch_size for part in made.local.values()} == {2}


@pytest.mark.parametrize(
    ("cohort", "drawn"), [({"kind": "all"}, All()), ({"kind": "poisson", "rate": 0.5}, PoissonCohort(0.5))]
)
def test_cohorts_are_those_of_the_file(cohort, drawn):
    assert plan(cohort=cohort).cohort == drawn


@pytest.mark.parametrize(
    ("block", "algorithm"),
    [
        ({"kind": "fedavg"}, Algorithm("fedavg", {"server_learning_rate": 1.0})),
        ({"kind": "fedprox", "proximal": 0.1}, Algorithm("fedprox", {"proximal": 0.1, "server_learning_rate": 1.0})),
        ({"kind": "scaffold"}, Algorithm("scaffold", {"server_learning_rate": 1.0, "option": 2})),
        ({"kind": "feddyn", "alpha": 0.5}, Algorithm("feddyn", {"alpha": 0.5})),
        ({"kind": "iceadmm", "rho": 1}, Algorithm("iceadmm", {"rho": 1.0, "rho_factor": 1.0})),
        ({"kind": "mine:Half"}, Algorithm("mine:Half", {})),
        (
            {"kind": "mine:Half", "options": {"by": 2}, "server_learning_rate": 0.5},
            Algorithm("mine:Half", {"by": 2, "server_learning_rate": 0.5}),
        ),
    ],
)
def test_algorithms_are_those_of_the_file(block, algorithm):
    assert plan(algorithm=block, weighting="equal").algorithm == algorithm


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"weighting": "declared"}, "weighting: equal"),
        ({"local": {"epochs": 1, "batch_size": 10, "learning_rate": 0.5}}, "declare steps"),
        ({"local": {**LOCAL, "momentum": 0.5}}, "optimizer: sgd without"),
        ({"local": {**LOCAL, "optimizer": "adam"}}, "optimizer: sgd without"),
        ({"local": {**LOCAL, "weight_decay": 0.5}}, "optimizer: sgd without"),
        ({"local": {**LOCAL, "schedule": {"kind": "cosine"}}}, "optimizer: sgd without"),
        ({"algorithm": {"kind": "scaffold", "option": 1}}, "1 needs gradients on all records"),
    ],
)
def test_what_scaffold_is_not_for_is_refused_before_anything_is_run(changed, why):
    with pytest.raises(InvalidArgument, match=why):
        plan(**{"algorithm": {"kind": "scaffold"}, "weighting": "equal", **changed})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"weighting": "declared"}, "weighting: equal"),
        ({"local": {**LOCAL, "momentum": 0.5}}, "optimizer: sgd without"),
        ({"local": {**LOCAL, "schedule": {"kind": "cosine"}}}, "optimizer: sgd without"),
        ({"local": {**LOCAL, "learning_rate": 1.1}}, "learning_rate × rho must be at most 1, got 1.1 × 1"),
        ({"algorithm": {"kind": "iceadmm", "rho": [1.0, 1.0]}}, "2 numbers for"),
        ({"algorithm": {"kind": "iadmm", "rho": 1.0}}, "write steps: 1"),
        ({"algorithm": {"kind": "admm", "rho": 1.0}}, "style: none"),
    ],
)
def test_what_an_admm_is_not_for_is_refused_before_anything_is_run(changed, why):
    with pytest.raises(InvalidArgument, match=why):
        plan(**{"algorithm": {"kind": "iceadmm", "rho": 1.0}, "weighting": "equal", **changed})


def test_what_an_admm_makes_of_a_plan_is_said_and_of_others_nothing():
    made = plan(algorithm={"kind": "iceadmm", "rho": 1.0, "rho_factor": 0.5}, weighting="equal", rounds=3)
    said = (
        "Public penalty ρ by round: 1, 0.5, 0.25. Proximal ζ = 1/learning_rate − ρ, at learning rate 0.5: 1, 1.5, 1.75."
    )
    assert describe_algorithm(made) == said
    assert describe_algorithm(plan(algorithm={"kind": "feddyn", "alpha": 1}, weighting="equal")) == ""
    assert describe_algorithm(plan(algorithm={"kind": "mine:Half"})) == ""


def test_a_learning_rate_of_one_is_given_to_an_algorithm_whose_default_is_another():
    block = {"kind": "fedopt", "server_learning_rate": 1.0}
    assert plan(algorithm=block).algorithm.parameters["server_learning_rate"] == 1.0


def test_every_other_setting_reaches_the_plan():
    made = plan(
        weighting="declared",
        max_participations=3,
        spare_rounds=1,
        max_sites_per_person=2,
        minimum_cohort=2,
        local={"epochs": 2, "batch_size": 10, "learning_rate": 0.25},
        privacy__record={**RUN["privacy"]["record"], "adaptive": {"count_noise": 9, "quantile": 0.4}},
    )
    assert (made.weighting, made.max_participations, made.spare_rounds) == ("declared", 3, 1)
    assert (made.max_sites_per_person, made.minimum_cohort) == (2, 2)
    assert (made.local["a"].steps, made.local["b"].steps, made.local["a"].learning_rate) == (16, 8, 0.25)
    assert made.local["a"].adaptive == AdaptiveClip(quantile=0.4, learning_rate=0.2, count_noise=9.0)


def test_trees_of_clients_and_server_reach_the_plan():
    made = plan(
        cohort={"kind": "fixed", "size": 1},
        max_participations=2,
        local={"epochs": 2, "batch_size": 10, "learning_rate": 0.5},
        privacy={
            "style": "hybrid",
            "record": {**RUN["privacy"]["record"], "tree": {"max_participations": 2, "restarts": 1}},
            "client": {**CLIENT, "tree": {"min_separation": 2, "restarts": 1}},
        },
    )
    assert made.local["a"].event == TreeAggregation(made.local["a"].noise, 16, 2, 8, 1)
    assert made.client_event == TreeAggregation(made.client.noise, 4, 2, 2, 1)


def test_a_second_pass_that_is_not_declared_is_refused():
    with pytest.raises(InvalidArgument, match="8 steps are more than max_participations=1 passes of 4"):
        plan(
            local={"steps": 8, "batch_size": 10, "learning_rate": 0.5},
            privacy__record={**RUN["privacy"]["record"], "tree": {"max_participations": 1}},
        )
