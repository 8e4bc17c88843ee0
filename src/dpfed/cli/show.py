"""How answers look: one line per fact, JSON that any reader can parse."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from dpfed.guarantee import Guarantee


def for_whom(guarantee: Guarantee) -> str:
    """The unit and adjacency of a promise, in brackets-free words."""
    return f"for one {guarantee.unit}, {guarantee.adjacency.replace('_', '-')}"


def print_json(facts: dict[str, Any]) -> None:
    """Print facts as one JSON object."""
    click.echo(as_json_text(facts))


def as_json_text(facts: dict[str, Any]) -> str:
    """The facts as one JSON object; an infinite number is the text "inf", as JSON has none."""
    return json.dumps(_plain(facts), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def console(width_in_a_pipe: int | None = None) -> Console:
    """A console on the present stdout: colours on a terminal, plain text in a pipe, where lines may be longer."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else width_in_a_pipe
    return Console(file=sys.stdout, highlight=False, width=width)


def say(text: str) -> None:
    """Print prose: wrapped between words on a terminal, one line in a pipe."""
    screen = console()
    screen.print(text, markup=False, soft_wrap=not screen.is_terminal)
