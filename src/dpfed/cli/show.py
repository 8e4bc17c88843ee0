"""How answers are printed: prose, tables, and JSON that any reader can parse."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dpfed.guarantee import Guarantee


def describe_unit(guarantee: Guarantee) -> str:
    """Describe whom a promise protects: its unit and adjacency."""
    return f"for one {guarantee.unit}, {guarantee.adjacency.replace('_', '-')}"


def print_json(facts: dict[str, Any]) -> None:
    """Print facts as one JSON object."""
    click.echo(format_json(facts))


def format_json(facts: dict[str, Any]) -> str:
    """Return facts as one JSON object; an infinite number becomes the text "inf", as JSON has none."""
    return json.dumps(_plain(facts), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def make_console(width_in_a_pipe: int | None = None) -> Console:
    """Return a console on stdout: colours on a terminal, plain text in a pipe, where lines may be longer."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else width_in_a_pipe
    return Console(file=sys.stdout, highlight=False, width=width)


def say(text: str) -> None:
    """Print prose: wrapped between words on a terminal, one line in a pipe."""
    screen = make_console()
    screen.print(text, markup=False, soft_wrap=not screen.is_terminal)


def new_table(*, show_footer: bool = False) -> Table:
    """Return an empty table with a line under its headings."""
    from rich import box
    from rich.table import Table

    return Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
        footer_style="bold",
        show_footer=show_footer,
    )


def format_count(count: int, one: str, more: str = "") -> str:
    """Return a count with its noun, as "1 entry" or "2 entries"; the plural is made with an s unless it is given."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"
