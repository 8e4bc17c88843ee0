from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.rounding import decimal_down, decimal_up, round_up

numbers = st.floats(min_value=1e-300, max_value=1e300)


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**9))
def test_rounding_up_gives_the_next_float_and_never_a_smaller_number(value):
    rounded = round_up(value)
    assert Fraction(rounded) >= value
    assert Fraction(math.nextafter(rounded, 0)) < value


def test_beyond_the_largest_float_rounding_up_is_infinite():
    assert round_up(Fraction(10) ** 400) == math.inf


@given(numbers, st.integers(2, 12))
def test_decimals_go_to_the_safe_side_and_not_far(value, digits):
    up, down = float(decimal_up(value, digits)), float(decimal_down(value, digits))
    assert down <= value <= up
    assert up - down <= 10.0 ** (1 - digits) * value * 1.0001


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (6.1877124, "6.18772", "6.18771"),
        (0.5, "0.5", "0.5"),
        (0.0, "0", "0"),
        (1.00000001, "1.00001", "1"),
        (9.9999999, "10", "9.99999"),
        (1.23456789e-5, "1.23457e-05", "1.23456e-05"),
        (math.inf, "∞", "∞"),
    ],
)
def test_decimals_have_their_known_answers(value, up, down):
    assert (decimal_up(value), decimal_down(value)) == (up, down)
