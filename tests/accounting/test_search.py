"""Searches whose answer was evaluated and passed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.accounting.search import (
    COUNT_LIMIT,
    find_crossing,
    find_first_passing,
    largest_count,
    largest_value,
    log_excess,
)

powers = st.floats(0.3, 3.0)
budgets = st.floats(1e-3, 1e3)


@given(power=powers, scale=st.floats(1e-12, 1e2), budget=budgets, offset=st.floats(0.0, 1.5))
def test_the_count_found_fits_and_the_next_does_not(power, scale, budget, offset):
    def cost(count: int) -> float:
        return offset * budget + scale * count**power

    found = largest_count(cost, budget)
    assert found == 0 or cost(found) <= budget
    assert found == COUNT_LIMIT or cost(found + 1) > budget


@given(edge=st.integers(0, 10**12), start=st.integers(1, 10**6))
def test_a_count_is_found_even_where_the_cost_jumps_from_nothing_to_infinity(edge, start):
    found = largest_count(lambda count: 0.0 if count <= edge else math.inf, 1.0, start=start)
    assert found == edge


@given(power=powers, scale=st.floats(1e-3, 1e3), budget=budgets)
def test_the_value_found_fits_and_one_tolerance_further_does_not(power, scale, budget):
    def cost(value: float) -> float:
        return math.expm1(min(scale * value**power, 700.0))

    found = largest_value(cost, budget, low=1e-12, high=1e12, start=1.0, tolerance=1e-5)
    if found is None:
        assert cost(1e-12) > budget
        return
    assert cost(found) <= budget
    assert found == 1e12 or cost(found * (1 + 1.1e-5)) > budget


def test_a_cost_one_rounding_above_the_budget_does_not_fit():
    assert largest_count(lambda count: count * 0.125, math.nextafter(0.25, 0.0)) == 1


def test_the_ends_of_the_range_are_told_apart_from_a_boundary():
    assert largest_value(lambda value: value, 5.0, low=0.1, high=1.0, start=0.3, tolerance=1e-3) == 1.0
    assert largest_value(lambda value: value, 0.01, low=0.1, high=1.0, start=0.3, tolerance=1e-3) is None
    assert largest_count(lambda count: 2.0, 1.0) == 0
    assert largest_count(lambda count: 0.0, 1.0) == COUNT_LIMIT


def test_a_smooth_cost_needs_few_looks():
    looks = []

    def cost(value: float) -> float:
        looks.append(value)
        return value**1.7 + 0.3 * value

    largest_value(cost, 8.0, low=1e-6, high=1e2, start=2.5, tolerance=1e-5)
    assert len(looks) <= 7


FALLING = {
    "a line": (lambda x: 3.0 - x, 3.0),
    "a cube": (lambda x: 2.0 - x**3, 2 ** (1 / 3)),
    "a cliff": (lambda x: 1.0 if x < math.pi else -1.0, math.pi),
    "a cliff to nothing": (lambda x: 1.0 if x < math.pi else -math.inf, math.pi),
    "flat then steep": (lambda x: 1e-12 - max(0.0, x - 2.5) ** 9, 2.5 + 1e-12 ** (1 / 9)),
    "an exponential": (lambda x: math.exp(-x) - 1e-300, 300 * math.log(10)),
}


@pytest.mark.parametrize("name", FALLING)
def test_the_crossing_passes_and_is_the_smallest(name: str) -> None:
    excess, root = FALLING[name]
    found = find_crossing(excess, 0.0, 1000.0)
    assert excess(found) <= 0
    assert root * (1 - 1e-12) <= found <= root * (1 + 1e-9)


def test_a_rough_function_still_ends_at_a_point_that_passes() -> None:
    def excess(x: float) -> float:
        return 1.0 - x + 1e-7 * math.sin(1e9 * x)

    found = find_crossing(excess, 0.0, 4.0)
    assert excess(found) <= 0
    assert found == pytest.approx(1.0, abs=1e-6)


def test_a_low_end_that_passes_already_is_the_answer() -> None:
    assert find_crossing(lambda x: -1.0 - x, 0.5, 2.0) == 0.5


def test_a_bracket_without_a_crossing_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="no crossing"):
        find_crossing(lambda x: 1.0, 0.0, 4.0)


@pytest.mark.parametrize(("root", "expected"), [(-1.0, 0.0), (0.3, 1.0), (3.0, 4.0), (1e12, math.inf)])
def test_doubling_finds_the_first_point_that_passes(root: float, expected: float) -> None:
    assert find_first_passing(lambda x: root - x) == expected


@pytest.mark.parametrize("bound", [math.nan, -1e-20, math.inf])
def test_a_bound_that_is_no_number_or_below_zero_never_passes(bound: float) -> None:
    assert log_excess(bound, 1e-5) == math.inf


def test_a_bound_of_zero_passes_every_target() -> None:
    assert log_excess(0.0, 1e-5) == -math.inf
