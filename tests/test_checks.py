from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpfed import checks
from dpfed.errors import InvalidArgument, PrivacyError

NOT_NUMBERS = [None, "1", True, 1j, [1.0], np.array([1.0, 2.0]), np.True_, math.nan]

REFUSED = {
    checks.positive: [0, -1, math.inf, 10**400],
    checks.non_negative: [-1e-300, -1, math.inf, -math.inf],
    checks.finite: [math.inf, -math.inf, 10**400, -(10**400)],
    checks.probability: [-0.1, 1, 1.5, math.inf],
    checks.positive_probability: [0, 1, -0.1, math.inf],
    checks.rate: [0, 1.0000001, -0.1, math.inf],
}
ALLOWED = {
    checks.positive: [5e-324, 1, 1.7e308],
    checks.non_negative: [0, 1.5],
    checks.finite: [-1.5, 0, 1.5],
    checks.probability: [0, 0.5, math.nextafter(1, 0)],
    checks.positive_probability: [5e-324, math.nextafter(1, 0)],
    checks.rate: [5e-324, 1],
}


@pytest.mark.parametrize(
    ("check", "value"), [(check, value) for check in REFUSED for value in REFUSED[check] + NOT_NUMBERS]
)
def test_a_bad_number_is_refused_by_the_name_of_its_argument(check, value):
    with pytest.raises(InvalidArgument, match=r"^clip_norm must be") as caught:
        check(clip_norm=value)
    assert caught.value.argument == "clip_norm"
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, PrivacyError)


@pytest.mark.parametrize(("check", "value"), [(check, value) for check in ALLOWED for value in ALLOWED[check]])
def test_a_good_number_comes_back_as_the_same_float(check, value):
    clean = check(clip_norm=value)
    assert clean == value
    assert type(clean) is float


@pytest.mark.parametrize("value", [1, Fraction(1), np.float32(1), np.float64(1), np.int64(1)])
def test_a_number_of_any_real_type_is_taken(value):
    clean = checks.positive(clip_norm=value)
    assert clean == 1
    assert type(clean) is float


@pytest.mark.parametrize("value", [np.longdouble(1), np.longdouble(1) / 3])
def test_a_float_wider_than_64_bits_is_refused(value):
    with pytest.raises(InvalidArgument, match="clip_norm must be"):
        checks.positive(clip_norm=value)


def test_negative_zero_becomes_zero():
    assert math.copysign(1, checks.non_negative(epsilon=-0.0)) == 1


@pytest.mark.parametrize("value", [0, -1, 2.5, 2.0, True, math.nan, "3", None, np.float64(3)])
def test_a_bad_count_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"^steps must be a whole number of at least 1, got") as caught:
        checks.count(steps=value)
    assert caught.value.argument == "steps"


@pytest.mark.parametrize("value", [1, 10**9, np.int32(7)])
def test_a_count_comes_back_as_an_int(value):
    assert checks.count(steps=value) == value
    assert type(checks.count(steps=value)) is int


@pytest.mark.parametrize("value", [-1, 2.5, 0.0, True, math.nan, "3", None])
def test_a_bad_whole_number_is_refused(value):
    with pytest.raises(InvalidArgument, match=r"^restarts must be a whole number of at least 0, got") as caught:
        checks.whole(restarts=value)
    assert caught.value.argument == "restarts"


@pytest.mark.parametrize("value", [0, 10**9, np.int32(7)])
def test_a_whole_number_comes_back_as_an_int(value):
    assert checks.whole(restarts=value) == value
    assert type(checks.whole(restarts=value)) is int


@pytest.mark.parametrize("value", ["add_remove", "replace_one"])
def test_both_adjacencies_are_taken(value):
    assert checks.adjacency(value) == value


@pytest.mark.parametrize("value", ["ADD_REMOVE", "replace", "", None, 1, ("add_remove",)])
def test_another_adjacency_is_refused_with_the_two_that_exist(value):
    with pytest.raises(InvalidArgument, match="'add_remove' or 'replace_one'") as caught:
        checks.adjacency(value)
    assert caught.value.argument == "adjacency"
