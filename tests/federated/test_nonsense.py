"""Nothing that a client sends becomes the model, or stops a run: 1e308, infinity, NaN, sums that overflow."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated.messages import Update
from dpfed.federated.state.layout import Layout
from dpfed.plan.algorithm import Algorithm
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.plan.rules import MOST_NORM
from dpfed.plan.tree import RoundTree
from studies import DIMENSION, Crash, a_plan, crash_at

STYLES = ("none", "sample", "user", "hybrid")
ALGORITHMS = (
    Algorithm("fedavg"),
    Algorithm("fedprox", {"proximal": 0.1}),
    *(Algorithm("fedopt", {"optimizer": name}) for name in ("momentum", "adam", "yogi", "adagrad")),
)
NONSENSE = {
    "1e308": np.full(DIMENSION, 1e308),
    "-1e308": np.full(DIMENSION, -1e308),
    "one 1e307": np.array([1e307, 0, 0]),
    "inf": np.full(DIMENSION, np.inf),
    "nan": np.full(DIMENSION, np.nan),
    "whole numbers": np.full(DIMENSION, 2**62),
    "huge whole numbers": [10**400] * DIMENSION,
    "longdouble": np.full(DIMENSION, np.longdouble("1e4000")),
    "just beyond": np.array([1e12, 0, 0]),
    "1e9": np.full(DIMENSION, 1e9),
    "one 2e6": np.array([2e6, 0, 0]),
}


def send(study, value, *places: int):
    for place in places:
        study.clients[place].train = lambda *_: value
    return study


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("places", [(0,), (0, 2), (0, 1, 2)], ids=["one", "two", "all"])
def test_nonsense_of_one_client_or_several_neither_becomes_the_model_nor_stops_the_run(
    open_study, silent, style, kind, places
):
    study = send(open_study(style, rounds=2), NONSENSE[kind], *places)
    results = list(study.federation(source=silent))
    assert [result.number for result in results] == [1, 2]
    assert np.abs(results[-1].weights).max() < 3
    for result in results:
        assert set(result.participation.refused) == {study.clients[place].name for place in places}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.parametrize("style", STYLES)
def test_no_algorithm_lets_nonsense_into_the_model_or_its_state(open_study, silent, style, algorithm):
    study = send(open_study(style, rounds=2, algorithm=algorithm), NONSENSE["1e308"], 1, 2)
    federation = study.federation(source=silent)
    assert len(list(federation)) == 2
    assert np.abs(federation.weights).max() < 3
    assert all(np.abs(array).max() < 10 for array in federation._checkpoint.state.values())


@pytest.mark.parametrize("style", STYLES)
def test_minus_zero_is_a_number_like_others(open_study, silent, style):
    study = send(open_study(style, rounds=1), np.full(DIMENSION, -0.0), 0, 1, 2)
    (result,) = study.federation(source=silent)
    assert len(result.participation.contributed) == 3
    assert not result.weights.any()


def test_the_largest_norm_is_always_set_and_follows_from_the_plan():
    plain = LocalPlan(size=9, batch_size=3, steps=4, learning_rate=0.5)
    unclipped = Plan("study", 1, {"a": plain}, style="none")
    assert unclipped.largest_norm(100) == 2e4
    assert "an update of a root mean square above 2000 contributes zero" in unclipped.explain()
    assert a_plan("sample", {"north": 60}).largest_norm(100) == 1e6
    assert "an update longer than 1e+06 contributes zero" in a_plan("sample", {"north": 60}).explain()
    clipped = ClientPlan(clip_norm=20.0, noise_multiplier=5.0)
    assert Plan("study", 1, {"a": plain}, style="user", client=clipped).largest_norm(100) == 4e7
    for style in STYLES:
        assert 0 < a_plan(style, {"north": 60}).largest_norm(100) <= MOST_NORM
        assert a_plan(style, {"north": 60}, max_update_norm=7.0).largest_norm(100) == 7.0
    giant = ClientPlan(clip_norm=1e300, noise_multiplier=5.0)
    assert a_plan("user", {"north": 60}, client=giant).largest_norm(100) == MOST_NORM


@pytest.mark.parametrize("size", [10, 10**3, 10**6, 10**8])
def test_without_a_clip_norm_one_clients_1e9_does_not_fit_and_large_steps_of_an_honest_one_do(size):
    local = LocalPlan(size=9, batch_size=3, steps=10, learning_rate=1.0)
    largest = Plan("study", 1, {"a": local}, style="none").largest_norm(size)
    assert largest < 1e9
    assert largest >= 10 * 100 * math.sqrt(size)  # ten steps, each of which moves every number by a hundred


@pytest.mark.parametrize("norm", [0.0, -1.0, math.inf, math.nan, 2 * MOST_NORM, True, "7"])
def test_a_largest_norm_that_bounds_nothing_is_refused(norm):
    with pytest.raises(InvalidArgument, match="max_update_norm"):
        a_plan("sample", {"north": 60}, max_update_norm=norm)


@pytest.mark.parametrize("style", ["none", "sample"])
def test_a_million_updates_of_the_largest_norm_add_up_to_a_finite_model(style):
    plan = a_plan(style, {"north": 60}, max_update_norm=MOST_NORM)
    with np.errstate(over="raise"):
        assert np.isfinite(np.float32(plan.largest_norm(100) * 2.0**20))


class Exploding:
    """Leads to no finite model, or to no finite state, in one round."""

    proximal = 0.0

    def __init__(self, where: str) -> None:
        self.where, self.is_over = where, False

    def start(self, size):
        return {"mean": np.zeros(size)}

    def step(self, weights, update, state):
        factor = 1.0 if self.is_over else 1e308
        self.is_over = True
        if self.where == "state":
            return weights + update, {"mean": np.full(len(update), 10.0) * factor}
        return weights + 10 * factor, state


TREE = {
    "client": ClientPlan(clip_norm=1.0, noise_multiplier=5.0, tree=RoundTree(min_separation=1)),
    "max_participations": 3,
}


@pytest.mark.parametrize("where", ["model", "state"])
@pytest.mark.parametrize("style", [*STYLES, "tree"])
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_round_that_ended_without_a_finite_model_keeps_nothing_and_the_run_goes_on(
    open_study, where, style, is_new_process
):
    style, options = ("user", TREE) if style == "tree" else (style, {})
    study = open_study(style, rounds=3, spare_rounds=1, **options)
    algorithm = Exploding(where)
    federation = study.federation(algorithm=algorithm)
    with pytest.raises(PrivacyError, match=r"no longer finite after round 1.*nothing of the round is kept"):
        next(federation)
    run = study.folder / "run"
    assert list((run / "released").iterdir()) == list((run / "owner").iterdir()) == []
    if is_new_process:
        study.ledger.close()
        study = open_study(style, rounds=3, spare_rounds=1, **options)
        federation = study.federation(algorithm=algorithm)
    assert [result.number for result in federation] == [1, 2, 3]
    study.require_nothing_free()
    study.require_done()


def test_a_model_of_float32_that_overflows_when_it_is_stored_keeps_nothing_too(open_study):
    study = open_study("sample", spare_rounds=1, algorithm=Algorithm("fedavg", {"server_learning_rate": 1e300}))
    layout = Layout(("weights",), ((DIMENSION,),), "float32")
    with pytest.raises(PrivacyError, match="no longer finite"):
        next(study.federation(layout=layout))
    assert list((study.folder / "run" / "released").iterdir()) == []


def test_an_update_that_was_stored_is_screened_again_and_not_asked_for_again(open_study):
    """Of a version that let it in: using it again would make it the model."""
    study = open_study()
    federation = study.federation()
    with crash_at(2, is_after=True), pytest.raises(Crash):  # the charge and the updates
        next(federation)
    (north, *others) = federation._stored.updates(1).values()
    federation._stored.forget(1)
    federation._stored.write_updates(1, [Update("north", 1, np.full(DIMENSION, 1e308), north.head), *others])
    result = next(open_study().federation())
    assert result.participation.refused == {"north": "norm"}
    assert np.abs(result.weights).max() < 3
    assert study.committed() == {"north": 1, "west": 1, "harbour": 1}
