"""One client replaced or removed moves the sum by no more than what is charged for, to the last bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.aggregation import mean as module
from dpfed.aggregation.mean import ClippedMean
from dpfed.errors import InvalidArgument

SIZE = 3
numbers = st.floats(allow_nan=False, allow_infinity=False)
vectors = st.lists(numbers, min_size=SIZE, max_size=SIZE).map(np.array)
norms = st.floats(1e-6, 1e6)
weights = st.floats(0.0, 1e3)


def square(vector) -> Fraction:
    return sum((Fraction(float(value)) ** 2 for value in vector), Fraction(0))


def between(first, second) -> Fraction:
    """The square of the exact distance."""
    return sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(first, second, strict=True))


@given(st.lists(st.tuples(vectors, weights), min_size=1, max_size=6), vectors, norms, st.data())
def test_the_total_moves_by_at_most_the_clip_norm_without_any_margin(parts, other, clip_norm, data):
    shares = {str(number): weight for number, (_, weight) in enumerate(parts)} | {"largest": 1e3}
    rule = ClippedMean(clip_norm=clip_norm, denominator=7.0, weights=shares)
    updates = {str(number): update for number, (update, _) in enumerate(parts)}
    gone = data.draw(st.sampled_from(sorted(updates)))
    whole = rule.total(updates, SIZE)
    less = rule.total({name: value for name, value in updates.items() if name != gone}, SIZE)
    replaced = rule.total({**updates, gone: other}, SIZE)
    assert between(whole, less) <= Fraction(clip_norm) ** 2
    assert between(whole, replaced) <= 4 * Fraction(clip_norm) ** 2


@given(st.lists(vectors, min_size=1, max_size=6), vectors, norms, st.floats(1.0, 100.0))
def test_the_mean_moves_by_at_most_its_sensitivity_and_its_own_rounding(parts, other, clip_norm, denominator):
    """The margin: 2⁻⁵² of the two means' lengths, from scaling the exact total."""
    rule = ClippedMean(clip_norm=clip_norm, denominator=denominator)
    updates = {str(number): update for number, update in enumerate(parts)}
    whole = rule.of(updates, SIZE)
    for adjacency, neighbour in (
        ("add_remove", rule.of(dict(list(updates.items())[1:]), SIZE)),
        ("replace_one", rule.of({**updates, "0": other}, SIZE)),
    ):
        margin = 2.0**-52 * (np.linalg.norm(whole) + np.linalg.norm(neighbour)) * (1 + 1e-9)
        allowed = Fraction(float(rule.sensitivity(adjacency))) + Fraction(float(margin))
        assert between(whole, neighbour) <= allowed**2


def test_a_long_update_of_the_heaviest_client_moves_the_mean_by_almost_all_of_it():
    rule = ClippedMean(clip_norm=2.0, denominator=5.0, weights={"small": 1.0, "large": 3.0})
    moved = rule.of({"small": np.ones(2), "large": np.array([1e9, 0.0])}, 2) - rule.of({"small": np.ones(2)}, 2)
    assert 0.999999 * 6 / 5 < np.linalg.norm(moved) <= rule.sensitivity("add_remove") * (1 + 2**-50)
    light = rule.of({"small": np.array([1e9, 0.0])}, 2)
    assert np.linalg.norm(light) == pytest.approx(2 / 5)


def test_the_largest_weight_decides_even_if_its_client_is_absent():
    rule = ClippedMean(clip_norm=1.0, denominator=2.0, weights={"a": 1.0, "b": 4.0})
    assert rule.sensitivity("add_remove") == 2.0
    assert rule.sensitivity("replace_one") == 4.0
    assert rule.of({"a": np.array([0.5])}, 1).tolist() == [0.25]


def test_the_denominator_stays_when_clients_are_missing():
    rule = ClippedMean(clip_norm=1.0, denominator=4.0)
    full = rule.of({str(number): np.array([0.5]) for number in range(4)}, 1)
    half = rule.of({str(number): np.array([0.5]) for number in range(2)}, 1)
    assert (full.tolist(), half.tolist(), rule.of({}, 1).tolist()) == ([0.5], [0.25], [0.0])


def test_sensitivity_is_rounded_up():
    bound = Fraction(float(ClippedMean(clip_norm=1.0, denominator=3.0).sensitivity("add_remove")))
    assert Fraction(1, 3) < bound < Fraction(1, 3) * (1 + Fraction(2) ** -50)


def test_short_updates_are_averaged_as_they_are_but_for_the_grid():
    draws = np.random.default_rng(3).normal(size=(50, 20)) * 0.1
    found = ClippedMean(clip_norm=1.0, denominator=50.0).of({str(i): row for i, row in enumerate(draws)}, 20)
    np.testing.assert_allclose(found, draws.mean(axis=0), atol=2.0**-31)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_counts_as_zero(bad):
    rule = ClippedMean(clip_norm=1.0, denominator=2.0)
    assert rule.of({"a": np.array([bad, 0.0]), "b": np.array([0.5, 0.5])}, 2).tolist() == [0.25, 0.25]


def test_order_and_memory_change_no_bit(monkeypatch):
    draws = np.random.default_rng(4).normal(size=(40, 5))
    updates = {str(i): row for i, row in enumerate(draws)}
    rule = ClippedMean(clip_norm=1.0, denominator=40.0)
    whole = rule.total(updates, 5)
    monkeypatch.setattr(module, "_AT_ONCE", 15)
    assert rule.total(dict(reversed(updates.items())), 5).tobytes() == whole.tobytes()


def test_without_a_clip_there_is_a_mean_but_no_sensitivity():
    rule = ClippedMean(clip_norm=math.inf, denominator=4.0, weights={"a": 1.0, "b": 3.0})
    assert rule.of({"a": np.array([8.0]), "b": np.array([100.0])}, 1).tolist() == [77.0]
    with pytest.raises(InvalidArgument, match="no sensitivity"):
        rule.sensitivity("add_remove")


def test_a_client_without_a_weight_is_refused():
    rule = ClippedMean(clip_norm=1.0, denominator=1.0, weights={"a": 1.0})
    with pytest.raises(InvalidArgument, match="'b' has no weight"):
        rule.of({"b": np.zeros(1)}, 1)


def test_updates_of_another_shape_are_refused():
    with pytest.raises(InvalidArgument, match="shape"):
        ClippedMean(clip_norm=1.0, denominator=1.0).of({"a": np.zeros(2), "b": np.zeros(3)}, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"clip_norm": 0.0},
        {"clip_norm": math.nan},
        {"denominator": 0.0},
        {"denominator": math.inf},
        {"weights": {"a": -1.0}},
        {"weights": {"a": 0.0}},
        {"weights": {}},
    ],
)
def test_constants_that_bound_nothing_are_refused(change):
    with pytest.raises(InvalidArgument):
        ClippedMean(**{"clip_norm": 1.0, "denominator": 1.0, **change})
