"""What a plan costs is what its charges cost in another accountant; the site that pays most is the one reported."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import AdjacencyMismatch, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import costs
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import LocalPlan, Plan

PROMISE = Guarantee(4.0, 1e-5)
SITE = LocalPlan(size=500, batch_size=16, steps=5, clip_norm=1.0)


@dataclass(frozen=True)
class Site:
    name: str
    account: str


def sites(plan):
    return [Site(name, f"account-{name}") for name in plan.local]


def translated(event):
    """The same event in the words of dp-accounting."""
    match event:
        case ev.Gaussian():
            return dpa.GaussianDpEvent(event.noise_multiplier)
        case ev.PoissonSampled():
            return dpa.PoissonSampledDpEvent(event.sample_rate, translated(event.event))
        case ev.Composed(events=(ev.Gaussian() as first, ev.Gaussian() as second)):
            both = first.noise_multiplier**-2 + second.noise_multiplier**-2
            return dpa.GaussianDpEvent(both**-0.5)  # its PLD accountant samples no composed event
        case ev.Repeated():
            return dpa.SelfComposedDpEvent(translated(event.event), event.count)


def by_dp_accounting(charges, delta):
    accountant = PLDAccountant(value_discretization_interval=5e-4)
    for event, count in charges.items():
        accountant.compose(translated(event), count)
    return accountant.get_epsilon(delta)


def random_plan(seed):
    draws = np.random.default_rng(seed)
    style = ("sample", "user", "hybrid")[seed % 3]
    cohort = All() if seed % 2 else PoissonCohort(float(draws.uniform(0.05, 0.6)), secret=bool(draws.integers(2)))
    local = {}
    for number in range(draws.integers(1, 4)):
        size = int(draws.integers(20, 2000))
        part = LocalPlan(size=size, batch_size=int(draws.integers(1, 1 + size // 4)), steps=int(draws.integers(1, 6)))
        if style != "user":
            part = replace(part, clip_norm=1.0, noise_multiplier=float(draws.uniform(0.8, 3.0)))
        local[f"site-{number}"] = part
    adaptive = AdaptiveClip(0.5, 0.2, count_noise=float(draws.uniform(3, 9))) if seed % 4 == 0 else None
    client = ClientPlan(clip_norm=0.5, noise_multiplier=float(draws.uniform(1.0, 4.0)), adaptive=adaptive)
    return Plan(
        f"plan-{seed}",
        rounds=int(draws.integers(1, 25)),
        local=local,
        style=style,
        cohort=cohort,
        client=None if style == "sample" else client,
        spare_rounds=int(draws.integers(0, 3)),
    )


@pytest.mark.parametrize("seed", range(50))
def test_a_random_plan_costs_what_its_charges_cost_in_dp_accounting(seed):
    plan = random_plan(seed)
    study = None if plan.style == "sample" else "study"
    charges = plan.charges(sites(plan), study)
    statements = {statement.unit: statement.epsilon for statement in plan.statements(1e-5)}
    assert set(statements) == set(plan.units)
    if "client" in statements:
        expected = by_dp_accounting(charges.pop("study"), 1e-5)
        assert statements["client"] == pytest.approx(expected, rel=1e-3, abs=1e-3)
    if "record" in statements:
        each = {account: by_dp_accounting(events, 1e-5) for account, events in charges.items()}
        assert statements["record"] == pytest.approx(max(each.values()), rel=1e-3, abs=1e-3)
        assert each[f"account-{plan.worst(1e-5)}"] == pytest.approx(max(each.values()), rel=1e-3)


def test_a_secret_fixed_cohort_agrees_with_dp_accounting_by_rdp():
    local = {f"c{number}": LocalPlan(size=50, batch_size=5, steps=1) for number in range(40)}
    client = ClientPlan(clip_norm=1.0, noise_multiplier=6.0)
    plan = Plan("fixed", 20, local, style="user", cohort=FixedCohort(4, secret=True), client=client)
    ((event, count),) = plan.charges(sites(plan), "study")["study"].items()
    assert event == ev.SampledWithoutReplacement(ev.Gaussian(6.0), 4, 40)
    # There the noise is over what replacing one moves: twice the clip norm.
    theirs = RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dpa.SampledWithoutReplacementDpEvent(40, 4, dpa.GaussianDpEvent(3.0)), count)
    (statement,) = plan.statements(1e-5)
    assert statement.adjacency == "replace_one"
    assert statement.epsilon == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)


def twenty(noise_multiplier=None):
    local = {f"site-{number}": replace(SITE, noise_multiplier=noise_multiplier) for number in range(19)}
    local["small"] = replace(SITE, size=50, noise_multiplier=noise_multiplier)
    return Plan("twenty", rounds=10, local=local)


def test_the_site_of_fifty_records_among_twenty_is_the_one_that_is_reported():
    plan = twenty(1.0)
    assert plan.worst(1e-5) == plan.binding(1e-5) == "small"
    (statement,) = plan.statements(1e-5)
    assert statement.epsilon == plan.epsilon("small", 1e-5) > 3 * plan.epsilon("site-3", 1e-5)


def test_each_site_gets_its_own_noise_and_the_binding_one_the_most():
    plan = twenty().calibrated(PROMISE)
    assert plan.binding() == "small"
    assert plan.local["small"].noise > 2 * plan.local["site-0"].noise
    for name in ("small", "site-0"):
        assert 3.99 < plan.epsilon(name, 1e-5) <= 4.0


def test_shared_noise_is_that_of_the_binding_site():
    plan = twenty().calibrated(PROMISE, noise="shared")
    assert {part.noise for part in plan.local.values()} == {twenty().calibrated(PROMISE).local["small"].noise}
    assert plan.binding() == plan.worst() == "small"
    assert plan.epsilon("site-0", 1e-5) < 1.5
    assert plan.statements()[0].epsilon <= 4.0


def test_no_site_binds_where_no_record_is_protected():
    plan = Plan("user", 2, {"a": SITE}, style="user", client=ClientPlan(clip_norm=1.0))
    for question in (plan.binding, plan.worst):
        with pytest.raises(InvalidArgument, match="protects no record"):
            question(1e-5)


# Two kinds of site whose order changes with δ: many weak releases, and few strong ones.
CROSSING = {
    "often": ev.Repeated(ev.PoissonSampled(ev.Gaussian(2.0), 0.4), 60),
    "seldom": ev.PoissonSampled(ev.Gaussian(0.35), 0.02),
    "rare": ev.Repeated(ev.PoissonSampled(ev.Gaussian(0.6), 0.002), 40),
    "one": ev.Gaussian(1.2),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_worst_sites_together_are_the_worst_of_all_choices(count, delta):
    expected = max(
        accounting.epsilon(ev.Composed(tuple(CROSSING[name] for name in names)), delta)
        for names in combinations(CROSSING, count)
    )
    assert costs.bound_together(CROSSING, delta, count) == pytest.approx(expected, rel=1e-9)


def test_equal_sites_are_composed_as_often_as_there_are():
    events = dict.fromkeys("abc", ev.Gaussian(3.0)) | {"d": ev.Gaussian(1.0)}
    worst = costs.bound_together(events, 1e-5, 2)
    assert worst == accounting.epsilon(ev.Composed((ev.Gaussian(3.0), ev.Gaussian(1.0))), 1e-5)


def test_with_many_unequal_sites_the_bound_is_above_every_choice(monkeypatch):
    exact = costs.bound_together(CROSSING, 1e-5, 2)
    monkeypatch.setattr(costs, "MOST_CHOICES", 2)
    bound = costs.bound_together(CROSSING, 1e-5, 2)
    assert exact <= bound <= 1.3 * exact


def test_two_sites_that_are_alike_count_twice(monkeypatch):
    alike = {"a": ev.Gaussian(1.0), "b": ev.Gaussian(1.0), "c": ev.Gaussian(50.0), "d": ev.Gaussian(60.0)}
    twice = accounting.epsilon(ev.Repeated(ev.Gaussian(1.0), 2), 1e-5)
    assert costs.bound_together(alike, 1e-5, 2) == pytest.approx(twice, rel=1e-9)
    monkeypatch.setattr(costs, "MOST_CHOICES", 2)
    assert twice <= costs.bound_together(alike, 1e-5, 2) <= 1.3 * twice


def test_several_sites_together_cost_more_where_a_record_is_replaced(monkeypatch):
    pair = (ev.Gaussian(3.0), ev.Gaussian(5.0))
    events = {"a": pair[0], "b": pair[1], "c": ev.Gaussian(80.0)}
    exact = accounting.epsilon(ev.Composed(pair), 1e-5, adjacency="replace_one")
    assert costs.bound_together(events, 1e-5, 2, "replace_one") == exact
    monkeypatch.setattr(costs, "MOST_CHOICES", 2)
    assert exact <= costs.bound_together(events, 1e-5, 2, "replace_one") <= 1.3 * exact


def test_a_promise_for_another_adjacency_than_the_clients_plans_is_refused():
    # A promise for replace-one must not be checked against what adding a record costs, which is less.
    for own, asked in (("add_remove", "replace_one"), ("replace_one", "add_remove")):
        local = {"a": replace(SITE, noise_multiplier=2.0, adjacency=own)}
        with pytest.raises(AdjacencyMismatch, match=f"for {own}, and the promise"):
            Plan("mixed", 3, local, guarantee=Guarantee(50.0, 1e-5, "record", asked))


@pytest.mark.parametrize("noise", ["own", "shared"])
def test_noise_is_calibrated_for_the_adjacency_asked_for_and_a_true_count_only_for_replacing(noise):
    counted = Guarantee(4.0, 1e-5, "record", "replace_one")
    plan = Plan("counted", 3, {"a": SITE, "b": replace(SITE, size=60)}).calibrated(counted, noise=noise)
    assert {part.adjacency for part in plan.local.values()} == {"replace_one"}
    assert 3.9 < plan.statements()[0].epsilon <= 4.0
    with pytest.raises(AdjacencyMismatch, match="true count"):
        plan.calibrated(PROMISE, noise=noise)


@pytest.mark.parametrize("noise", ["own", "shared"])
def test_a_person_in_several_sites_is_covered_by_the_calibrated_noise(noise):
    local = {"a": SITE, "b": replace(SITE, size=60), "c": replace(SITE, size=200, steps=1)}
    plan = Plan("several", 6, local, max_sites_per_person=2).calibrated(PROMISE, noise=noise)
    pairs = [
        ev.Composed((ev.Repeated(plan.local[one].event, 6), ev.Repeated(plan.local[other].event, 6)))
        for one, other in combinations(local, 2)
    ]
    worst = max(accounting.epsilon(pair, 1e-5) for pair in pairs)
    assert worst <= 4.0
    assert plan.statements()[0].epsilon == worst
    assert worst > 3.9
    with pytest.raises(InvalidArgument, match="a person in several sites"):
        replace(plan, max_sites_per_person=3)


def test_a_thousand_equal_clients_are_asked_once():
    plan = Plan("many", 3, {f"c{number}": replace(SITE, noise_multiplier=1.0) for number in range(1000)})
    before = costs.epsilon.cache_info()
    found = plan.record_epsilon(1e-5)
    after = costs.epsilon.cache_info()
    assert (after.hits + after.misses) - (before.hits + before.misses) == 1
    assert found == accounting.epsilon(ev.Repeated(plan.local["c0"].event, 3), 1e-5)
