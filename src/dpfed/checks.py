"""Argument checks that take the argument's name from the keyword and return the clean value.

>>> positive(noise_multiplier=2)
2.0
>>> probability(delta=1.5)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: delta must be at least 0 and below 1, got 1.5
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

from dpfed.errors import InvalidArgument

ADD_REMOVE = "add_remove"
REPLACE_ONE = "replace_one"


def _only(values: dict[str, Any]) -> tuple[str, Any]:
    ((name, value),) = values.items()
    return name, value


def _number(values: dict[str, Any], is_allowed: Callable[[float], bool], expected: str) -> float:
    name, value = _only(values)
    if isinstance(value, bool) or not isinstance(value, Real) or _is_wide(value):
        raise InvalidArgument(name, f"{name} must be {expected}, got {value!r} of type {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or not is_allowed(number):
        raise InvalidArgument(name, f"{name} must be {expected}, got {value!r}")
    return number + 0.0  # -0.0 becomes 0.0: equal values must have equal JSON


def _is_wide(value: Any) -> bool:
    # NumPy's longdouble is a Real, but a float is not wide enough for it.
    return bool(getattr(getattr(value, "dtype", None), "itemsize", 0) > 8)


def positive(**value: Any) -> float:
    """Return the value as a float, if it is positive and finite."""
    return _number(value, lambda x: 0 < x < math.inf, "a positive finite number")


def non_negative(**value: Any) -> float:
    """Return the value as a float, if it is finite and not negative."""
    return _number(value, lambda x: 0 <= x < math.inf, "a finite number of at least 0")


def finite(**value: Any) -> float:
    """Return the value as a float, if it is finite."""
    return _number(value, math.isfinite, "a finite number")


def probability(**value: Any) -> float:
    """Return the value as a float, if it lies in [0, 1)."""
    return _number(value, lambda x: 0 <= x < 1, "at least 0 and below 1")


def positive_probability(**value: Any) -> float:
    """Return the value as a float, if it lies in (0, 1)."""
    return _number(value, lambda x: 0 < x < 1, "above 0 and below 1")


def rate(**value: Any) -> float:
    """Return the value as a float, if it lies in (0, 1]."""
    return _number(value, lambda x: 0 < x <= 1, "above 0 and at most 1")


def count(**value: Any) -> int:
    """Return the value as an int, if it is a whole number of at least 1."""
    name, number = _only(value)
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
        raise InvalidArgument(name, f"{name} must be a whole number of at least 1, got {number!r}")
    return int(number)


def whole(**value: Any) -> int:
    """Return the value as an int, if it is a whole number of at least 0."""
    name, number = _only(value)
    if isinstance(number, bool) or not isinstance(number, Integral) or number < 0:
        raise InvalidArgument(name, f"{name} must be a whole number of at least 0, got {number!r}")
    return int(number)


def adjacency(value: str) -> str:
    """Return the value, if it is one of the two neighbouring relations."""
    if value not in (ADD_REMOVE, REPLACE_ONE):
        raise InvalidArgument("adjacency", f"adjacency must be {ADD_REMOVE!r} or {REPLACE_ONE!r}, got {value!r}")
    return value
