"""Means of vectors. False-alarm probabilities: 2e-6 per test of moments."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import VectorMean
from dpfed.ldp.mean_vector import METHODS
from dpfed.randomness import SeededSource
from support.local_reports import repeat, require_moments

ROW = np.array([-1.0, 0.2, 0.0, 0.7, 1.0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("epsilon", "place"), [(1.0, 0), (6.0, 3)])
def test_estimates_are_unbiased_and_have_the_formulas_variance(method, epsilon, place):
    """400 estimates of 200 users each."""
    mechanism, rows = VectorMean(epsilon, 5, method), np.tile(ROW, (200, 1))
    errors = repeat(lambda source, _: mechanism.estimate(mechanism.randomize(rows, source)).means[place], ROW[place], 2)
    require_moments(errors, mechanism.variance(200, ROW[place]))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.7, 13.1, 40.0])
@pytest.mark.parametrize("method", METHODS)
def test_the_epsilon_of_all_coordinates_adds_up_to_no_more_than_asked_for(epsilon, method):
    mechanism = VectorMean(epsilon, 20, method)
    assert Fraction(mechanism._part.epsilon) * mechanism.coordinates <= Fraction(mechanism.epsilon)
    assert mechanism.epsilon <= epsilon
    assert mechanism.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert mechanism.event.epsilon == mechanism.epsilon


@pytest.mark.parametrize(("epsilon", "dimensions", "drawn"), [(1.0, 9, 1), (5.0, 9, 2), (7.4, 9, 2), (99.0, 9, 9)])
def test_as_many_coordinates_are_drawn_as_epsilon_is_worth(epsilon, dimensions, drawn):
    mechanism = VectorMean(epsilon, dimensions)
    assert mechanism.coordinates == drawn
    reports = mechanism.randomize(np.zeros((500, dimensions)), SeededSource(1))
    assert reports["coordinate"].shape == (500, drawn)
    assert set(reports["coordinate"].ravel()) == set(range(dimensions))


def test_which_coordinates_are_sent_does_not_depend_on_the_vector():
    mechanism = VectorMean(5.0, 5)
    ours, theirs = (mechanism.randomize(np.full((400, 5), value), SeededSource(1)) for value in (-1.0, 1.0))
    assert np.array_equal(ours["coordinate"], theirs["coordinate"])


@pytest.mark.parametrize("values", [np.zeros((3, 4)), np.zeros(5), np.full((2, 5), 1.5), np.zeros((0, 5))])
def test_vectors_of_another_shape_or_range_are_refused(values):
    with pytest.raises(InvalidArgument, match=r"^values must"):
        VectorMean(1.0, 5).randomize(values)


@pytest.mark.parametrize(
    "settings",
    [{"dimensions": 0}, {"dimensions": 1 << 21}, {"coordinates": 6}, {"coordinates": -1}, {"method": "laplace"}],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InvalidArgument):
        VectorMean(**{"epsilon": 1.0, "dimensions": 5, **settings})


@pytest.mark.parametrize("places", [[1, 1], [2, 1], [0, 5]])
def test_repeated_and_unknown_coordinates_are_refused(places):
    mechanism = VectorMean(5.0, 5)
    reports = mechanism.randomize(np.zeros((1, 5)))
    reports["coordinate"][0] = places
    with pytest.raises(InvalidArgument, match="coordinates that are repeated"):
        mechanism.estimate(reports)


def test_reports_may_come_in_batches():
    mechanism = VectorMean(5.0, 5)
    reports = mechanism.randomize(np.tile(ROW, (300, 1)), SeededSource(1))
    assert np.allclose(mechanism.estimate(reports).means, mechanism.estimate([reports[:9], reports[9:]]).means)
