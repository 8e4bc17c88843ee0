"""The geometric median is converged, also where it lies on an update, and clipping is by distance from the centre."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.geometric import centered_clipping, geometric_median, norm_bounded_mean
from dpfed.errors import InvalidArgument
from robust_cases import cases, make_honest


def cost(point, values):
    return np.linalg.norm(values - point, axis=1).sum()


@pytest.mark.parametrize("seed", range(5))
def test_no_point_near_the_geometric_median_is_better(seed):
    values = make_honest(9, 3, seed)
    values[0] = 1e5
    found = geometric_median(values, max_faulty=4)
    pulls = (values - found) / np.linalg.norm(values - found, axis=1)[:, None]
    assert np.linalg.norm(pulls.sum(axis=0)) <= 1e-6


def test_the_geometric_median_on_an_update_is_that_update():
    values = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 1.0], [0.1, -1.0]])
    assert np.allclose(geometric_median(values, max_faulty=2), values[0], atol=1e-9)
    several = np.array([[2.0, 2.0]] * 3 + [[9.0, -9.0]])
    assert np.allclose(geometric_median(several, max_faulty=1), [2.0, 2.0])


def test_the_geometric_median_of_equal_updates_is_the_update():
    assert np.allclose(geometric_median(np.ones((4, 3)), max_faulty=1), 1.0)


def test_the_geometric_median_between_updates_on_a_line_is_as_good_as_the_median():
    values = np.array([[0.0], [1.0], [2.0], [50.0]])
    assert cost(geometric_median(values, max_faulty=1), values) == pytest.approx(cost(np.array([1.5]), values))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize(("near", "far"), [(1e3, 1e20), (1e10, 1e30), (50.0, 1e16)])
def test_a_row_far_out_does_not_make_another_one_the_geometric_median(near, far, place):
    """Beside 1e20 all other sums of distances are alike to the last digit, and any row would pass for the best."""
    honest = make_honest(3, 4, seed=3)
    updates = np.roll(np.vstack([honest, np.full((1, 4), near), np.full((1, 4), far)]), place, axis=0)
    found = geometric_median(updates, max_faulty=2)
    farthest = np.linalg.norm(honest - honest.mean(axis=0), axis=1).max()
    assert np.linalg.norm(found - honest.mean(axis=0)) <= 6 * farthest  # 2(n − f)/(n − 2f), as the docs promise


def test_the_geometric_median_beside_a_row_far_out_is_as_exact_as_without():
    """What is farther out than 1e6 pulls in its direction as much as from there."""
    honest = make_honest(8, 2, seed=4)
    found = [geometric_median(np.vstack([honest, [[far, -far]]]), max_faulty=1) for far in (1e6, 1e9, 1e12, 1e30)]
    assert np.ptp(found, axis=0).max() < 1e-5


def test_clipping_leaves_short_updates_and_zero_as_they_are():
    (case,) = cases("norm_bound")
    rows, expected = np.array(case["input"]["updates"]), np.array(case["expected"]["output"])
    clipped = [norm_bounded_mean(row[None], max_faulty=0, clip_norm=case["input"]["c"]) for row in rows]
    assert np.allclose(clipped, expected, atol=case["tolerance"])


def test_centred_clipping_pulls_by_the_clip_norm_at_most():
    values = np.array([[1.0, 0.0], [1.0, 0.0], [1e9, 0.0]])
    found = centered_clipping(values, max_faulty=1, clip_norm=0.3, centre=[1.0, 0.0])
    assert np.allclose(found, [1.1, 0.0], rtol=0, atol=1e-7)


def test_a_centre_that_is_no_vector_of_the_model_is_refused():
    for centre in ([1.0], [np.nan, 0.0]):
        with pytest.raises(InvalidArgument, match="centre must be a finite vector of 2 numbers"):
            centered_clipping(np.ones((3, 2)), max_faulty=1, clip_norm=1.0, centre=centre)
