"""Rounding on the safe side: what is rounded here never promises more than the exact number does.

>>> from fractions import Fraction
>>> round_up(Fraction(1, 3)) > Fraction(1, 3)
True
>>> decimal_up(6.1877124), decimal_down(6.1877124)
('6.18772', '6.18771')
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

DIGITS = 6


def round_up(value: Fraction) -> float:
    """Return the smallest float that is not below the value; ∞ beyond the largest one."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf
    return nearest if nearest >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """Return the largest float that is not above the value."""
    return -round_up(-value)


def decimal_up(value: float, digits: int = DIGITS) -> str:
    """Return the shortest decimal of so many digits that is not below the value."""
    return _decimal(value, digits, ROUND_CEILING)


def decimal_down(value: float, digits: int = DIGITS) -> str:
    """Return the shortest decimal of so many digits that is not above the value."""
    return _decimal(value, digits, ROUND_FLOOR)


def _decimal(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    # A Decimal of the float is exact, so the direction is kept; :g shows it as a person writes it.
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(Decimal(value))):.{digits}g}"
