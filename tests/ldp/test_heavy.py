"""Heavy hitters by prefix extension. False-alarm probabilities: 2e-6 per test of moments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import LocalHashing, PrefixExtension
from dpfed.ldp.hashes import buckets, evaluate
from dpfed.randomness import SeededSource
from support.local_reports import repeat, require_moments

FINDER = PrefixExtension(3.0, bits=16, first=4, step=6, keep=4)
FREQUENT = (40_000, 12_345, 7)
VALUES = np.concatenate([np.repeat(FREQUENT, [6000, 4000, 3000]), np.arange(2000)])


def test_frequent_values_are_found_the_most_frequent_first():
    found = FINDER.find(FINDER.randomize(VALUES, SeededSource(1)))
    assert found.values[:3] == FREQUENT
    assert set(FREQUENT) <= set(found.significant)
    assert len(found.values) == 4
    truth = np.array([6000, 4000, 3000]) / len(VALUES)
    assert np.all(np.abs(found.estimate.frequencies[:3] - truth) < 6 * found.estimate.standard_errors[:3])


def test_without_frequent_values_hardly_any_is_significant():
    """20 searches at 0.1 % each: more than three have chance below 1e-8."""
    values, source = np.arange(3000) * 21, SeededSource(2)
    found = [FINDER.find(FINDER.randomize(values, source), significance=0.001).significant for _ in range(20)]
    assert sum(map(bool, found)) <= 3


def test_estimates_are_unbiased_by_the_actual_size_of_the_group():
    """400 estimates of 1,500 users, of whom about a third report whole values."""
    finder, values = PrefixExtension(2.0, bits=8, first=2, step=3), np.repeat([200, 3], [450, 1050])
    errors = repeat(lambda source, _: finder.estimate(finder.randomize(values, source), [200]).frequencies[0], 0.3, 4)
    require_moments(errors, finder.variance(1500, 0.3))


@pytest.mark.parametrize(
    ("bits", "first", "step", "lengths"), [(16, 4, 6, (4, 10, 16)), (9, 4, 4, (4, 8, 9)), (8, 8, 4, (8,))]
)
def test_groups_report_longer_and_longer_prefixes_up_to_the_whole(bits, first, step, lengths):
    assert PrefixExtension(1.0, bits, first, step).lengths == lengths


def test_each_group_reports_the_prefix_of_its_length_and_nothing_more():
    """With the same coins, values of the same prefix give the same report, at every length."""
    ours, theirs = (
        FINDER.randomize(np.full(600, value), SeededSource(1)) for value in (0b1010 << 12, 0b1010 << 12 | 9)
    )
    is_short = ours["group"] < 2
    assert np.array_equal(ours[is_short], theirs[is_short])
    assert not np.array_equal(ours[~is_short], theirs[~is_short])


def test_groups_do_not_depend_on_the_value_and_a_report_has_the_epsilon_of_hashing():
    """The exact largest ratio of a report: the own bucket's chance against any other's, at every length."""
    ours, theirs = (FINDER.randomize(np.full(600, value), SeededSource(1)) for value in (0, 65_535))
    assert np.array_equal(ours["group"], theirs["group"])
    oracle = LocalHashing(3.0, 1 << 16)
    own = oracle.chances[0]
    assert math.log(own * (oracle.buckets - 1) / (1 - own)) == pytest.approx(FINDER.epsilon, rel=1e-12)
    assert FINDER.epsilon == FINDER.event.epsilon == oracle.epsilon <= 3.0


def test_only_the_prefix_decides_the_bucket():
    finder = PrefixExtension(40.0, bits=16, first=4, step=6)  # hardly ever a lie: about one in 10¹²
    reports = finder.randomize(np.full(900, 40_000), SeededSource(5))
    prefixes = 40_000 >> (16 - np.array(finder.lengths)[reports["group"]])
    hashed = evaluate(reports["report"]["multiplier"], reports["report"]["offset"], prefixes)
    assert np.array_equal(buckets(hashed, 1 << 16), reports["report"]["bucket"])


def test_the_same_seed_gives_the_same_reports():
    first, again, other = (FINDER.randomize(VALUES, SeededSource(seed)).tobytes() for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("values", [[65_536], [-1], [0.5], [], [[1]]])
def test_values_of_more_bits_and_wrong_shapes_are_refused(values):
    with pytest.raises(InvalidArgument, match=r"^values must"):
        FINDER.randomize(values)


@pytest.mark.parametrize(
    "settings", [{"bits": 31}, {"bits": 3}, {"bits": 0}, {"step": 17}, {"step": 0}, {"keep": 5000}, {"epsilon": 0.0}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InvalidArgument):
        PrefixExtension(**{"epsilon": 1.0, "bits": 16, **settings})


def test_a_group_without_reports_and_unknown_groups_are_refused():
    reports = FINDER.randomize(VALUES[:50], SeededSource(1))
    with pytest.raises(InvalidArgument, match="from all 3 groups"):
        FINDER.find(reports[reports["group"] > 0])
    with pytest.raises(InvalidArgument, match="at least one report"):
        FINDER.find(reports[:0])
    reports["group"][0] = 3
    with pytest.raises(InvalidArgument, match="groups that were not declared"):
        FINDER.find(reports)


def test_reports_may_come_in_batches():
    reports = FINDER.randomize(VALUES, SeededSource(1))
    assert FINDER.find([reports[:500], reports[500:]]).values == FINDER.find(reports).values
