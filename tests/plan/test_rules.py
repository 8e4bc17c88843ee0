from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import rules
from dpfed.plan.plan import All, ClientPlan, FixedCohort, LocalPlan, Plan, PoissonCohort

LOCAL = dict.fromkeys(("north", "west", "harbour"), LocalPlan(size=60, batch_size=5, steps=2))
NOISED = dict.fromkeys(LOCAL, LocalPlan(size=60, batch_size=5, steps=2, clip_norm=1.0, noise_multiplier=5.0))
CLIENT = ClientPlan(clip_norm=1.0, noise_multiplier=5.0)


def user(**options) -> Plan:
    return Plan("study", 4, LOCAL, style="user", client=CLIENT, **options)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"name": " "}, "name"),
        ({"rounds": 0}, "rounds"),
        ({"local": {}}, "local"),
        ({"style": "both"}, "style"),
        ({"weighting": "true counts"}, "weighting"),
        ({"cohort": FixedCohort(4)}, "cohort"),
        ({"minimum_cohort": 4}, "minimum_cohort"),
        ({"minimum_cohort": 2, "cohort": PoissonCohort(0.5, secret=True)}, "minimum_cohort"),
        ({"max_participations": 5}, "max_participations"),
        ({"max_participations": 2, "cohort": FixedCohort(2, secret=True)}, "max_participations"),
        ({"spare_rounds": -1}, "spare_rounds"),
        ({"max_sites_per_person": 4}, "max_sites_per_person"),
        ({"client": None}, "client"),
        ({"local": NOISED}, "local"),
        ({"aggregation": "mean"}, "aggregation"),
        ({"client_timeout": 0.0}, "client_timeout"),
    ],
)
def test_a_plan_that_is_malformed_or_would_leak_is_refused_by_the_name_of_its_setting(options, argument):
    sound = {"name": "study", "rounds": 4, "local": LOCAL, "style": "user", "client": CLIENT}
    with pytest.raises(InvalidArgument) as refusal:
        Plan(**{**sound, **options})
    assert refusal.value.argument == argument


def test_only_secret_draws_of_fixed_size_forbid_a_cap_and_state():
    assert rules.forbids_a_cap(user(cohort=FixedCohort(2, secret=True)))
    for cohort in (All(), FixedCohort(2), PoissonCohort(0.5), PoissonCohort(0.5, secret=True)):
        assert not rules.forbids_a_cap(user(cohort=cohort))
        rules.require_stateful(user(cohort=cohort))
    with pytest.raises(InvalidArgument, match="clients must keep no state"):
        rules.require_stateful(user(cohort=FixedCohort(2, secret=True)))


def test_a_promise_that_the_noise_does_not_keep_is_refused():
    plan = Plan("study", 4, NOISED)
    cost = plan.record_epsilon(1e-5)
    rules.require_kept(plan, Guarantee(cost, 1e-5))
    with pytest.raises(InvalidArgument, match="use calibrated"):
        rules.require_kept(plan, Guarantee(cost * (1 - 1e-9), 1e-5))


def test_each_client_has_an_account_of_its_own_and_the_study_another():
    accounts, plan = {name: f"a-{name}" for name in LOCAL}, Plan("study", 4, NOISED)
    rules.require_accounts(plan, accounts, None)
    for wrong in ({**accounts, "west": "a-north"}, {"north": "a-north"}, {**accounts, "south": "a-south"}):
        with pytest.raises(InvalidArgument, match="each with an account of its own"):
            rules.require_accounts(plan, wrong, None)
    rules.require_accounts(user(), accounts, "study")
    with pytest.raises(InvalidArgument, match="needs a study account"):
        rules.require_accounts(user(), accounts, None)


def test_promises_are_one_for_each_unit_that_the_style_protects():
    record, client = Guarantee(4.0, 1e-5), Guarantee(8.0, 1e-5, unit="client")
    hybrid = Plan("study", 4, NOISED, style="hybrid", client=CLIENT)
    assert rules.by_unit(hybrid, [record, client], "own") == {"record": record, "client": client}
    for wrong in ([record, record], [], [Guarantee(4.0, 1e-5, unit="person")]):
        with pytest.raises(InvalidArgument):
            rules.by_unit(hybrid, wrong, "own")
    with pytest.raises(InvalidArgument, match="style 'user' protects one client"):
        rules.by_unit(user(), [record], "own")
