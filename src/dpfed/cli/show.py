"""How answers look: numbers rounded on the safe side, one line per fact, JSON that any reader can parse."""

from __future__ import annotations

import json
import math
import sys
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from dpfed.guarantee import Guarantee

DIGITS = 6


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """The shortest decimal of so many digits that is not below the value."""
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = DIGITS) -> str:
    """The shortest decimal of so many digits that is not above the value."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞"
    # A Decimal of the float is exact, so the direction is kept; :g shows it as a person writes it.
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(Decimal(value))):.{digits}g}"


def for_whom(guarantee: Guarantee) -> str:
    """The unit and adjacency of a promise, in brackets-free words."""
    return f"for one {guarantee.unit}, {guarantee.adjacency.replace('_', '-')}"


def print_json(facts: dict[str, Any]) -> None:
    """Print facts as one JSON object; an infinite number is the text "inf", as JSON has none."""
    click.echo(json.dumps(_plain(facts), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def console() -> Console:
    """A console on the present stdout: colours on a terminal, plain text in a pipe."""
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False)


def say(text: str) -> None:
    """Print prose: wrapped between words on a terminal, one line in a pipe."""
    screen = console()
    screen.print(text, markup=False, soft_wrap=not screen.is_terminal)
