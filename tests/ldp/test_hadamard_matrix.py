from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard

from dpfed.errors import InvalidArgument
from dpfed.ldp import hadamard_matrix
from dpfed.ldp.coins import ONE
from dpfed.randomness import SeededSource


@pytest.mark.parametrize("size", [1, 2, 16, 64])
def test_signs_and_transform_are_those_of_the_matrix(size):
    matrix, places = hadamard(size), np.arange(size)
    assert np.array_equal(hadamard_matrix.signs(places[:, None], places[None, :]), matrix)
    rows = np.random.default_rng(1).normal(size=(3, size))
    assert np.allclose(hadamard_matrix.transform(rows), rows @ matrix)


def test_signs_of_large_positions_count_all_their_bits():
    assert hadamard_matrix.signs(np.array([2**31 - 1]), np.array([2**31 - 1])).tolist() == [-1]
    assert hadamard_matrix.signs(np.array([2**31 + 1]), np.array([2**31 + 1])).tolist() == [1]


def test_signs_that_are_always_kept_are_the_matrixs_and_turned_round_otherwise():
    rows, columns = np.arange(8), np.arange(8)[::-1]
    true = hadamard_matrix.signs(rows, columns)
    assert hadamard_matrix.noisy_signs(rows, columns, ONE, SeededSource(1)).tolist() == true.tolist()
    assert hadamard_matrix.noisy_signs(rows, columns, 0, SeededSource(1)).tolist() == (-true).tolist()


def test_the_epsilon_of_a_sign_is_its_odds():
    assert hadamard_matrix.sign_epsilon(3 * ONE // 4) == 1.0986122886681098


def test_other_signs_are_refused():
    with pytest.raises(InvalidArgument, match="signs other than"):
        hadamard_matrix.require_signs(np.array([(0,)], dtype=[("sign", "i1")]))
