from __future__ import annotations

import numpy as np
import pytest

from dpfed.federated.probabilities import softmax, to_probabilities


def test_scores_of_any_size_are_probabilities():
    found = softmax(np.array([[1000.0, -1000.0], [-2000.0, -2000.0]]))
    assert found.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_one_score_for_two_classes_is_that_of_the_second():
    found = to_probabilities(np.array([[0.0], [2.0]]), 2)
    assert found[:, 1] == pytest.approx([0.5, 1 / (1 + np.exp(-2))])


def test_a_quantity_stays_as_it_is():
    assert to_probabilities(np.array([3.0, 4.0]), 0).tolist() == [[3.0], [4.0]]
