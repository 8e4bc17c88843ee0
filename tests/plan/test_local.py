"""Variants of a local plan: L1 with Laplace noise, layers on their own, and a clip norm that adapts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.plan import LocalPlan

FALSE_ALARM = 1e-6
PLAIN = LocalPlan(size=100, batch_size=16, steps=10, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.5)
ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=4.0)
L1 = replace(PLAIN, norm="l1")

rows = st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=8).map(np.array)


def test_an_l1_plan_is_charged_as_laplace():
    assert L1.event == ev.Repeated(ev.PoissonSampled(ev.Laplace(1.5), L1.sample_rate), 10)
    assert (L1.sensitivity, L1.sensitivity.norm) == (1.0, "l1")


def test_an_l1_plan_is_calibrated_by_the_same_accountant():
    plan = replace(L1, noise_multiplier=None).calibrated(Guarantee(3.0, 1e-5), rounds=2)
    whole = ev.Repeated(ev.PoissonSampled(ev.Laplace(plan.noise_multiplier), plan.sample_rate), 20)
    assert 2.99 < accounting.epsilon(whole, 1e-5) <= 3.0


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("groups", [1, 2, 3, 7, 1000])
def test_layers_on_their_own_stay_together_within_the_clip_norm(norm, groups):
    plan = replace(PLAIN, norm=norm, layers="each", clip_norm=0.7)
    power = 1 if norm == "l1" else 2
    whole = groups * Fraction(plan.group_clip_norm(groups)) ** power
    assert whole <= Fraction(0.7) ** power
    assert float(whole) == pytest.approx(0.7**power, rel=1e-12)


def test_layers_on_their_own_change_nothing_of_the_charge():
    assert replace(PLAIN, layers="each").event == PLAIN.event
    assert PLAIN.group_clip_norm(5) == PLAIN.clip_norm


def test_an_adaptive_plan_charges_sum_and_count_of_one_draw_as_one_sampled_event():
    plan = replace(PLAIN, adaptive=ADAPTIVE)
    pair = ev.Composed((ev.Gaussian(plan.sum_noise), ev.Gaussian(8.0)))
    assert plan.step_event == ev.PoissonSampled(pair, plan.sample_rate)
    assert plan.sum_noise > plan.noise == 1.5
    assert plan.epsilon(1e-5, rounds=3) == pytest.approx(PLAIN.epsilon(1e-5, rounds=3), rel=1e-9)


def test_the_next_clip_norm_divides_by_the_declared_batch_size():
    plan = replace(PLAIN, adaptive=ADAPTIVE)
    assert plan.next_clip(1.0, noisy_count=4.0) == pytest.approx(math.exp(-0.2 * 4 / 16))
    assert PLAIN.next_clip(1.0, noisy_count=4.0) == 1.0


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("norm", {"norm": "linf"}),
        ("layers", {"layers": "some"}),
        ("adaptive", {"adaptive": 0.5}),
        ("adaptive", {"adaptive": ADAPTIVE, "norm": "l1"}),
        ("count_noise", {"adaptive": replace(ADAPTIVE, count_noise=0.7)}),
        ("clip_norm", {"clip_norm": math.inf}),
    ],
)
def test_a_variant_that_does_not_go_together_is_refused_by_name(name, bad):
    with pytest.raises(InvalidArgument) as refusal:
        replace(PLAIN, **bad)
    assert refusal.value.argument == name


def test_a_plan_without_a_clip_norm_gets_no_noise():
    bare = LocalPlan(size=100, batch_size=16, steps=10)
    assert bare.clip_norm == math.inf
    with pytest.raises(InvalidArgument, match="no bound"):
        bare.calibrated(Guarantee(3.0, 1e-5))
    with pytest.raises(InvalidArgument, match="clip_norm"):
        replace(bare, noise_multiplier=1.0)


@pytest.mark.parametrize(
    "plan", [PLAIN, L1, replace(PLAIN, layers="each", adaptive=ADAPTIVE), LocalPlan(size=9, batch_size=3, steps=1)]
)
def test_a_local_plan_comes_back_from_plain_json_values(plan):
    assert LocalPlan.from_plain(json.loads(json.dumps(plan.to_plain(), allow_nan=False))) == plan


# ---- persons ----

PERSONS = replace(PLAIN, noise_multiplier=None, unit="person")


def test_a_plan_for_persons_is_charged_like_one_for_as_many_records():
    by_person, by_record = (
        replace(PERSONS, unit=unit).calibrated(Guarantee(3.0, 1e-5, unit), rounds=2) for unit in ("person", "record")
    )
    assert by_person.unit == "person"
    assert by_person.event == by_record.event
    assert LocalPlan.from_plain(json.loads(json.dumps(by_person.to_plain()))) == by_person


@pytest.mark.parametrize("asked", ["record", "client"])
def test_clipping_persons_promises_nothing_for_another_unit(asked):
    with pytest.raises(InvalidArgument, match=f"clipping each person protects one person, not .* per {asked}"):
        PERSONS.calibrated(Guarantee(3.0, 1e-5, asked))


def test_clipping_records_promises_nothing_for_a_person_and_says_what_would():
    with pytest.raises(InvalidArgument, match=r"protects one record, .* group the rows by person .* unit='person'"):
        PLAIN.calibrated(Guarantee(3.0, 1e-5, "person"))


@pytest.mark.parametrize("unit", ["client", "row", "", None])
def test_other_units_are_refused(unit):
    with pytest.raises(InvalidArgument, match="unit must be 'record' or 'person'"):
        replace(PLAIN, unit=unit)


def test_a_plan_that_was_written_before_there_were_units_is_for_records():
    plain = PLAIN.to_plain()
    del plain["unit"]
    assert LocalPlan.from_plain(plain).unit == "record"
