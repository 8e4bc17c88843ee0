"""Canary clients go through real rounds, and are found as well as the noise of the plan allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.audit.bounds import from_scores
from dpfed.audit.clients import CanaryClient, audit_clients
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.plan import ClientPlan, FixedCohort, LocalPlan, Plan
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
