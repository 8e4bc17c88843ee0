from __future__ import annotations

import json

import pytest

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.files import READABLE, dumps, loads, version_of
from dpfed.plan.plan import Algorithm, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort, Population

EACH = LocalPlan(size=20, batch_size=5, steps=2)
NOISED = LocalPlan(size=20, batch_size=5, steps=2, clip_norm=1.0)
PLANS = {
    "bare": Plan("study", 3, {"north": EACH}, style="none", algorithm=Algorithm("fedprox", {"proximal": 0.1})),
    "promised": Plan("study", 3, {"north": NOISED, "west": NOISED}).calibrated(Guarantee(4.0, 1e-5)),
    "adaptive": Plan(
        "study",
        3,
        {"north": EACH, "west": EACH},
        style="user",
        cohort=FixedCohort(1),
        client=ClientPlan(clip_norm=1.0, noise_multiplier=5.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=9.0)),
    ),
    "population": Plan("study", 3, Population(1000, EACH), style="none", cohort=PoissonCohort(0.01)),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_as_it_was_written_and_is_written_the_same_again(name):
    text = dumps(PLANS[name])
    assert loads(text, Plan) == PLANS[name]
    assert dumps(loads(text, Plan)) == text
    assert version_of(text) in READABLE


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        json.dumps({**json.loads(dumps(PLANS["bare"])), "version": 99}),
        json.dumps({**json.loads(dumps(PLANS["bare"])), "extra": 1}),
        json.dumps({name: value for name, value in json.loads(dumps(PLANS["bare"])).items() if name != "rounds"}),
    ],
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(InvalidArgument, match="text must be the JSON form of a plan"):
        loads(text, Plan)


def test_a_text_without_a_version_has_version_zero():
    assert [version_of(text) for text in ("", "{}", "[1]", '{"version": null}')] == [0] * 4
