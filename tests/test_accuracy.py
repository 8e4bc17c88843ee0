"""The figures of accuracy: equal settings, an interval that is Student's, and a page made from the results."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

import accuracy

NUCLEI = accuracy.SETTINGS[1]
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:Secure RNG turned off")


def test_every_contestant_learns_and_is_tested_on_records_it_was_not_trained_on():
    """Guessing the majority is right for 63 %."""
    result = accuracy.measured(replace(NUCLEI, seeds=1))
    assert set(result["scores"]) == {"dpfed", "opacus", "plain"}
    assert all(score > 0.75 for (score,) in result["scores"].values()), result["scores"]
    assert result["tested"] == 569 - NUCLEI.size


def test_opacus_is_not_compared_at_another_rate():
    data = accuracy.split(NUCLEI, NUCLEI.load(), 0).train
    with pytest.raises(ValueError, match="batch_size must divide size"):
        accuracy.by_opacus(replace(NUCLEI, batch_size=100), data, NUCLEI.model(), 0)


def test_the_interval_is_that_of_a_paired_t_test():
    ours, theirs = np.random.default_rng(0).normal(0.9, 0.01, (2, 5))
    middle, half = accuracy.difference(list(ours), list(theirs))
    known = ttest_rel(ours, theirs).confidence_interval(accuracy.LEVEL)
    assert (middle - half, middle + half) == pytest.approx((known.low, known.high))


def test_a_difference_beyond_chance_is_shown_as_one():
    scores = {"dpfed": [0.9, 0.91, 0.92], "opacus": [0.8, 0.81, 0.83], "plain": [0.9, 0.9, 0.9]}
    assert "| NO |" in accuracy._row({"name": "x", "settings": {"epsilon": 1.0}, "scores": scores})


def test_bounds_are_constants_and_features_are_cut_to_them():
    assert accuracy.BOUNDS.shape == (30, 2)
    features, labels = accuracy.nuclei()
    assert features.abs().max() <= 1
    assert len(features) == len(labels) == 569


def test_the_page_is_the_one_made_from_the_results_of_five_seeds_or_more():
    found = json.loads(accuracy.RESULT.read_text())
    assert accuracy.PAGE.read_text() == accuracy.render(found)
    assert [result["name"] for result in found["results"]] == [setting.name for setting in accuracy.SETTINGS]
    assert all(len(scores) >= 5 for result in found["results"] for scores in result["scores"].values())
