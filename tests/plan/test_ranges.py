from __future__ import annotations

from dataclasses import replace

import pytest

from dpfed.accounting.queries import epsilon
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.by_round import compose
from dpfed.plan.client import ClientPlan
from dpfed.plan.costs import compute_spent, find_charges_until
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.plan.ranges import Ranges, find_range_release, list_range_charges, require_enough

RANGES = Ranges(("age", "pay"), ((0.0, 60.0, 120.0), (0.0, 500.0)), epsilon=0.5, delta=1e-5)


def make(**changed) -> Plan:
    ward = LocalPlan(size=1000, batch_size=100, steps=5, clip_norm=1.0)
    return Plan("study", rounds=3, local={"a": ward, "b": ward}, ranges=RANGES, **changed)


@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize("measured", [False, True])
def test_training_ranges_and_figures_together_keep_the_promise_and_use_it_up(sites, measured):
    measurement = Measurement(("accuracy",), epsilon=0.4, rounds=(3,), classes=2) if measured else None
    unit = "record" if sites == 1 else "person"
    ward = LocalPlan(size=1000, batch_size=100, steps=5, clip_norm=1.0, unit=unit)
    plan = make(measurement=measurement, max_sites_per_person=sites)
    plan = replace(plan, local={"a": ward, "b": ward}).calibrated(Guarantee(3.0, 1e-5, unit))
    charges = {event: sites * times for event, times in plan.local_charges("a").items()}
    assert 2.99 < epsilon(compose(charges), 1e-5) <= 3.0
    own = {event: sites * times for event, times in list_range_charges(plan).items()}
    assert 0.49 < epsilon(compose(own), 1e-5) <= 0.5
    assert plan.ranges.query.norm >= 2**0.5
    assert find_range_release(plan).noise >= find_range_release(plan).event.noise_multiplier * 2**0.5


def test_what_is_spent_after_a_round_has_the_ranges_in_it():
    plan = make().calibrated(Guarantee(3.0, 1e-5))
    without = replace(plan, ranges=None, guarantee=None)
    found = [
        compute_spent(each, {"record": 1e-5}, *find_charges_until(each, 1)).statements[0].epsilon
        for each in (without, plan)
    ]
    assert found[0] < found[1]


def test_spare_releases_are_within_the_same_share():
    plan = make(spare_rounds=2)
    ((event, times),) = list_range_charges(plan).items()
    assert times == 3
    assert epsilon(compose({event: times}), 1e-5) == pytest.approx(0.5, rel=1e-9)


def test_a_plan_with_ranges_is_read_back_and_says_so():
    plan = make().calibrated(Guarantee(3.0, 1e-5))
    assert Plan.from_json(plan.to_json()) == plan
    assert "ranges" not in replace(plan, ranges=None, guarantee=None).to_json()


def test_other_styles_release_no_ranges():
    with pytest.raises(InvalidArgument, match="style 'sample'"):
        make(style="user", client=ClientPlan(clip_norm=1.0))


def test_a_round_with_the_very_noise_of_the_ranges_is_refused():
    (event,) = list_range_charges(make())
    ward = LocalPlan(size=9, batch_size=9, steps=1, clip_norm=1.0, noise_multiplier=event.noise_multiplier)
    assert ward.event == event
    with pytest.raises(InvalidArgument, match="tell them apart"):
        Plan("study", rounds=3, local={"a": ward}, ranges=RANGES)


def test_ranges_need_as_many_records_as_noise_asks_for():
    require_enough(make(), 0.2)
    with pytest.raises(InvalidArgument, match="noise would leave nothing"):
        require_enough(replace(make(), ranges=replace(RANGES, epsilon=0.01)), 0.2)
