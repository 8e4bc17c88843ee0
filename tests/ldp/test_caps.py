"""Caps: the published figures, exact masses, and an ε that bounds every likelihood ratio."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import InvalidArgument
from dpfed.ldp.caps import SLACK, Cap, Normal, Sphere, choose_cap
from dpfed.ldp.coins import ONE
from dpfed.randomness import SeededSource

CASES = json.loads((Path(__file__).parents[1] / "reference" / "privunit.json").read_text())


def cases(group):
    return [pytest.param(case, id=case["id"]) for case in CASES if case["group"] == group]


@pytest.mark.parametrize("case", cases("privunit2"))
def test_the_error_on_the_sphere_is_the_published_one(case):
    cap = choose_cap(Sphere(case["inputs"]["d"]), case["inputs"]["eps"])
    assert cap.mean_squared_error == pytest.approx(case["expected"]["mse"], rel=case["tol"])
    assert cap.scale == pytest.approx(case["expected"]["scale"], rel=case["tol"])


@pytest.mark.parametrize("case", cases("privunitG"))
def test_the_error_of_normal_vectors_is_at_most_the_published_one_and_the_same_at_its_cap(case):
    """Theirs has the least scale, ours the least error."""
    shape = Normal(case["inputs"]["d"])
    cap = choose_cap(shape, case["inputs"]["eps"])
    theirs = Cap(shape, int(case["p"] * ONE), case["gamma"])
    assert cap.mean_squared_error <= case["expected"]["mse"] * (1 + case["tol"])
    assert theirs.mean_squared_error == pytest.approx(case["expected"]["mse"], rel=case["tol"])
    assert theirs.scale == pytest.approx(case["expected"]["sigma"], rel=case["tol"])


@pytest.mark.parametrize("case", cases("privunit2_fixed"))
def test_mass_scale_and_epsilon_of_a_given_cap_are_the_published_ones(case):
    cap = Cap(Sphere(case["inputs"]["d"]), int(case["inputs"]["p"] * ONE), case["inputs"]["gamma"])
    assert cap.shape.tail(cap.edge) == pytest.approx(case["expected"]["q"], rel=case["tol"])
    assert cap.scale == pytest.approx(case["expected"]["scale"], rel=case["tol"])
    assert case["expected"]["eps"] < cap.epsilon < case["expected"]["eps"] + 5e-6  # rounding is paid for


@pytest.mark.parametrize("shape", [Sphere, Normal])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("dimensions", [2, 10, 1000])
def test_epsilon_is_never_above_the_one_asked_for_and_hardly_below(shape, epsilon, dimensions):
    cap = choose_cap(shape(dimensions), epsilon)
    assert 0.999 * epsilon < cap.epsilon <= epsilon
    chance, mass = cap.keep / ONE, cap.least_mass
    assert math.log(chance / mass / ((1 - chance) / (1 - mass))) == pytest.approx(cap.epsilon, rel=1e-12)
    assert mass < cap.shape.tail(cap.edge) * (1 - SLACK)


@pytest.mark.parametrize("shape", [Sphere(3), Sphere(40), Normal(3)])
def test_tails_and_leans_are_those_of_vectors_that_are_drawn(shape):
    """A binomial test and a t test over 40,000 vectors, false alarm 1e-6 each."""
    along = shape.draw(SeededSource(3), 40_000)[:, 0].astype(float)
    edge = shape.edge(0.2)
    assert shape.tail(edge) == pytest.approx(0.2, rel=1e-9)
    assert stats.binomtest(int((along >= edge).sum()), along.size, 0.2).pvalue > 1e-6
    assert stats.ttest_1samp(np.where(along >= edge, along, 0.0), shape.lean(edge)).pvalue > 1e-6


def test_an_epsilon_too_small_for_floating_point_is_refused():
    with pytest.raises(InvalidArgument, match="floating point"):
        choose_cap(Sphere(1000), 1e-7)
