"""A rule's description executes the function of its name, with its numbers, behind its mixing."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation import robust
from dpfed.aggregation.robust_rules import (
    Bucketing,
    CenteredClipping,
    CoordinateMedian,
    FixedGroups,
    Krum,
    MinimumDiameter,
    MultiKrum,
    NearestNeighbourMixing,
    NormBoundedMean,
    TrimmedMean,
)
from dpfed.aggregation.rules import RULES
from dpfed.errors import BreakdownError, InvalidArgument
from dpfed.randomness import SeededSource
from robust_cases import make_honest

ROWS = make_honest(11, 5)
UPDATES = {f"c{place}": row for place, row in enumerate(ROWS)}
CLIPPING = {"norm_bounded_mean", "centered_clipping"}


@pytest.mark.parametrize("kind", [kind for kind in RULES if kind != "mean"])
def test_a_description_executes_the_function_of_its_name(kind):
    clip = {"clip_norm": 1.5} if kind in CLIPPING else {}
    expected = getattr(robust, kind)(ROWS, max_faulty=2, **clip)
    assert np.allclose(RULES[kind](max_faulty=2, **clip).combined(UPDATES, 5), expected)


def test_options_reach_the_function():
    found = MultiKrum(max_faulty=2, chosen=3).combined(UPDATES, 5)
    assert np.allclose(found, robust.multi_krum(ROWS, max_faulty=2, chosen=3))
    centre = np.full(5, 0.5)
    found = CenteredClipping(max_faulty=2, clip_norm=0.3, steps=4).combined(UPDATES, 5, centre=centre)
    assert np.allclose(found, robust.centered_clipping(ROWS, max_faulty=2, clip_norm=0.3, steps=4, centre=centre))


def test_mixing_comes_before_the_rule():
    found = TrimmedMean(max_faulty=2, before=NearestNeighbourMixing()).combined(UPDATES, 5)
    assert np.allclose(found, robust.trimmed_mean(robust.nnm(ROWS, max_faulty=2), max_faulty=2))
    found = CoordinateMedian(max_faulty=2, before=Bucketing(2)).combined(UPDATES, 5, source=SeededSource(9))
    mixed = robust.bucketing(ROWS, bucket_size=2, source=SeededSource(9))
    assert np.allclose(found, robust.coordinate_median(mixed, max_faulty=2))


def test_the_condition_is_checked_on_what_came_and_behind_buckets_on_their_number():
    rule = Krum(max_faulty=2, before=Bucketing(2))
    assert rule.least == 13
    with pytest.raises(BreakdownError, match="krum needs 7 updates to bear 2 faulty ones, and 6 came"):
        rule.combined(UPDATES, 5, source=SeededSource(9))
    with pytest.raises(BreakdownError, match="and 0 came"):
        TrimmedMean(max_faulty=0).combined({}, 5)
    thirteen = {f"c{place}": row for place, row in enumerate(make_honest(13, 5))}
    assert rule.combined(thirteen, 5, source=SeededSource(9)).shape == (5,)


def test_buckets_without_a_source_of_chance_are_refused():
    with pytest.raises(InvalidArgument, match="drawn at random"):
        CoordinateMedian(max_faulty=2, before=Bucketing(2)).combined(UPDATES, 5)


def test_a_weight_makes_no_client_count_twice():
    rule = TrimmedMean(max_faulty=2)
    assert (rule.combined(UPDATES, 5, {"c0": 1e12}) == rule.combined(UPDATES, 5)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrimmedMean(max_faulty=-1),
        lambda: TrimmedMean(max_faulty=1.5),
        lambda: TrimmedMean(max_faulty=1, before="nnm"),
        lambda: NormBoundedMean(max_faulty=1, clip_norm=0),
        lambda: CenteredClipping(max_faulty=1, steps=0),
        lambda: Bucketing(0),
        lambda: MultiKrum(max_faulty=1, chosen=0),
        lambda: MinimumDiameter(max_faulty=9).require(24),
        lambda: CenteredClipping(max_faulty=1).combined(UPDATES, 5),
    ],
)
def test_numbers_that_no_rule_can_have_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()


def test_a_rule_says_what_it_bears():
    assert str(Krum(max_faulty=1)) == "krum, bearing 1 faulty client"
    assert str(TrimmedMean(max_faulty=2, before=NearestNeighbourMixing())).startswith(
        "trimmed_mean behind nnm, bearing 2"
    )


@pytest.mark.parametrize(("before", "least"), [(None, 9), (NearestNeighbourMixing(), 9), (Bucketing(2), 17)])
def test_multi_krum_needs_as_many_honest_updates_as_it_is_to_choose(before, least):
    """With fewer it breaks down as every rule does, which a round bears: any other error would end the run."""
    rule = MultiKrum(max_faulty=1, chosen=8, before=before)
    assert rule.least == least
    rule.require(least)
    with pytest.raises(BreakdownError, match="multi_krum needs 9 updates to bear 1 faulty ones, and 8 came"):
        rule.combined({str(place): np.ones(2) for place in range(least - 1)}, 2, source=SeededSource(1))


def test_groups_are_refused_updates_that_nobody_noised_in_groups():
    rule = CoordinateMedian(max_faulty=1, before=FixedGroups(3))
    with pytest.raises(InvalidArgument, match="noised by a server"):
        rule.combined({name: np.zeros(2) for name in "abc"}, size=2)
    with pytest.raises(InvalidArgument, match="groups"):
        FixedGroups(0)


def test_groups_differ_by_one_client_at_most():
    groups = FixedGroups(3)
    assert groups.sizes(8) == [3, 3, 2]
    assert [groups.place(number) for number in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]
