"""Each round of a scheduled plan as a plan of its own, and how often charges are counted."""

from __future__ import annotations

import pytest

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.plan.by_round import add_up, compose, count_left, list_costliest, make_round
from dpfed.plan.plan import LocalPlan, Plan

WARD = LocalPlan(size=9, batch_size=9, steps=1, clip_norm=1.0, noise_multiplier=1.0)
ONE, HALF, TWO = ev.Gaussian(1.0), ev.Gaussian(0.5), ev.Gaussian(2.0)


def a_plan(schedule=(2.0, 0.5)):
    return Plan("study", rounds=2, local={"ward": WARD}, noise_schedule=schedule)


def test_a_round_of_a_factor_is_a_plan_with_that_noise_and_no_schedule():
    made = make_round(a_plan(), 0.5)
    assert (made.noise_schedule, made.local["ward"].event) == (None, HALF)


def test_a_round_is_made_once_for_whoever_asks_again_and_is_none_of_another():
    plan = a_plan()
    assert plan.in_round(2) is plan.in_round(2)
    assert plan.in_round(1).local["ward"].event == TWO
    assert plan == a_plan()
    with pytest.raises(InvalidArgument):
        plan.in_round(3)


def test_charges_of_one_event_are_added_up_and_composed():
    assert add_up([(ONE, 1), (TWO, 2), (ONE, 3)]) == {ONE: 4, TWO: 2}
    assert compose({ONE: 4}) == ev.Repeated(ONE, 4)
    assert compose({ONE: 1, TWO: 1}) == compose({TWO: 1, ONE: 1})


def test_what_is_left_for_a_round_is_what_has_no_more_noise_than_it():
    plan = a_plan()
    assert [count_left(plan, "ward", number, {}) for number in (1, 2)] == [2, 1]
    assert [count_left(plan, "ward", number, {HALF: 1}) for number in (1, 2)] == [1, 0]
    assert list_costliest(plan, "ward", 1) == {HALF: 1}
