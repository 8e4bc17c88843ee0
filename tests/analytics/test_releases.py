from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting.queries import epsilon
from dpfed.analytics.queries import Histogram, Moments
from dpfed.analytics.releases import ColumnRelease
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.guarantee import Guarantee
from dpfed.randomness import SeededSource


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
@pytest.mark.parametrize("sites", [1, 3])
def test_as_many_sites_as_one_may_be_in_keep_the_promise_together_and_no_noise_is_wasted(adjacency, sites):
    release = ColumnRelease(Histogram.fixed(30), Guarantee(0.7, 1e-5, "person", adjacency), sites)
    assert 0.699 < epsilon(ev.Repeated(release.event, sites), 1e-5, adjacency=adjacency) <= 0.7


def test_the_noise_is_the_multiplier_times_the_norm_of_one_unit():
    # 20,000 draws: their mean square is within 5 standard deviations (5 %) but for 1 in 10⁶ seeds.
    release = ColumnRelease(Histogram((tuple(range(19_999)),)), Guarantee(1.0, 1e-5))
    drawn = release.release(np.zeros(20_000), SeededSource(2))
    assert np.mean(drawn**2) == pytest.approx(release.noise**2, rel=0.05)
    assert release.noise == pytest.approx(3.7306, rel=1e-3)


def test_a_client_is_scaled_to_the_norm_of_one_unit_and_never_up():
    release = ColumnRelease(Moments(((0.0, 1.0),) * 4), Guarantee(1.0, 1e-5, "client"))
    large, small = release.scale(release.query.add_up(np.ones((500, 4)))), release.scale(np.full(9, 0.1))
    assert np.linalg.norm(large) <= release.query.norm
    assert np.linalg.norm(large) == pytest.approx(3.0)
    assert small == pytest.approx(np.full(9, 0.1), abs=1e-9)


def test_a_client_more_moves_the_sum_of_many_by_its_own_vector_to_the_last_bit():
    release = ColumnRelease(Moments(((0.0, 1.0),)), Guarantee(1.0, 1e-5, "client"))
    parts = [release.scale(row) for row in np.random.default_rng(1).normal(size=(500, 3)) * 100]
    for place in range(0, 500, 25):
        moved = np.sum(parts, axis=0) - np.sum([*parts[:place], *parts[place + 1 :]], axis=0)
        assert moved.tolist() == parts[place].tolist()
        assert sum(Fraction(number) ** 2 for number in moved) <= Fraction(release.query.norm) ** 2
