from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.cli.show import print_json, rounded_down, rounded_up

numbers = st.floats(min_value=1e-300, max_value=1e300)


@given(numbers, st.integers(2, 12))
def test_rounding_goes_to_the_safe_side_and_not_far(value, digits):
    up, down = float(rounded_up(value, digits)), float(rounded_down(value, digits))
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
def test_rounding_has_its_known_answers(value, up, down):
    assert (rounded_up(value), rounded_down(value)) == (up, down)


def test_json_has_no_numbers_that_json_does_not_know(capsys):
    print_json({"a": math.inf, "b": [1.5, -math.inf], "c": {"d": None}})
    assert json.loads(capsys.readouterr().out) == {"a": "inf", "b": [1.5, "-inf"], "c": {"d": None}}
