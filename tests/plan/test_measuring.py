"""Who noises what, which accounts pay, and that training is calibrated to the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting.queries import epsilon
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InfeasibleTarget, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan import measuring
from dpfed.plan.fits import fit_budget
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import ClientPlan, FixedCohort, LocalPlan, Plan, Population

MEASUREMENT = Measurement(("accuracy",), 0.5, (3,), classes=2)
STYLES = ("sample", "user", "hybrid", "local")


def a_plan(style: str, *, unit: str = "record", adjacency: str = "add_remove", **options) -> Plan:
    noise = {"clip_norm": 1.0, "adjacency": adjacency} if style in ("sample", "hybrid") else {}
    local = {name: LocalPlan(size=size, batch_size=10, steps=2, unit=unit, **noise) for name, size in SIZES.items()}
    client = None if style == "sample" else ClientPlan(clip_norm=1.0)
    options.setdefault("measurement", MEASUREMENT)
    return Plan("study", 3, local, style=style, client=client, **options)


SIZES = {"north": 60, "west": 30, "harbour": 20}


def promises(plan: Plan, epsilon: float = 4.0) -> list[Guarantee]:
    relations = {"client": plan.client_adjacency}
    return [Guarantee(epsilon, 1e-4, unit, relations.get(unit, plan.record_adjacency)) for unit in plan.units]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("unit", ["record", "person"])
def test_which_accounts_pay_with_which_event(style, unit):
    plan = a_plan(style, unit=unit)
    plan = plan.calibrated(*promises(plan))
    own = {"sample": 1 if unit == "record" else 240, "hybrid": 1 if unit == "record" else 240, "local": 240}
    found = [event for event in plan.local_charges("north") if isinstance(event, ev.DiscreteLaplace)]
    assert [event.sensitivity for event in found] == ([own[style]] if style in own else [])
    released = [event for event in plan.study_charges() if isinstance(event, ev.DiscreteLaplace)]
    assert [event.sensitivity for event in released] == ([240] if style in ("user", "hybrid") else [])
    relation = plan.client_adjacency if style == "local" else plan.record_adjacency
    for event in found:
        assert epsilon(event, 0.0, adjacency=relation) == pytest.approx(0.5)
    for event in released:
        assert epsilon(event, 0.0, adjacency=plan.client_adjacency) == pytest.approx(0.5)


@pytest.mark.parametrize("style", STYLES)
def test_training_is_calibrated_to_the_rest_and_all_of_it_together_keeps_the_promise(style):
    without, plan = (a_plan(style, measurement=chosen) for chosen in (None, MEASUREMENT))
    without, plan = without.calibrated(*promises(without)), plan.calibrated(*promises(plan))
    statements = plan.statements()
    assert all(3.99 < each.epsilon <= 4.0 for each in statements)
    trained = replace(plan, measurement=None, guarantee=None, client_guarantee=None)
    assert all(3.4 < each.epsilon < 3.99 for each in trained.statements(1e-4))
    for own, more in zip(without.kinds, plan.kinds, strict=True):
        assert own.noise_multiplier is None or own.noise_multiplier < more.noise_multiplier
    if style != "sample":
        assert without.client.noise < plan.client.noise


def test_noise_of_trained_models_is_never_the_maximum_of_both():
    """A record is trained on or held out, and is charged for both: it is not said which."""
    plan = a_plan("sample")
    plan = plan.calibrated(*promises(plan))
    alone = replace(plan, measurement=None, guarantee=None).record_epsilon(1e-4)
    assert plan.record_epsilon(1e-4) > alone + 0.2


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_a_person_in_several_sites_pays_no_more_than_was_asked_in_the_worst_of_them(sites):
    plan = a_plan("sample", unit="person", max_sites_per_person=sites)
    plan = plan.calibrated(*promises(plan))
    noise = measuring.find_client_noise(plan)
    assert epsilon(ev.Repeated(noise.event, sites), 0.0) == pytest.approx(0.5)
    assert 3.9 < plan.record_epsilon(1e-4) <= 4.0


@pytest.mark.parametrize("style", STYLES)
def test_epsilon_is_for_all_rounds_and_spare_ones_together(style):
    measurement = replace(MEASUREMENT, rounds=(1, 2, 3))
    plan = a_plan(style, measurement=measurement, spare_rounds=2)
    for charges, relation in (
        (measuring.list_client_charges(plan), plan.client_adjacency if style == "local" else plan.record_adjacency),
        (measuring.list_server_charges(plan), plan.client_adjacency),
    ):
        for event, times in charges.items():
            assert times == 5
            assert epsilon(ev.Repeated(event, times), 0.0, adjacency=relation) == pytest.approx(0.5)


def test_where_counts_are_public_or_clients_send_themselves_replacing_moves_twice_as_far():
    plan = a_plan("sample", adjacency=REPLACE_ONE)
    assert measuring.find_client_noise(plan).scale == 2 * measuring.find_client_noise(a_plan("sample")).scale
    assert measuring.find_client_noise(a_plan("local")).scale == 2 * 240 / 0.5


def test_the_server_charges_unsampled_also_where_cohorts_are_secret():
    plan = a_plan("user", cohort=FixedCohort(2, secret=True))
    (event,) = measuring.list_server_charges(plan)
    assert isinstance(event, ev.DiscreteLaplace)
    assert epsilon(event, 0.0, adjacency=REPLACE_ONE) == pytest.approx(0.5)


def test_more_than_the_promise_for_figures_leaves_nothing_for_training():
    plan = a_plan("sample", measurement=replace(MEASUREMENT, epsilon=5.0))
    with pytest.raises(InfeasibleTarget):
        plan.calibrated(*promises(plan))


def test_a_smaller_budget_counts_the_figures_too():
    plan = a_plan("sample")
    plan = plan.calibrated(*promises(plan))
    fit = fit_budget(plan, replace(plan.guarantee, epsilon=3.0))
    assert fit.rounds in (1, 2)
    assert fit.noise_multiplier > max(part.noise for part in plan.kinds)


@pytest.mark.parametrize("value", [np.zeros(3), np.full(4, np.nan), np.full(4, 0.5), np.full(4, 2.0**60), "four"])
def test_counts_that_are_none_are_zeros_with_noise(value):
    from dpfed.randomness import SeededSource

    plan = a_plan("sample")
    assert (
        measuring.release_client(plan, value, SeededSource(1)).tolist()
        == measuring.release_client(plan, np.zeros(4), SeededSource(1)).tolist()
    )


def test_a_server_that_adds_no_noise_releases_no_sum():
    with pytest.raises(InvalidArgument, match="adds no noise at the server"):
        measuring.release_server(a_plan("sample"), [], None)


def test_noise_of_a_sum_is_that_of_all_who_noised():
    one, three = (measuring.find_sum_noise(a_plan("sample"), names) for names in (["west"], SIZES))
    assert three == (1, pytest.approx(3 * one[1]))
    server, hybrid = (measuring.find_sum_noise(a_plan(style), SIZES)[1] for style in ("user", "hybrid"))
    sizes = [max(size / 4, 1) for size in SIZES.values()]
    assert hybrid == pytest.approx(server + sum(one[1] / size**2 for size in sizes))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"style": "none", "client": None}, "protects nobody"),
        ({"measurement": "accuracy"}, "must be a Measurement"),
        ({"measurement": replace(MEASUREMENT, rounds=(4,))}, "at most 3"),
        ({"style": "user", "local": Population(9, LocalPlan(size=9, batch_size=3, steps=1))}, "population"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(options, why):
    plan = a_plan("user") if options.get("style") == "user" else a_plan("sample")
    if options.get("style") == "none":
        plan = a_plan("user", measurement=None)
        options = {**options, "measurement": MEASUREMENT}
    with pytest.raises(InvalidArgument, match=why):
        replace(plan, **options)


def test_a_client_that_cannot_count_is_refused():
    with pytest.raises(InvalidArgument, match="has no find_cells"):
        measuring.require_counting(a_plan("sample"), {"north": object()})


@pytest.mark.parametrize("style", STYLES)
def test_plan_files_keep_the_measurement_and_those_without_are_as_they_were(style):
    plan = a_plan(style)
    assert Plan.from_json(plan.to_json()) == plan
    assert "measurement" not in replace(plan, measurement=None).to_json()
    assert "released after round 3: accuracy" in plan.calibrated(*promises(plan)).explain()


def test_rows_of_nobody_are_not_counted_where_persons_are_protected():
    """Each would weigh as much as a person."""
    with pytest.raises(InvalidArgument, match="not said whose rows"):
        measuring.count_client(a_plan("sample", unit="person"), np.array([0, 1]), None)
    assert measuring.count_client(a_plan("sample"), np.array([0, 1]), None).tolist() == [1, 1, 0, 0]
