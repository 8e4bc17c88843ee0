"""Intervals of quantiles, means and variances hold the truth as often as they say; what is useless says so."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.analytics.answers import HistogramAnswer, MomentsAnswer, make_answer
from dpfed.analytics.queries import Histogram, Moments
from dpfed.errors import InvalidArgument

GRID = Histogram((tuple(np.linspace(0, 10, 21)),))


@pytest.mark.parametrize("noise", [0.0, 20.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_an_interval_of_a_quantile_holds_it_in_95_of_100_cases(noise, share):
    # 400 cases at 95 %: fewer than 358 would be 5 standard deviations below, one in 10⁶ times.
    draws = np.random.default_rng(3)
    truth = 10 * share  # of uniform values
    held = 0
    for _ in range(400):
        counts = GRID.add_up(draws.uniform(0, 10, (2000, 1))) + noise * draws.normal(size=GRID.size)
        found = make_answer(GRID, counts, noise).quantile(0, share)
        held += found.low - 0.5 <= truth <= found.high + 0.5  # a cell is as fine as it gets
    assert held >= 358


@pytest.mark.parametrize("noise", [0.0, 15.0])
def test_intervals_of_mean_and_variance_hold_them_in_95_of_100_cases(noise):
    draws = np.random.default_rng(4)
    query = Moments(((0.0, 20.0),))
    held = np.zeros(2)
    for _ in range(400):
        sums = query.add_up(draws.uniform(2, 10, (1500, 1))) + noise * draws.normal(size=query.size)
        answer = make_answer(query, sums, noise)
        for place, (found, truth) in enumerate(((answer.mean(0), 6.0), (answer.variance(0), 64 / 12))):
            held[place] += found.low <= truth <= found.high
    assert held.min() >= 358


def test_noise_that_is_larger_than_what_was_counted_is_called_useless():
    counts = np.array([30.0, -50.0, 40.0, 10.0] + [0.0] * 18)
    answer = HistogramAnswer(GRID, counts, noise=60.0)
    assert answer.quantile(0, 0.5).is_useless
    assert str(answer.quantile(0, 0.5)).startswith("useless")
    assert make_answer(Moments(((0.0, 1.0),)), np.array([5.0, 2.0, 3.0]), noise=10.0).mean(0).is_useless


def test_a_count_has_its_own_interval():
    found = HistogramAnswer(GRID, np.arange(22.0), noise=2.0).count(0, 3)
    assert (found.value, round(found.high, 2)) == (3.0, 6.92)


def test_a_vector_of_another_query_is_refused():
    with pytest.raises(InvalidArgument, match="has 22 numbers"):
        make_answer(GRID, np.zeros(3), 1.0)


@pytest.mark.parametrize("place", [1, -1, "age", 0.0])
def test_a_number_that_no_column_has_is_refused_with_those_that_there_are(place):
    counted, summed = (
        HistogramAnswer(GRID, np.arange(22.0), noise=2.0),
        MomentsAnswer(Moments(((0.0, 1.0),)), np.array([50.0, 2.0, 3.0]), noise=1.0),
    )
    for ask in (lambda: counted.quantile(place, 0.5), lambda: summed.mean(place), lambda: summed.variance(place)):
        with pytest.raises(InvalidArgument, match="number of a column, from 0 to 0"):
            ask()
