"""What a run reports is what its ledger's rows cost in another accountant; the site that pays most is the one named."""

from __future__ import annotations

from dataclasses import replace

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpfed import events as ev
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.costs import compute_spent
from dpfed.plan.plan import LocalPlan, Plan
from studies import Study, a_plan, committed

DELTA = 1e-5
SITE = LocalPlan(size=500, batch_size=16, steps=5, clip_norm=1.0, noise_multiplier=1.0)


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


def by_dp_accounting(charges) -> float:
    accountant = PLDAccountant(value_discretization_interval=5e-4)
    for event, count in charges.items():
        accountant.compose(translated(event), count)
    return accountant.get_epsilon(DELTA)


def random_options(seed):
    draws = np.random.default_rng(seed)
    style = ("sample", "user", "hybrid")[seed % 3]
    is_secret = style != "sample" and bool(draws.integers(2))
    cohort = All() if seed % 2 else PoissonCohort(float(draws.uniform(0.2, 0.9)), secret=is_secret)
    sizes = {f"site-{number}": int(draws.integers(20, 500)) for number in range(draws.integers(1, 4))}
    options = {"cohort": cohort, "rounds": int(draws.integers(1, 5)), "noise_multiplier": float(draws.uniform(0.8, 3))}
    if style != "sample":
        adaptive = AdaptiveClip(0.5, 0.2, count_noise=float(draws.uniform(3, 9))) if seed % 4 == 0 else None
        options["client"] = ClientPlan(clip_norm=0.5, noise_multiplier=float(draws.uniform(1, 4)), adaptive=adaptive)
    return style, sizes, options


@pytest.mark.parametrize("seed", range(50))
def test_a_random_run_reports_what_its_ledgers_rows_cost_in_dp_accounting(open_study, seed):
    style, sizes, options = random_options(seed)
    study = open_study(style, sizes, **options)
    *_, last = study.federation()
    rows = committed(study.ledger)
    reported = {statement.unit: statement.epsilon for statement in last.spent}
    assert set(reported) == set(study.plan.units)
    if "client" in reported:
        released = rows.pop("study", {})
        assert reported["client"] == pytest.approx(by_dp_accounting(released) if released else 0.0, rel=1e-3, abs=1e-3)
    if "record" in reported:
        each = {account: by_dp_accounting(charges) for account, charges in rows.items()}
        worst = max(each.values(), default=0.0)
        if study.plan.cohort.hides(len(sizes)):  # how often each took part is no fact to be shown: never below it
            assert reported["record"] >= worst * (1 - 1e-3)
            rows = {name: {part.event: study.plan.rounds} for name, part in study.plan.local.items()}
            worst = max(map(by_dp_accounting, rows.values()))
        assert reported["record"] == pytest.approx(worst, rel=1e-3, abs=1e-3)
        if each and not study.plan.cohort.hides(len(sizes)):
            assert each[f"account-{last.worst_client}"] == pytest.approx(worst, rel=1e-3)


def test_a_secret_fixed_cohort_reports_what_dp_accounting_says_by_rdp(open_study):
    sizes = {f"c{number}": 20 for number in range(20)}
    client = ClientPlan(clip_norm=1.0, noise_multiplier=6.0)
    study = open_study("user", sizes, cohort=FixedCohort(4, secret=True), client=client)
    *_, last = study.federation()
    ((event, count),) = committed(study.ledger)["study"].items()
    assert (event, count) == (ev.SampledWithoutReplacement(ev.Gaussian(6.0), 4, 20), 4)
    theirs = RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_ONE)
    # There the noise is over what replacing one moves: twice the clip norm.
    theirs.compose(dpa.SampledWithoutReplacementDpEvent(20, 4, dpa.GaussianDpEvent(3.0)), count)
    (statement,) = last.spent
    assert statement.adjacency == "replace_one"
    assert statement.epsilon == pytest.approx(theirs.get_epsilon(DELTA), rel=0.02)


def test_the_site_of_fifty_records_among_twenty_is_the_one_reported(open_study):
    sizes = {**{f"site-{number}": 500 for number in range(19)}, "small": 50}
    study = open_study("sample", sizes, rounds=2)
    results = list(study.federation())
    assert {result.worst_client for result in results} == {"small"}
    (statement,) = results[-1].spent
    small = committed(study.ledger)["account-small"]
    assert statement.epsilon == pytest.approx(by_dp_accounting(small), rel=1e-3)
    assert statement.epsilon > 2 * by_dp_accounting(committed(study.ledger)["account-site-3"])


def counts(plan, **times):
    return {name: {plan.local[name].event: each} for name, each in times.items()}


def test_whoever_took_part_most_may_be_worse_than_whoever_has_fewest_records():
    plan = Plan("study", 10, {"small": replace(SITE, size=50), "large": SITE})
    assert compute_spent(plan, {"record": DELTA}, counts(plan, small=1, large=1), {}).worst_client == "small"
    assert compute_spent(plan, {"record": DELTA}, counts(plan, small=0, large=1), {}).worst_client == "large"


def test_nothing_charged_is_nothing_spent():
    plan = a_plan("hybrid", {"a": 20})
    found = compute_spent(plan, {"record": DELTA, "client": DELTA}, counts(plan, a=0), {})
    assert [statement.epsilon for statement in found.statements] == [0.0, 0.0]
    assert found.worst_client is None


def test_a_person_in_several_sites_pays_for_those_that_took_part(tmp_path):
    plan = Plan("study", 10, {"a": SITE, "b": SITE, "c": SITE}, max_sites_per_person=2)
    alone = compute_spent(
        replace(plan, max_sites_per_person=1), {"record": DELTA}, counts(plan, a=2, b=0, c=0), {}
    ).statements
    assert (
        compute_spent(plan, {"record": DELTA}, counts(plan, a=2, b=0, c=0), {}).statements == alone
    )  # nobody else did yet
    (both,) = compute_spent(plan, {"record": DELTA}, counts(plan, a=2, b=1, c=0), {}).statements
    assert both.epsilon == pytest.approx(by_dp_accounting({SITE.event: 3}), rel=1e-3)


@pytest.mark.parametrize("sites", [1, 2])
def test_where_a_record_is_replaced_the_whole_plan_spends_what_it_promised(sites):
    part = replace(SITE, adjacency="replace_one")
    local = {"a": part, "b": replace(part, size=90), "c": replace(part, size=300)}
    plan = Plan("counted", 3, local, max_sites_per_person=sites)
    (statement,) = compute_spent(plan, {"record": DELTA}, counts(plan, **dict.fromkeys(local, 3)), {}).statements
    added = replace(plan, local={name: replace(each, adjacency="add_remove") for name, each in local.items()})
    assert statement == plan.statements(DELTA)[0]
    assert statement.epsilon > 1.2 * added.record_epsilon(DELTA)


def test_a_run_in_which_a_person_may_be_in_several_sites_reports_from_its_first_round(tmp_path):
    study = Study(tmp_path, "sample", {"cohort": FixedCohort(1), "max_sites_per_person": 2, "rounds": 2})
    epsilons = [result.spent[0].epsilon for result in study.federation()]
    assert 0 < epsilons[0] < epsilons[1]
    study.ledger.close()
