from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.fedavg import FedAvg
from dpfed.federated.algorithms.protocol import ModelChange
from dpfed.federated.algorithms.registry import KINDS, bind, build, of_plan, require_fitting_steps
from dpfed.federated.algorithms.scaffold import Scaffold
from dpfed.plan.plan import Algorithm, ClientPlan, FixedCohort, LocalPlan, Plan

LOCAL = dict.fromkeys("abc", LocalPlan(size=20, batch_size=5, steps=2))


def plan(**options) -> Plan:
    return Plan("study", 3, LOCAL, **{"style": "none", "weighting": "equal", **options})


def test_every_kind_is_found_by_the_name_that_its_class_has():
    assert {"fedavg", "fedprox", "fedopt", "scaffold", "feddyn"} <= set(KINDS)
    assert all(kind.kind == name for name, kind in KINDS.items())
    assert build("fedavg", server_learning_rate=0.5) == FedAvg(0.5)


def test_a_plan_hands_its_server_rate_and_its_constants_to_the_algorithm_it_names():
    assert of_plan(plan(server_learning_rate=0.5)) == FedAvg(0.5)
    found = of_plan(plan(algorithm=Algorithm("scaffold"), cohort=FixedCohort(2)))
    assert found.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("kind", "options", "what"),
    [("fedsgd", {}, "kind must be one of"), ("fedavg", {"rate": 1.0}, "its options are: server_learning_rate")],
)
def test_unknown_kinds_and_options_are_refused(kind, options, what):
    with pytest.raises(InvalidArgument, match=what):
        build(kind, **options)


def test_what_keeps_state_must_be_frozen_and_is_refused_with_a_secret_cohort_of_fixed_size():
    @dataclass
    class Leaking(ModelChange):
        keeps_state = True

        def start(self, weights):
            return {"weights": weights}

        def step(self, state, mean):
            return state

    with pytest.raises(InvalidArgument, match="make it a frozen dataclass"):
        bind(Leaking(), plan())
    client = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)
    secret = plan(style="user", client=client, cohort=FixedCohort(2, secret=True))
    with pytest.raises(InvalidArgument, match="secret cohort of fixed size"):
        bind(Scaffold(), secret)
    assert np.isfinite(bind(Scaffold(), plan()).length)


def test_clients_with_an_optimizer_of_their_own_do_not_fit_what_reads_their_gradients():
    clients = [SimpleNamespace(takes_plain_steps=True), SimpleNamespace(takes_plain_steps=False)]
    require_fitting_steps(FedAvg(), clients)
    require_fitting_steps(Scaffold(), clients[:1])
    with pytest.raises(InvalidArgument, match="scaffold is defined for clients that take plain steps"):
        require_fitting_steps(Scaffold(), clients)
