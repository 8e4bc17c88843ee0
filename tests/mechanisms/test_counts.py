"""One unit adds at most 1 to counts, on the grid; the noise is as charged, and no way to move them is easier to see."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.accounting.queries import epsilon
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.counts import NoisyCounts, add_persons, add_records, scale_to_one
from dpfed.randomness import SeededSource

CELLS = st.integers(-1, 5)
PERSONS = st.lists(st.lists(CELLS, min_size=1, max_size=7), max_size=6)


def add(persons, grid):
    rows = np.array([len(each) for each in persons], dtype=int)
    return add_persons(np.array([cell for each in persons for cell in each], dtype=int), rows, 5, grid)


@given(PERSONS, st.lists(CELLS, min_size=1, max_size=7), st.integers(0, 6), st.sampled_from([1, 7, 240]))
def test_a_person_more_or_less_moves_the_sum_by_the_grid_at_most_and_upwards_only(persons, one, place, grid):
    moved = add([*persons[:place], one, *persons[place:]], grid) - add(persons, grid)
    assert moved.min() >= 0
    assert moved.sum() <= grid


def test_shares_that_the_grid_has_are_not_rounded():
    for rows in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        assert add([[0] * (rows - 1) + [1]], 240).sum() == 240


@given(st.lists(CELLS, max_size=30), CELLS)
def test_a_record_more_moves_one_count_by_one(cells, one):
    moved = add_records(np.array([*cells, one]), 5) - add_records(np.array(cells, dtype=int), 5)
    assert (moved.sum(), moved.min()) == (1 if 0 <= one < 5 else 0, 0)


@given(
    st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=8), st.sampled_from([1, 3, 240]), st.integers(1, 9)
)
def test_whatever_a_client_counts_has_a_norm_of_one_at_most_and_is_rounded_towards_zero(values, grid, unit):
    scaled = scale_to_one(np.array(values), unit, grid)
    assert np.abs(scaled).sum() <= grid
    whole = max(sum(map(abs, values)), unit)
    for value, found in zip(values, scaled.tolist(), strict=True):
        assert abs(found) <= Fraction(grid * abs(value), whole) < abs(found) + 1
        assert found * value >= 0


def test_counts_that_noise_made_negative_count_in_the_norm():
    assert scale_to_one(np.array([300, -300]), unit=1, grid=100).tolist() == [50, -50]


def test_small_counts_are_not_made_larger():
    assert scale_to_one(np.array([1, 0]), unit=4, grid=100).tolist() == [25, 0]


@pytest.mark.parametrize("adjacency", [ADD_REMOVE, REPLACE_ONE])
@pytest.mark.parametrize(("grid", "releases"), [(1, 1), (1, 3), (240, 1), (60, 4)])
def test_all_releases_cost_what_was_asked_for_and_hardly_less(adjacency, grid, releases):
    noise = NoisyCounts.from_epsilon(0.3, grid, adjacency=adjacency, releases=releases)
    found = epsilon(ev.Repeated(noise.event, releases), 0.0, adjacency=adjacency)
    assert 0.2999 < found <= 0.3 * (1 + 1e-12)


def hockey_stick(losses: dict[int, float], scale: float, at: float) -> float:
    return sum(p * max(0.0, 1 - math.exp(at - loss / scale)) for loss, p in losses.items())


def losses_of(shift: int, scale: float, reach: int = 400) -> dict[int, float]:
    """The privacy loss of one number that moves by `shift`, in units of 1/scale, by adding up the law itself."""
    ratio = math.exp(-1 / scale)
    found: dict[int, float] = {}
    for k in range(-reach, reach + 1):
        loss = abs(k - shift) - abs(k)
        found[loss] = found.get(loss, 0.0) + (1 - ratio) / (1 + ratio) * ratio ** abs(k)
    return found


def together(parts: list[dict[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {0: 1.0}
    for part in parts:
        total: dict[int, float] = {}
        for (a, p), (b, q) in itertools.product(found.items(), part.items()):
            total[a + b] = total.get(a + b, 0.0) + p * q
        found = total
    return found


@pytest.mark.parametrize("ways", [(1, 1), (2, 1), (1, 1, 1), (3, 2), (1, 1, 1, 1, 1), (4, 1), (2, -3), (-1, 1)])
@pytest.mark.parametrize("scale", [0.7, 3.0, 11.0])
def test_no_way_to_move_several_numbers_is_easier_to_see_than_one_number_that_moves_by_all_of_it(ways, scale):
    """Dong, Roth and Su 2022, Theorem 2.14: what the event is charged for, against the laws added up by hand."""
    whole = sum(map(abs, ways))
    one, several = losses_of(whole, scale), together([losses_of(way, scale) for way in ways])
    for at in np.linspace(0, whole / scale * 1.05, 60):
        assert hockey_stick(several, scale, at) <= hockey_stick(one, scale, at) + 1e-12


def test_the_pair_of_the_accountant_is_that_law():
    for grid, scale, delta in ((1, 2.0, 0.01), (3, 3.0, 0.05), (12, 12.0, 0.02)):
        found = epsilon(ev.DiscreteLaplace(scale, grid), delta)
        assert hockey_stick(losses_of(grid, scale), scale, found) == pytest.approx(delta, rel=1e-6)


def test_the_noise_has_the_stated_variance_on_the_grid():
    # 20,000 draws of kurtosis 6: the mean of squares is within 5 standard deviations (8 %) but for 1 in 10⁶ seeds.
    noise = NoisyCounts.from_epsilon(0.5, 12)
    drawn = noise.release(np.zeros(20_000, dtype=int), SeededSource(3)) / 12
    assert np.mean(drawn**2) == pytest.approx(noise.variance, rel=0.08)
    assert noise.variance == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"scale": 1.0, "grid": 0}, {"scale": math.nan}])
def test_noise_that_is_none_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        NoisyCounts(**wrong)
