from __future__ import annotations

from dataclasses import replace

import pytest

from dpfed.guarantee import Guarantee
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.fits import fit_budget
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.plan.tree import RoundTree

PROMISE = Guarantee(4.0, 1e-5)
SITES = {
    "large": LocalPlan(size=200, batch_size=10, steps=5, clip_norm=1.0),
    "small": LocalPlan(size=40, batch_size=10, steps=5, clip_norm=1.0),
}


def epsilon(plan, rounds, delta=1e-5):
    return replace(plan, rounds=rounds, guarantee=None).record_epsilon(delta)


@pytest.mark.parametrize("budget", [0.5, 2.0, 4.0, 9.0])
def test_the_rounds_that_fit_are_the_most_that_do(budget):
    plan = Plan("study", 10, SITES).calibrated(PROMISE)
    rounds = fit_budget(plan, replace(PROMISE, epsilon=budget)).rounds
    assert not rounds or epsilon(plan, rounds) <= budget
    assert epsilon(plan, rounds + 1) > budget


def test_the_promised_budget_is_fitted_by_the_plan_itself():
    plan = Plan("study", 10, SITES).calibrated(PROMISE)
    fit = fit_budget(plan, PROMISE)
    assert fit.rounds == 10
    assert fit.noise_multiplier == pytest.approx(plan.local["small"].noise)


def test_the_noise_is_that_of_whoever_needs_most():
    plan = Plan("study", 10, SITES).calibrated(PROMISE)
    tighter = replace(PROMISE, epsilon=1.0)
    assert fit_budget(plan, tighter).noise_multiplier == plan.calibrated(tighter).local["small"].noise


def test_clients_fit_as_well():
    promise = Guarantee(8.0, 1e-5, "client")
    local = {str(name): LocalPlan(size=9, batch_size=3, steps=1) for name in range(50)}
    cohort = PoissonCohort(0.2, secret=True)
    plan = Plan("study", 20, local, style="user", client=ClientPlan(clip_norm=1.0), cohort=cohort).calibrated(promise)
    fit = fit_budget(plan, replace(promise, epsilon=4.0))
    longer = replace(plan, client_guarantee=None, rounds=fit.rounds + 1)
    assert 0 < fit.rounds < 20
    assert longer.client_epsilon(1e-5) > 4.0
    assert fit.noise_multiplier > plan.client.noise


@pytest.mark.parametrize(("tree", "most"), [(RoundTree(3, restarts=2), 3), (RoundTree(), 10)])
def test_a_tree_over_the_rounds_is_for_all_of_them_or_none(tree, most):
    client = ClientPlan(clip_norm=1.0, noise_multiplier=9.0, tree=tree)
    cohort = FixedCohort(1) if most < 10 else All()
    plan = Plan("study", 10, SITES, style="hybrid", cohort=cohort, client=client, max_participations=most)
    plan = plan.calibrated(PROMISE)
    assert [fit_budget(plan, replace(PROMISE, epsilon=budget)).rounds for budget in (2.0, 4.0, 40.0)] == [0, 10, 10]


def test_a_limit_on_participations_is_kept():
    plan = Plan("study", 10, SITES, max_participations=2).calibrated(PROMISE)
    assert fit_budget(plan, PROMISE).rounds >= 10
