"""Rows are read in chunks, and few of them, however far out, do not cost the others their digits."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation import rows as module
from dpfed.aggregation.rows import Rows
from dpfed.errors import UpdateRejected
from robust_cases import make_honest


def direct(values):
    return ((values[:, None] - values[None]) ** 2).sum(axis=2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_are_those_of_the_updates(dtype):
    values = make_honest(6, 700).astype(dtype)
    assert np.allclose(Rows.read(values).squared_distances, direct(values.astype(float)), rtol=1e-12)


def test_distances_do_not_depend_on_the_size_of_a_chunk(monkeypatch):
    values = make_honest(6, 700)
    whole = Rows.read(values).squared_distances
    monkeypatch.setattr(module, "AT_ONCE", 1)
    assert np.allclose(Rows.read(values).squared_distances, whole, rtol=1e-13)


def test_a_huge_update_costs_the_others_no_digits():
    values = make_honest(7, 50)
    values[2] = 1e29
    near = np.delete(np.arange(7), 2)
    found = Rows.read(values).squared_distances[np.ix_(near, near)]
    assert np.allclose(found, direct(values[near]), rtol=1e-9)


def test_nearly_equal_updates_keep_their_distances():
    values = 1e6 + 1e-3 * make_honest(7, 50)
    assert np.allclose(Rows.read(values).squared_distances, direct(values), rtol=1e-4)


def test_products_of_many_float32_rows_are_taken_in_float32_unless_their_squares_overflow(monkeypatch):
    monkeypatch.setattr(module, "LARGE_GRAM", 10)
    values = make_honest(6, 700).astype(np.float32)
    assert np.allclose(Rows.read(values).squared_distances, direct(values.astype(float)), rtol=1e-5)
    values[0] = 1e25
    assert np.isfinite(Rows.read(values).squared_distances).all()


def test_mixed_rows_are_combinations_without_a_copy_of_all():
    values, matrix = make_honest(5, 9), np.full((2, 5), 0.2)
    mixed = Rows.read(values).mixed(matrix).mixed(np.array([[0.5, 0.5]]))
    assert mixed.count == 1
    assert mixed.values is Rows.read(mixed).values
    assert np.allclose(mixed.to_array(), values.mean(axis=0))
    assert np.allclose(mixed.combine(np.ones(1)), values.mean(axis=0))


def test_distances_of_mixed_rows_are_those_of_the_combinations():
    values = make_honest(5, 9)
    matrix = np.array([[0.5, 0.5, 0, 0, 0], [0, 0, 0.2, 0.4, 0.4]])
    assert np.allclose(Rows.read(values).mixed(matrix).squared_distances, direct(matrix @ values))


def test_a_subclass_of_an_array_is_not_read():
    with pytest.raises(UpdateRejected, match="float32 or float64"):
        Rows.read(np.zeros((2, 2), dtype=np.int64))
