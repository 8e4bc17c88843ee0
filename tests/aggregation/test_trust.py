"""FLTrust counts what agrees with the root, at the root's length, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.trust import fltrust
from dpfed.errors import InvalidArgument
from robust_cases import make_honest


def test_a_long_update_counts_no_more_than_the_root_is_long():
    root = np.array([1.0, 0.0])
    assert np.linalg.norm(fltrust([[1e9, 0.0], [1.0, 1.0]], root=root)) <= 1 + 1e-12


def test_updates_are_weighted_by_their_cosine():
    found = fltrust([[3.0, 0.0], [2.0, 2.0]], root=[2.0, 0.0])
    weights = np.array([1.0, np.sqrt(0.5)])
    expected = weights / weights.sum() @ np.array([[2.0, 0.0], [np.sqrt(2), np.sqrt(2)]])
    assert np.allclose(found, expected)


def test_nothing_that_agrees_is_nothing_that_moves():
    values = make_honest(4, 3)
    assert fltrust(-np.abs(values), root=[1.0, 1.0, 1.0]).tolist() == [0.0, 0.0, 0.0]
    assert fltrust(values, root=[0.0, 0.0, 0.0]).tolist() == [0.0, 0.0, 0.0]


def test_a_root_of_another_model_is_refused():
    with pytest.raises(InvalidArgument, match="root must be an update of 3 numbers"):
        fltrust(make_honest(4, 3), root=[1.0])
