"""Rules by coordinate agree with a direct computation in every number of updates, and with chunks of any size."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation import rows
from dpfed.aggregation.coordinatewise import coordinate_median, mean_around_median, trimmed_mean
from robust_cases import make_honest


@pytest.mark.parametrize("count", [3, 4, 7, 8])
def test_the_median_is_that_of_numpy_for_odd_and_even_numbers(count):
    values = make_honest(count, 11)
    assert np.allclose(coordinate_median(values, max_faulty=1), np.median(values, axis=0), rtol=1e-15)


@pytest.mark.parametrize("faulty", [0, 1, 3])
def test_the_trimmed_mean_drops_so_many_on_both_sides(faulty):
    values = make_honest(8, 11)
    expected = np.sort(values, axis=0)[faulty : 8 - faulty].mean(axis=0)
    assert np.allclose(trimmed_mean(values, max_faulty=faulty), expected, rtol=1e-14)


@pytest.mark.parametrize("faulty", [0, 1, 3])
def test_the_mean_around_the_median_takes_the_nearest(faulty):
    values = make_honest(8, 11)
    apart = np.abs(values - np.median(values, axis=0)).argsort(axis=0)[: 8 - faulty]
    expected = np.take_along_axis(values, apart, axis=0).mean(axis=0)
    assert np.allclose(mean_around_median(values, max_faulty=faulty), expected, rtol=1e-14)


@pytest.mark.parametrize("rule", [coordinate_median, trimmed_mean, mean_around_median])
def test_chunks_of_any_size_give_the_same(rule, monkeypatch):
    values = make_honest(8, 300)
    whole = rule(values, max_faulty=2)
    monkeypatch.setattr(rows, "AT_ONCE", 1)
    assert (rule(values, max_faulty=2) == whole).all()


def test_a_value_far_out_leaves_no_rounding_error_in_the_mean_around_the_median():
    values = np.array([[0.1], [0.2], [0.3], [0.4], [1e30]])
    assert mean_around_median(values, max_faulty=1)[0] == pytest.approx(0.25, rel=1e-15)
