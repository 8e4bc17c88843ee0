"""Numbers and texts as a report shows them: rounded on the safe side, and nothing that could steer a terminal.

>>> figures(1.00001, 0.5, 6.49999, digits=4)
('1.0001', '0.5000', '6.4999')
>>> percent(0.12345)
'12.4 %'
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 4


def figures(spent: float, reserved: float, remaining: float, digits: int) -> tuple[str, str, str]:
    """The three parts of a cap as decimals that add up: spent rounded up, remaining rounded down."""
    if not math.isfinite(spent + reserved):
        return _fixed(spent, digits, ROUND_CEILING), _fixed(reserved, digits, ROUND_CEILING), _fixed(0.0, digits, "")
    used = Decimal(_fixed(spent, digits, ROUND_CEILING))
    total = Decimal(_fixed(spent + reserved, digits, ROUND_CEILING)) if reserved else used
    return f"{used:f}", f"{total - used:f}", _fixed(remaining, digits, ROUND_FLOOR)


def up(value: float, cap: float) -> str:
    """An ε rounded up, with the decimals that all figures beside one of the size of `cap` have."""
    return _fixed(value, digits_for(cap) if 0 < cap < math.inf else DIGITS, ROUND_CEILING)


def digits_for(cap: float) -> int:
    """How many decimals show an account's ε: four, and more for a small cap."""
    return max(DIGITS, 3 - math.floor(math.log10(cap)))


def percent(share: float) -> str:
    """The share in percent, rounded up."""
    return "∞ %" if share == math.inf else f"{math.ceil(1000 * share - 1e-9) / 10:.1f} %"


def moment(at: str) -> str:
    """A stored time to the minute, in UTC."""
    return f"{at[:10]} {at[11:16]} UTC"


def printable(text: str) -> str:
    """The text, with � for whatever could steer a terminal; no account is opened with such a text."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _fixed(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value):
        return "∞"
    # Through repr: a cap of 0.7 is shown as 0.7000, although its float is a little less.
    step = Decimal(1).scaleb(-digits)
    number = Decimal(repr(value)).quantize(step, direction or None, Context(prec=400))
    return f"{number:f}"
