from __future__ import annotations

import math

import pytest

from dpfed.federated.metrics import Score
from dpfed.federated.results import RUNNING, RoundResult
from dpfed.guarantee import Guarantee
from dpfed.integrations.tracked import constants, numbers
from run_directories import SIZES, plan_of


def facts(*scores: Score, **options):
    spent = (Guarantee(1.5, 1e-5), Guarantee(2.5, 1e-5, "client"))
    return RoundResult(2, RUNNING, None, (), spent, "north", None, scores, **options).facts()


def test_every_unit_has_its_epsilon():
    assert numbers(facts()) == {"epsilon/record": 1.5, "epsilon/client": 2.5}


def test_scores_on_private_records_are_left_out():
    told = numbers(facts(Score("loss", 0.4711), Score("dice", 0.8), Score("mse", 0.5)))
    assert told.keys() == {"epsilon/record", "epsilon/client"}


def test_a_score_that_an_earlier_version_wrote_with_a_mark_is_left_out():
    record = facts() | {"metrics": {"dice": {"value": 0.8, "mark": "not covered"}}}
    assert numbers(record).keys() == {"epsilon/record", "epsilon/client"}


def test_scores_on_public_records_have_no_mark():
    told = numbers(facts(Score("loss", 0.5, is_public=True), Score("dice", 0.8, is_public=True)))
    assert (told["loss"], told["dice"]) == (0.5, 0.8)


def test_a_score_that_is_not_finite_is_left_out():
    assert "dice" not in numbers(facts(Score("dice", math.nan, is_public=True)))


@pytest.mark.parametrize("style", ["none", "sample", "user", "hybrid"])
def test_constants_are_those_of_the_plan(style):
    plan = plan_of(style)
    told = constants(plan)
    assert (told["style"], told["rounds"], told["clients"]) == (style, "3", str(len(SIZES)))
    assert told["local.clip_norm"] == "1.0"
    assert "local.size" not in told  # sites differ in it
    if style in ("user", "hybrid"):
        assert told["client_guarantee.epsilon"] == "8.0"
        assert float(told["client.noise_multiplier"]) == plan.client.noise_multiplier
