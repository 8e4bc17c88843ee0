"""Searches whose answer was evaluated and passed."""

from __future__ import annotations

import math

import pytest

from dpfed.accounting.roots import crossing, first_passing, log_excess

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
    found = crossing(excess, 0.0, 1000.0)
    assert excess(found) <= 0
    assert root * (1 - 1e-12) <= found <= root * (1 + 1e-9)


def test_a_rough_function_still_ends_at_a_point_that_passes() -> None:
    def excess(x: float) -> float:
        return 1.0 - x + 1e-7 * math.sin(1e9 * x)

    found = crossing(excess, 0.0, 4.0)
    assert excess(found) <= 0
    assert found == pytest.approx(1.0, abs=1e-6)


def test_a_low_end_that_passes_already_is_the_answer() -> None:
    assert crossing(lambda x: -1.0 - x, 0.5, 2.0) == 0.5


def test_a_bracket_without_a_crossing_is_refused() -> None:
    with pytest.raises(ArithmeticError, match="no crossing"):
        crossing(lambda x: 1.0, 0.0, 4.0)


@pytest.mark.parametrize(("root", "expected"), [(-1.0, 0.0), (0.3, 1.0), (3.0, 4.0), (1e12, math.inf)])
def test_doubling_finds_the_first_point_that_passes(root: float, expected: float) -> None:
    assert first_passing(lambda x: root - x) == expected


@pytest.mark.parametrize("bound", [math.nan, -1e-20, math.inf])
def test_a_bound_that_is_no_number_or_below_zero_never_passes(bound: float) -> None:
    assert log_excess(bound, 1e-5) == math.inf


def test_a_bound_of_zero_passes_every_target() -> None:
    assert log_excess(0.0, 1e-5) == -math.inf
