"""Canary clients go through real rounds, and are found as well as the noise of the plan allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.aggregation.robust_rules import CenteredClipping
from dpfed.audit.bounds import from_scores
from dpfed.audit.clients import CanaryClient, audit_clients
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.cohort import PoissonCohort
from dpfed.plan.plan import ClientPlan, FixedCohort, LocalPlan, Plan
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource
from dpfed.training.objective import LocalObjective

LOCAL = LocalPlan(size=10, batch_size=5, steps=1)
USER = Plan(
    "study",
    rounds=2,
    local={f"ward-{number}": LOCAL for number in range(5)},
    style="user",
    client=ClientPlan(clip_norm=0.5, noise_multiplier=1.0),
    weighting="equal",
)


def test_a_canary_client_sends_one_long_coordinate_whatever_it_is_sent():
    sent = CanaryClient("c", "c", 2, -3.0).train(LOCAL, LocalObjective(np.ones(4)), SeededSource(1))
    assert sent.tolist() == [0, 0, -3, 0]


@pytest.mark.parametrize("style", ["user", "local"])
def test_scores_are_as_far_apart_as_the_noise_says(style):
    """Two rounds at noise 1: sums of 2 against 0 (±2 under replace-one), spread √2; false alarm below 1e-6."""
    count = 120 if style == "user" else 40
    plan = replace(USER, style=style)
    found = audit_clients(plan, count, source=SeededSource(2))
    members, others = found.sums[found.is_in], found.sums[~found.is_in]
    expected = 4.0 if style == "local" else 2.0
    assert members.mean() - others.mean() == pytest.approx(expected, abs=5 * 2**0.5 * 2 / count**0.5)
    assert ((members.var() + others.var()) / 2) ** 0.5 == pytest.approx(2**0.5, rel=5 * (2 * count) ** -0.5)


CENTRED = replace(USER, rounds=3, aggregation=CenteredClipping(max_faulty=1))
FORMS = {
    "user": USER,
    "hybrid": replace(
        USER, style="hybrid", local={name: replace(LOCAL, clip_norm=1.0, noise_multiplier=1.0) for name in USER.local}
    ),
    "local": replace(USER, style="local"),
    "local, Laplace": replace(USER, style="local", client=replace(USER.client, norm="l1")),
    "secret Poisson cohort": replace(USER, cohort=PoissonCohort(0.5, secret=True)),
    "cohort that is seen": replace(USER, cohort=FixedCohort(4)),
    "schedule": replace(USER, noise_schedule=(2.0, 0.5)),
    "adaptive": replace(USER, client=replace(USER.client, adaptive=AdaptiveClip(0.5, 0.2, 20.0))),
    "tree": replace(USER, client=replace(USER.client, tree=RoundTree(min_separation=1)), max_participations=2),
    "centred": CENTRED,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_promise_for_clients_can_be_audited_and_none_is_refuted(form):
    """The bound at significance 1e-6 is above the truth with that probability."""
    plan = FORMS[form]
    found = audit_clients(plan, 24, source=SeededSource(5))
    (accounted,) = (each for each in plan.statements(1e-5) if each.unit == "client")
    assert from_scores(found.of_members, found.of_others, 1e-5, 1e-6).epsilon <= accounted.epsilon
    assert 0 < found.is_in.sum() < len(found.scores)


def test_a_client_that_is_not_in_is_absent_and_not_counted_as_short():
    """Around a far centre a client who sends zero would pull by a whole clip norm; one who is not there does not."""
    plan = replace(CENTRED, rounds=6, client=replace(USER.client, noise_multiplier=1e-3))
    found = audit_clients(plan, 40, source=SeededSource(6))
    per_round = found.sums / plan.rounds
    assert per_round[found.is_in] == pytest.approx(1.0, abs=0.05)
    assert per_round[~found.is_in] == pytest.approx(0.0, abs=0.05)


def test_progress_is_told_after_every_round():
    told = []
    audit_clients(USER, 10, source=SeededSource(7), advance=lambda: told.append(1))
    assert len(told) == USER.rounds


def test_without_noise_to_speak_of_every_canary_is_found():
    plan = replace(USER, client=replace(USER.client, noise_multiplier=1e-3))
    found = audit_clients(plan, 60, source=SeededSource(3))
    assert found.of_members.min() > found.of_others.max()
    bound = from_scores(found.of_members, found.of_others, 1e-5, 0.05)
    assert 0.8 * bound.ceiling < bound.epsilon <= bound.ceiling


def test_a_fixed_cohort_keeps_its_rate_exactly():
    secret = replace(USER, cohort=FixedCohort(2, secret=True)).calibrated(Guarantee(8.0, 1e-5, "client", "replace_one"))
    assert len(audit_clients(secret, 12, source=SeededSource(4)).scores) == 15  # 2 of 5, and 6 of 15


def test_a_plan_that_promises_nothing_for_clients_is_refused():
    plan = Plan("study", 1, {"ward": replace(LOCAL, clip_norm=1.0, noise_multiplier=1.0)})
    with pytest.raises(InvalidArgument, match="style sample promises nothing for one client"):
        audit_clients(plan, 10)
