"""What `dpfed init` is told on its command line about the columns of a table, as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

T = TypeVar("T")


def parse_pairs(option: str, given: Iterable[str], form: str, read: Callable[[str], T]) -> dict[str, T]:
    """Return COLUMN=VALUE options as a mapping; the form is shown if one cannot be read."""
    found: dict[str, T] = {}
    for text in given:
        column, equals, value = text.partition("=")
        try:
            if not (column and equals):
                raise ValueError(text)
            found[column] = read(value)
        except ValueError:
            raise click.UsageError(f"{option} must be {form}, got {text!r}") from None
    return found


def parse_range(text: str) -> tuple[float, float]:
    """Return LOW:HIGH as two numbers."""
    low, high = (float(end) for end in text.replace(" ", ":").split(":"))
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(text)
    return low, high


def parse_list(text: str) -> tuple[str, ...]:
    """Return a list with commas as texts that are all different."""
    values = tuple(value.strip() for value in text.split(","))
    if not all(values) or len(set(values)) < len(values):
        raise ValueError(text)
    return values


def parse_constant(text: str) -> float | str:
    """Return a number, or the text of a category."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_sizes(sizes: tuple[str, ...]) -> dict[str, int] | int | None:
    """Return N for all sites or SITE=N for each."""
    if not sizes:
        return None
    pairs = [size.rpartition("=") for size in sizes]
    if not all(number.isdecimal() and int(number) for _, _, number in pairs) or (
        len(pairs) > 1 and not all(site for site, _, _ in pairs)
    ):
        raise click.UsageError(
            "--size must be a whole number for all sites (--size 100) or for each (--size north=100 --size south=80)"
        )
    return {site: int(number) for site, _, number in pairs} if pairs[0][0] else int(pairs[0][2])


def parse_public(text: str | None) -> tuple[str, ...]:
    """Return the words of --public; refuse an unknown one."""
    from dpfed.config.publishing import WORDS

    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    for word in words:
        if word not in WORDS:
            raise click.UsageError(f"--public takes {', '.join(WORDS)}, separated by commas; got {word!r}")
    return words
