"""Figures of attacks against scikit-learn and exact counts; a failed attack is no coin."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dpfed.audit.roc import compute_auc, find_interval, measure, trace_curve


def scores(seed=1, members=80, others=120, shift=1.0):
    draws = np.random.default_rng(seed)
    return np.round(draws.normal(shift, 1, members), 1), np.round(draws.normal(0, 1, others), 1)


def test_the_area_is_that_of_scikit_learn_with_ties():
    members, others = scores()
    truth = roc_auc_score([1] * len(members) + [0] * len(others), np.concatenate([members, others]))
    auc, (low, high) = compute_auc(members, others)
    assert auc == pytest.approx(truth, abs=1e-12)
    assert low < auc < high


def test_the_interval_of_the_area_covers_the_truth_as_often_as_it_says():
    """AUC of N(1, 1) against N(0, 1) is Φ(1/√2). Fewer than 255 covers of 300: below 1e-6."""
    covered = 0
    for seed in range(300):
        draws = np.random.default_rng(seed)
        low, high = compute_auc(draws.normal(1, 1, 60), draws.normal(0, 1, 60))[1]
        covered += low <= 0.760250 <= high
    assert covered >= 255


def test_the_curve_goes_from_none_to_all_and_never_down():
    alarms, hits = trace_curve(*scores())
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)
    assert (np.diff(alarms) >= 0).all()
    assert (np.diff(hits) >= 0).all()


def test_members_found_at_few_false_alarms_are_counted():
    found = measure("a", [9.0, 8.0, 0.5, 0.1], np.arange(200) / 200)
    rare, few = found.rates
    assert (rare.found, few.found) == (0.5, 0.5)
    assert rare.is_coarse
    assert not few.is_coarse
    assert rare.interval == find_interval(2, 4)
    assert found.balanced_accuracy == pytest.approx((1 + found.advantage) / 2)


def test_exact_intervals_are_those_of_the_beta_law():
    assert find_interval(0, 10) == pytest.approx((0, 0.3085), abs=1e-4)
    assert find_interval(10, 10) == pytest.approx((0.6915, 1), abs=1e-4)


@pytest.mark.parametrize(
    ("members", "others", "why"),
    [
        ([1.0, 1.0], [1.0], "all scores are alike"),
        ([np.nan, 1.0], [0.0], "a score is not a number"),
        ([], [0.0], "there are no members, or no others, to compare"),
    ],
)
def test_a_failed_attack_has_a_reason_and_no_figures(members, others, why):
    found = measure("a", members, others)
    assert found.failure == why
    assert (found.auc, found.advantage, found.balanced_accuracy, found.rates) == (None, None, None, ())
