"""Cells of a column as numbers: what each is, without a guess about the file.

A cell is read by itself: neither another record nor the order of the file changes what it means. A decimal comma is
read where commas do not separate cells.

>>> column = read_cells(["61,5", "", "inf", "high", "47"], has_decimal_comma=True)
>>> [Kind(kind).name for kind in column.kinds]
['COMMA', 'MISSING', 'INFINITE', 'TEXT', 'NUMBER']
>>> column.values[[0, 4]].tolist(), column.count(Kind.MISSING)
([61.5, 47.0], 1)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?(?:[T ].*)?|\d\d?[./]\d\d?[./](?:\d{4}|\d\d)(?: .*)?|\d{4}/\d\d?/\d\d?(?: .*)?")


class Kind(IntEnum):
    """What a cell is."""

    NUMBER = 0
    COMMA = 1  # a number with a decimal comma
    MISSING = 2
    INFINITE = 3
    TEXT = 4


NUMBERS = (Kind.NUMBER, Kind.COMMA)


@dataclass(frozen=True, eq=False)
class Cells:
    """The number of each cell, NaN where it is none, and what each cell is."""

    values: NDArray[np.float64] = field(repr=False)
    kinds: NDArray[np.int8] = field(repr=False)

    def count(self, kind: Kind) -> int:
        """Return how many cells are of that kind."""
        return int(np.count_nonzero(self.kinds == kind))

    def first(self, *kinds: Kind) -> int | None:
        """Return the position of the first cell of these kinds; None if there is none."""
        found = np.flatnonzero(np.isin(self.kinds, kinds))
        return int(found[0]) if len(found) else None


def is_missing(cell: str) -> bool:
    """Return whether a cell says that there is no value."""
    return cell.lower() in MISSING


def is_date(cell: str) -> bool:
    """Return whether a cell is written as a day: 2024-05-31, 31.05.2024 or 5/31/2024, maybe with a time."""
    return _DATE.fullmatch(cell) is not None


def read_cells(cells: Sequence[str], *, has_decimal_comma: bool = False) -> Cells:
    """Return the numbers and kinds of cells."""
    try:
        values = np.fromiter(map(float, cells), float, len(cells))
    except ValueError:
        return _read_each(cells, has_decimal_comma)
    # Python reads 1_000; no spreadsheet means a number by it.
    if not np.isfinite(values).all() or "_" in "".join(cells):
        return _read_each(cells, has_decimal_comma)
    return Cells(values, np.zeros(len(cells), np.int8))


def mixes_decimals(cells: Sequence[str], read: Cells) -> bool:
    """Return whether one column has decimal commas and decimal points: one of them may be for thousands."""
    if not read.count(Kind.COMMA):
        return False
    return any(kind == Kind.NUMBER and "." in cell for cell, kind in zip(cells, read.kinds, strict=True))


def _read_each(cells: Sequence[str], has_decimal_comma: bool) -> Cells:
    parsed = {cell: _parse(cell, has_decimal_comma) for cell in set(cells)}
    numbers = {cell: value for cell, (value, _) in parsed.items()}
    kinds = {cell: int(kind) for cell, (_, kind) in parsed.items()}
    values = np.fromiter(map(numbers.__getitem__, cells), float, len(cells))
    return Cells(values, np.fromiter(map(kinds.__getitem__, cells), np.int8, len(cells)))


def _parse(cell: str, has_decimal_comma: bool) -> tuple[float, Kind]:
    if is_missing(cell):
        return math.nan, Kind.MISSING
    if has_decimal_comma and _COMMA.fullmatch(cell):
        return float(cell.replace(",", ".")), Kind.COMMA
    try:
        value = math.nan if "_" in cell else float(cell)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value, Kind.NUMBER
    return math.nan, Kind.INFINITE if math.isinf(value) else Kind.TEXT
