from __future__ import annotations

import numpy as np
import pytest

from dpfed.data.scaling import Bounds, Standard
from dpfed.errors import InvalidArgument

ROWS = np.array([[0.0, 10.0], [5.0, 20.0], [99.0, -7.0]])


def test_bounds_map_their_ends_to_one_and_clip_what_is_outside():
    assert Bounds([(0, 10), (10, 20)]).apply(ROWS).tolist() == [[-1, -1], [0, 1], [1, -1]]


def test_one_pair_is_for_all_features_of_any_shape():
    images = np.array([[[0.0, 16.0], [8.0, 4.0]]])
    assert Bounds((0, 16)).apply(images).tolist() == [[[-1, 1], [0, -0.5]]]


def test_bounds_by_name_leave_other_columns_alone():
    assert Bounds({"b": (10, 20)}).apply(ROWS, ("a", "b")).tolist() == [[0, -1], [5, 1], [99, -1]]
    assert ROWS[0, 1] == 10.0


def test_a_record_more_does_not_change_how_another_is_scaled():
    for scaling in (Bounds([(0, 10), (10, 20)]), Bounds({"a": (0, 3)}), Standard([1, 2], 3)):
        alone, together = scaling.apply(ROWS[:2], ("a", "b")), scaling.apply(ROWS, ("a", "b"))
        assert np.array_equal(alone, together[:2])


def test_mean_and_scale_are_applied_as_given():
    assert Standard(mean=[1, 0], scale=2).apply(ROWS).tolist() == [[-0.5, 5], [2, 10], [49, -3.5]]


@pytest.mark.parametrize(
    "scaling", [Bounds([(0, 1)]), Bounds([(0, 1)] * 3), Standard([1.0]), Standard(0, [1, 2, 3]), Bounds({"c": (0, 1)})]
)
def test_constants_that_do_not_fit_the_features_are_refused(scaling):
    with pytest.raises(InvalidArgument):
        scaling.apply(ROWS, ("a", "b"))


@pytest.mark.parametrize("pair", [(61.0, 61.0), (62.0, 61.0), (-1.7e308, 1.7e308), (0.0, float("inf"))])
@pytest.mark.parametrize("value", [61.0, 60.0, 1e308, 0.0])
def test_bounds_that_would_make_nan_of_one_value_are_refused_whatever_the_values_are(pair, value):
    for bounds in (pair, [pair], {"a": pair}):
        with pytest.raises(InvalidArgument, match="low below high"):
            Bounds(bounds).apply(np.array([[value]]), ("a",))


def test_finite_values_stay_finite_within_bounds_of_any_kind_and_nothing_is_said_of_them():
    values = np.array([[0.0], [-0.0], [5e-324], [1e308], [-1e308], [1e-300]])
    for pair in ((0.0, 5e-324), (-1e308, 0.7e308), (1e308, 1.1e308), (-5e-324, 0.0)):
        assert np.isfinite(Bounds(pair).apply(values)).all()
