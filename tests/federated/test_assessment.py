from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from dpfed.federated.assessment import assess_classes, assess_quantity, compute_auc


def test_figures_are_those_of_scikit_learn():
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 2, 300)
    scores = np.round(np.clip(0.3 * labels + 0.7 * draws.random(300), 0, 1), 2)  # with ties
    found = assess_classes(np.column_stack([1 - scores, scores]), labels, ("no", "yes"))
    said = scores > 0.5
    assert found.auc == pytest.approx(metrics.roc_auc_score(labels, scores))
    assert found.confusion.tolist() == metrics.confusion_matrix(labels, said).tolist()
    assert found.sensitivity[1] == pytest.approx(metrics.recall_score(labels, said))
    assert found.specificity[1] == found.sensitivity[0]
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, said))
    assert found.guessing == pytest.approx(max(labels.mean(), 1 - labels.mean()))


def test_three_classes_have_the_mean_auc_of_one_against_the_rest():
    draws = np.random.default_rng(1)
    labels, shares = draws.integers(0, 3, 200), draws.dirichlet([1, 1, 1], 200)
    found = assess_classes(shares, labels, ("a", "b", "c"))
    assert found.auc == pytest.approx(metrics.roc_auc_score(labels, shares, multi_class="ovr"))


def test_a_perfectly_calibrated_guess_has_no_calibration_error():
    shares = np.tile([0.25, 0.75], (4, 1))
    found = assess_classes(shares, np.array([1, 1, 1, 0]), ("a", "b"))
    assert found.calibration_error == pytest.approx(0.0)
    assert not found.is_better
    assert found.to_plain()["confusion"] == [[0, 1], [0, 3]]


def test_a_class_that_is_not_there_has_no_figures():
    found = assess_classes(np.array([[0.9, 0.1]]), np.array([0]), ("a", "b"))
    assert (found.auc, found.sensitivity, found.specificity) == (None, (1.0, None), (None, 1.0))
    assert compute_auc(np.array([1.0]), np.array([True])) is None


def test_errors_of_a_quantity():
    found = assess_quantity(np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 2.0, 3.0]))
    assert found.rmse == pytest.approx(np.sqrt(1 / 3))
    assert found.mae == pytest.approx(1 / 3)
    assert found.r2 == pytest.approx(metrics.r2_score([1, 2, 3], [1, 2, 4]))
    assert found.is_better
    assert found.to_plain()["guessing"] == pytest.approx(np.std([1, 2, 3]))
