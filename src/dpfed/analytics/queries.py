"""What is asked of columns: vectors to which one unit adds at most a public norm, over all columns together.

A record has a value in every column, so d columns are d releases of it, or one vector of norm √d: the same noise for
all, and one event. Whatever a value is, also none that is finite, it adds no more than that. The rows of a person share
the weight 1. All sums are of whole numbers, rounded towards zero before: they do not depend on the order of the rows.

>>> ages = np.array([[23.0], [41.0], [58.0], [np.nan]])
>>> Histogram(((30.0, 50.0),)).add_up(ages)
array([1., 1., 1.])
>>> Moments(((0.0, 100.0),)).add_up(ages).round(3)  # how many, sum of (x − 50)/50, and of its square
array([ 4.  , -0.56,  0.35])
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument

FINE = 2**20  # steps of a value in [−1, 1]
SHARES = 2**8  # steps of a person's weight of 1; powers of two, so that dividing by them is exact
_POWERS = tuple(2.0**power for power in range(-10, 21))
FIXED = (*(-edge for edge in reversed(_POWERS)), 0.0, *_POWERS)  # a public grid for columns of which nothing is known


@dataclass(frozen=True)
class Histogram:
    """Counts of each column's values between its public `edges`, with one cell below all and one above.

    Privacy: a record is in one cell of each column, so the sum moves by at most √d in L2 under add/remove; a person by
    no more, as its rows share the weight 1. A value that is missing is in no cell.
    """

    edges: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _require_by_column("edges", self.edges, "((0, 50, 100),) for one column")
        edges = tuple(tuple(checks.finite(edges=edge) for edge in column) for column in self.edges)
        if not edges or any(not column or any(b <= a for a, b in pairwise(column)) for column in edges):
            message = "edges must be one or more rising numbers for each column"
            raise InvalidArgument("edges", f"{message}: declare them in public, never from the data")
        object.__setattr__(self, "edges", edges)

    @classmethod
    def fixed(cls, columns: int) -> Histogram:
        """Return the histogram of so many columns over powers of two, for values of which nothing is known."""
        return cls((FIXED,) * checks.count(columns=columns))

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self.edges)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cells of each column."""
        return tuple(len(column) + 1 for column in self.edges)

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return sum(self.sizes)

    @property
    def norm(self) -> float:
        """The most that one unit adds, in L2, rounded up."""
        return math.nextafter(math.sqrt(self.columns), math.inf)

    def add_up(self, values: NDArray[Any], rows: NDArray[Any] | None = None) -> Floats:
        """Return the sum over records, or over persons of so many `rows` each."""
        table, weights = read_table(values, self.columns), find_weights(values, rows)
        parts = [_count(table[:, place], np.array(column), weights) for place, column in enumerate(self.edges)]
        return np.concatenate(parts) / (1 if rows is None else SHARES)


@dataclass(frozen=True)
class Moments:
    """How many there are, and of each column the sum of values and of squares, within public `bounds`.

    A value beyond its bounds counts as the bound, and a missing one as their middle.

    Privacy: a value is mapped to [−1, 1], so a record adds 1 to the count, and at most 1 to each sum and each sum of
    squares: √(2d + 1) in L2 under add/remove; a person no more, as its rows share the weight 1.
    """

    bounds: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        _require_by_column("bounds", self.bounds, "((0, 100),) for one column", length=2)
        bounds = tuple((checks.finite(bounds=low), checks.finite(bounds=high)) for low, high in self.bounds)
        if not bounds or any(not low < high for low, high in bounds):
            message = "bounds must be a pair of low and high for each column, with low below high"
            raise InvalidArgument("bounds", f"{message}: declare them in public, or release a histogram first")
        object.__setattr__(self, "bounds", bounds)

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self.bounds)

    @property
    def size(self) -> int:
        """How many numbers are released."""
        return 1 + 2 * self.columns

    @property
    def norm(self) -> float:
        """The most that one unit adds, in L2, rounded up."""
        return math.nextafter(math.sqrt(self.size), math.inf)

    def add_up(self, values: NDArray[Any], rows: NDArray[Any] | None = None) -> Floats:
        """Return the sum over records, or over persons of so many `rows` each."""
        table, weights = read_table(values, self.columns), find_weights(values, rows)
        lows, highs = np.array(self.bounds).T
        scaled = (np.clip(table, lows, highs) - (lows + highs) / 2) / ((highs - lows) / 2)
        units = np.clip(np.nan_to_num(scaled), -1.0, 1.0)
        parts = [np.array([weights.sum() * FINE]), _add_fine(units, weights), _add_fine(units**2, weights)]
        return np.concatenate(parts).astype(float) / (FINE if rows is None else FINE * SHARES)


Query = Histogram | Moments


def read_table(values: NDArray[Any], columns: int) -> Floats:
    """Return the values as a table of so many columns; text and tables of another form are refused."""
    return require_table(values, columns).astype(np.float64)


def require_table(values: NDArray[Any], columns: int) -> NDArray[Any]:
    """Return the values as an array; refuse text, and tables that have not one column for each of the query's."""
    table = np.asarray(values)
    if table.ndim != 2 or table.shape[1] != columns or table.dtype.kind not in "iufb":
        wanted = f"{columns} column" + ("s" if columns > 1 else "")
        message = f"values must be a table of numbers with {wanted}, got shape {table.shape} of {table.dtype}"
        raise InvalidArgument("values", f"{message}: give one row for each record, and the columns that are asked")
    return table


def find_weights(values: NDArray[Any], rows: NDArray[Any] | None) -> NDArray[np.int64]:
    """Return the weight of each row: 1, or in steps of the grid the share of its person, rounded down."""
    if rows is None:
        return np.ones(len(values), dtype=np.int64)
    counts = np.asarray(rows, dtype=np.int64)
    if counts.ndim != 1 or counts.sum() != len(values) or (len(counts) and counts.min() < 1):
        raise InvalidArgument("rows", "rows must say how many rows each person has, in order: count them by person")
    return np.repeat(SHARES // counts, counts)


def _require_by_column(name: str, columns: Any, form: str, length: int | None = None) -> None:
    """Refuse numbers that are not grouped by column."""
    if any(not isinstance(each, Sized) or length not in (None, len(each)) for each in columns):
        raise InvalidArgument(name, f"{name} must be given column by column: write {form}")


def _count(column: Floats, edges: Floats, weights: NDArray[np.int64]) -> Floats:
    known = ~np.isnan(column)
    cells = np.searchsorted(edges, column[known], side="right")
    return np.asarray(np.bincount(cells, weights=weights[known], minlength=len(edges) + 1), dtype=np.float64)


def _add_fine(units: Floats, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray((np.trunc(units * FINE).astype(np.int64) * weights[:, None]).sum(axis=0), dtype=np.int64)
