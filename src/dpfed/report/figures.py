"""Numbers and texts formatted for a report: rounded on the safe side, and without control characters.

>>> format_balance(1.00001, 0.5, 6.49999, digits=4)
('1.0001', '0.5000', '6.4999')
>>> format_percent(0.12345)
'12.4 %'
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 4


def format_balance(spent: float, reserved: float, remaining: float, digits: int) -> tuple[str, str, str]:
    """Return the three parts of a cap as decimals that add up: spent rounded up, remaining rounded down."""
    if not math.isfinite(spent + reserved):
        return (
            _format_fixed(spent, digits, ROUND_CEILING),
            _format_fixed(reserved, digits, ROUND_CEILING),
            _format_fixed(0.0, digits, ""),
        )
    used = Decimal(_format_fixed(spent, digits, ROUND_CEILING))
    total = Decimal(_format_fixed(spent + reserved, digits, ROUND_CEILING)) if reserved else used
    return f"{used:f}", f"{total - used:f}", _format_fixed(remaining, digits, ROUND_FLOOR)


def format_epsilon(value: float, cap: float) -> str:
    """Return an ε, rounded up, with as many decimals as a figure of the size of `cap` has."""
    return _format_fixed(value, digits_for(cap) if 0 < cap < math.inf else DIGITS, ROUND_CEILING)


def digits_for(cap: float) -> int:
    """Return how many decimals show an account's ε: four, and more for a small cap."""
    return max(DIGITS, 3 - math.floor(math.log10(cap)))


def format_percent(share: float) -> str:
    """Return the share in percent, rounded up."""
    return "∞ %" if share == math.inf else f"{math.ceil(1000 * share - 1e-9) / 10:.1f} %"


def format_time(at: str) -> str:
    """Return a stored time to the minute, in UTC."""
    return f"{at[:10]} {at[11:16]} UTC"


def replace_controls(text: str) -> str:
    """Return the text with � for each control character, which could steer a terminal; no account may have one."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _format_fixed(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value):
        return "∞"
    # Through repr: a cap of 0.7 is shown as 0.7000, although its float is a little less.
    step = Decimal(1).scaleb(-digits)
    number = Decimal(repr(value)).quantize(step, direction or None, Context(prec=400))
    return f"{number:f}"
