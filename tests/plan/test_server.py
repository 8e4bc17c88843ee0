"""At zero noise any one client moves the server's sum by at most the clip norm, the mean by at most the plan's Δ."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed.aggregation.robust_rules import CoordinateMedian, FixedGroups, NormBoundedMean, TrimmedMean
from dpfed.errors import InvalidArgument
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan
from dpfed.plan.server import ServerRelease
from dpfed.plan.tree import RoundTree
from dpfed.randomness import SeededSource
from studies import SilentSource

FALSE_ALARM = 1e-6
DIMENSION = 3
NAMES = ("a", "b", "c", "d")
SIZES = dict(zip(NAMES, (500, 90, 33, 7), strict=True))


def a_plan(weighting="declared", cohort=None, clip_norm=1.0, max_participations=None, **client):
    local = {name: LocalPlan(size=size, batch_size=5, steps=1) for name, size in SIZES.items()}
    client = ClientPlan(clip_norm=clip_norm, **{"noise_multiplier": 1.0, **client})
    shared = {"weighting": weighting, "cohort": cohort or All(), "max_participations": max_participations}
    return Plan("server", 4, local, style="user", client=client, **shared)


def squared_norm(vector):
    return sum((Fraction(value) ** 2 for value in vector.tolist()), Fraction(0))


vectors = st.lists(st.floats(-1e6, 1e6) | st.just(np.nan), min_size=DIMENSION, max_size=DIMENSION).map(np.array)
updates = st.dictionaries(st.sampled_from(NAMES), vectors, min_size=1)
plans = st.builds(
    a_plan,
    weighting=st.sampled_from(["equal", "declared"]),
    cohort=st.sampled_from([All(), PoissonCohort(0.3), FixedCohort(2)]),
    clip_norm=st.sampled_from([1.0, 0.1, 3.7]),
)


@given(plan=plans, updates=updates, data=st.data())
def test_removing_any_client_moves_the_sum_by_at_most_the_clip_norm_exactly(plan, updates, data):
    gone = data.draw(st.sampled_from(sorted(updates)))
    rest = {name: update for name, update in updates.items() if name != gone}
    moved = plan.server.query(updates, DIMENSION) - plan.server.query(rest, DIMENSION)
    assert squared_norm(moved) <= Fraction(plan.client.clip_norm) ** 2
    on_average = np.linalg.norm(moved) * float(plan.server.largest_weight())
    assert on_average <= plan.sensitivity * (1 + 1e-12)
    assert (plan.sensitivity.norm, plan.sensitivity.adjacency) == ("l2", "add_remove")


@given(plan=plans, updates=updates, other=vectors, data=st.data())
def test_replacing_any_client_moves_the_sum_by_at_most_twice_the_clip_norm_exactly(plan, updates, other, data):
    name = data.draw(st.sampled_from(sorted(updates)))
    moved = plan.server.query(updates, DIMENSION) - plan.server.query({**updates, name: other}, DIMENSION)
    assert squared_norm(moved) <= (2 * Fraction(plan.client.clip_norm)) ** 2
    assert plan.server.sensitivity("replace_one") == pytest.approx(2 * plan.sensitivity, rel=1e-15)


def test_the_bound_is_reached_by_the_client_of_the_largest_weight():
    plan = a_plan()
    long = np.array([30.0, 40.0, 0.0])
    moved = plan.server.query({"a": long}, DIMENSION) * float(plan.server.largest_weight())
    assert np.linalg.norm(moved) == pytest.approx(plan.sensitivity, rel=1e-8)
    assert plan.sensitivity == pytest.approx(500 / 630)


@pytest.mark.parametrize(("cohort", "factor"), [(All(), 1.0), (PoissonCohort(0.25), 4.0), (FixedCohort(2), 2.0)])
def test_the_mean_is_over_the_expected_cohort(cohort, factor):
    assert a_plan("equal", cohort).sensitivity == pytest.approx(factor / 4)
    assert a_plan("equal", cohort).weights["a"] == pytest.approx(factor / 4)
    assert a_plan("declared", cohort).weights["b"] == pytest.approx(factor * 90 / 630)
    quiet = a_plan("equal", cohort, noise_multiplier=1e-9)
    released = quiet.server.release({"a": np.array([0.5, 0.0, 0.0])}, DIMENSION, SeededSource(1))
    np.testing.assert_allclose(released.average, [0.5 * factor / 4, 0, 0], atol=1e-6)


def test_the_noise_on_the_mean_is_the_noise_multiplier_times_the_sensitivity():
    plan = a_plan(noise_multiplier=1.5, clip_norm=2.0)
    draws = plan.server.release({}, 40_000, SeededSource(5)).average
    statistic = float(np.sum(draws**2)) / (1.5 * float(plan.sensitivity)) ** 2
    low, high = stats.chi2(draws.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high


def test_the_noise_of_the_first_round_of_a_tree_is_the_noise_multiplier_times_the_sensitivity():
    plan = a_plan(noise_multiplier=1.5, clip_norm=2.0, tree=RoundTree(), max_participations=4)
    tree = plan.server.tree(plan.client_event, SeededSource(5))
    draws = plan.server.release({}, 40_000, SeededSource(6), tree=tree).average
    statistic = float(np.sum(draws**2)) / (1.5 * float(plan.sensitivity)) ** 2
    low, high = stats.chi2(draws.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < statistic < high


def test_a_round_of_nobody_releases_noise_around_zero():
    released = a_plan().server.release({}, DIMENSION, SeededSource(1))
    assert released.average.shape == (DIMENSION,)
    assert np.all(released.average != 0)


ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=3.0)


@given(updates=updates, other=vectors, data=st.data())
def test_removing_a_client_moves_the_count_by_half_and_replacing_one_by_at_most_one(updates, other, data):
    server = a_plan(adaptive=ADAPTIVE).server
    name = data.draw(st.sampled_from(sorted(updates)))
    rest = {each: update for each, update in updates.items() if each != name}
    assert abs(server.count(updates) - server.count(rest)) == 0.5
    assert abs(server.count(updates) - server.count({**updates, name: other})) <= 1


def test_an_adaptive_release_has_more_noise_on_its_sum_and_the_planned_noise_on_its_count():
    plan = a_plan(adaptive=ADAPTIVE, noise_multiplier=2.0)
    source = SeededSource(3)
    drawn = [plan.server.release({}, 2000, source) for _ in range(2000)]
    counts = np.array([released.noisy_count for released in drawn])
    low, high = stats.chi2(counts.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < float(np.sum(counts**2)) / 3.0**2 < high
    sums = np.concatenate([released.average for released in drawn[:20]]) / float(plan.sensitivity)
    low, high = stats.chi2(sums.size).ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2])
    assert low < float(np.sum(sums**2)) / plan.client.sum_noise**2 < high


def test_the_clip_norm_of_a_round_is_followed_by_sum_noise_and_count():
    plan = a_plan("equal", adaptive=ADAPTIVE, noise_multiplier=1e-9)
    update = {"a": np.array([2.0, 0.0, 0.0])}
    assert plan.server.query(update, DIMENSION, clip_norm=1.5) == pytest.approx([1.5, 0, 0], rel=1e-6)
    assert (plan.server.count(update, clip_norm=1.5), plan.server.count(update, clip_norm=2.0)) == (-0.5, 0.5)
    draws = a_plan(noise_multiplier=1.0).server.release({}, 20_000, SeededSource(7), clip_norm=10.0).average
    assert np.std(draws) == pytest.approx(10 * 500 / 630, rel=0.05)


def test_what_is_released_is_clipped_and_counted_at_the_clip_norm_of_the_round():
    server = a_plan("equal", adaptive=AdaptiveClip(0.5, 0.2, count_noise=5.0)).server
    given = {name: np.array([0.9, 0.0, 0.0]) for name in NAMES}  # short enough at first, and too long now
    released = server.release(given, DIMENSION, SilentSource(), clip_norm=0.1)
    assert np.allclose(released.average, [0.1, 0, 0], atol=1e-6)
    assert released.noisy_count == -2.0


def test_the_next_clip_norm_divides_by_the_expected_cohort():
    plan = a_plan(adaptive=ADAPTIVE, cohort=PoissonCohort(0.5))
    assert plan.server.next_clip(1.0, noisy_count=1.0) == pytest.approx(np.exp(-0.2 * 0.5))
    assert a_plan().server.next_clip(1.0, noisy_count=1.0) == 1.0


@pytest.mark.parametrize("bad", [{"stranger": np.zeros(3)}, {"a": np.zeros(4)}, {"a": np.zeros((3, 1))}])
def test_an_update_of_another_shape_or_client_is_refused(bad):
    with pytest.raises(InvalidArgument, match="update"):
        a_plan().server.release(bad, DIMENSION, SeededSource(1))


def test_nothing_is_released_without_noise():
    bare = replace(a_plan(), client=ClientPlan(clip_norm=1.0))
    with pytest.raises(InvalidArgument, match="no noise yet"):
        bare.server.release({}, DIMENSION, SeededSource(1))
    with pytest.raises(InvalidArgument, match="no noise yet"):
        _ = bare.client_event


GROUPED = TrimmedMean(max_faulty=1, before=FixedGroups(3))
SEVEN = dict.fromkeys("abcdefg", 1)


def make_grouped(noise=1.0, expected=Fraction(7), rule=GROUPED):
    return ServerRelease(ClientPlan(clip_norm=2.0, noise_multiplier=noise), SEVEN, expected, rule)


@given(
    seed=st.integers(0, 10**6), length=st.floats(0, 1e6), gone=st.sampled_from(tuple(SEVEN)), came=st.integers(1, 127)
)
def test_one_client_moves_the_sums_of_all_groups_by_a_clip_norm_at_most(seed, length, gone, came):
    """At zero noise, exactly, whoever else comes: all groups are one vector, and a client is in one of them."""
    names = [name for place, name in enumerate(SEVEN) if came >> place & 1 or name == gone]
    updates = {name: length * SeededSource(seed + ord(name)).normal(4) for name in names}
    without = {name: update for name, update in updates.items() if name != gone}
    release = make_grouped()
    one, other = release.query(updates, 4), release.query(without, 4)
    assert one.shape == (12,)
    moved = (one - other).reshape(3, 4)
    assert sum(row.any() for row in moved) <= 1
    assert sum(Fraction(float(x)) ** 2 for x in moved.ravel()) <= Fraction(4)


def test_a_client_of_a_group_is_where_its_name_stands_in_the_plan_whoever_comes():
    release = make_grouped()
    found = release.query({name: np.full(1, place / 8) for place, name in enumerate(SEVEN)}, 1)
    assert found.tolist() == [(0 + 3 + 6) / 8, (1 + 4) / 8, (2 + 5) / 8]
    assert release.query({"e": np.ones(1)}, 1).tolist() == [0, 1, 0]


def test_each_group_has_noise_of_its_own_and_the_rule_comes_after_it():
    """Means of 9,000 independent numbers of deviation 2/2, medians of three: false alarm below 1e-6."""
    rule = CoordinateMedian(max_faulty=1, before=FixedGroups(3))
    six = ServerRelease(ClientPlan(clip_norm=2.0, noise_multiplier=1.0), dict.fromkeys("abcdef", 1), Fraction(6), rule)
    found = six.release({}, 9_000, SeededSource(4)).average
    assert found.mean() == pytest.approx(0, abs=5 * 0.67 / 9_000**0.5)
    assert found.std() == pytest.approx(0.6698, rel=5 / 9_000**0.5)  # the deviation of a median of three


def test_a_mean_of_groups_is_what_a_mean_of_all_would_be_where_nobody_is_faulty():
    rule = NormBoundedMean(max_faulty=0, clip_norm=1e9, before=FixedGroups(2))
    release = ServerRelease(
        ClientPlan(clip_norm=5.0, noise_multiplier=1e-9), dict.fromkeys("abcd", 1), Fraction(4), rule
    )
    updates = {name: np.array([float(place)]) for place, name in enumerate("abcd")}
    assert release.release(updates, 1, SeededSource(1)).average == pytest.approx(1.5, abs=1e-6)
    assert float(release.sensitivity("add_remove")) == pytest.approx(5 / 2)  # of the mean of its group


def test_faulty_clients_spoil_no_more_groups_than_there_are_of_them():
    release = make_grouped(noise=1e-9)
    updates = {name: np.ones(1) for name in SEVEN} | {"a": np.array([-1e9])}
    assert release.release(updates, 1, SeededSource(1)).average == pytest.approx(6 / 7, abs=0.2)


def test_weights_and_strangers_are_refused_groups():
    with pytest.raises(InvalidArgument, match="count once each"):
        ServerRelease(ClientPlan(clip_norm=1.0), {"a": 2, "b": 1, "c": 1}, Fraction(3), GROUPED)
    with pytest.raises(InvalidArgument, match="count once each"):
        ServerRelease(ClientPlan(clip_norm=1.0), None, Fraction(3), GROUPED)
    with pytest.raises(InvalidArgument, match="of clients of the plan"):
        make_grouped().query({"stranger": np.ones(1)}, 1)
