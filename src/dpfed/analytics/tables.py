"""Columns of a table as numbers, by site and by person, for questions that are charged.

Every cell is read by itself, and one that is no finite number is NaN, which no question counts: nothing that a record
holds is refused, so that one record more or less never decides whether there is an answer.

>>> cells = {"age": ("61", "high", "47"), "ward": ("a", "b", "a"), "patient": ("ann", "ben", "ann")}
>>> table = TextTable("ward.csv", cells, (2, 3, 4))
>>> found = read_parts(table, ["age"], sites=["a", "b", "c"], site_column="ward", person_column="patient")
>>> [(site, part.values.tolist(), part.rows.tolist()) for site, part in found.items()]
[('a', [[61.0], [47.0]], [2]), ('b', [[nan]], [1]), ('c', [], [])]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed.arrays import Floats
from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TablePart:
    """The columns of one owner as a table of numbers, and how many `rows` each person has, person by person."""

    values: Floats = field(repr=False)
    rows: Indices | None = field(default=None, repr=False)


def read_parts(
    table: TextTable,
    columns: Sequence[str],
    *,
    sites: Sequence[str] = ("owner",),
    site_column: str | None = None,
    person_column: str | None = None,
    max_sites_per_person: int = 1,
) -> dict[str, TablePart]:
    """Return these columns of each of the declared sites; without a column of sites all rows are those of the first.

    Privacy: a record, or a person at one site, is in one part alone, and moves no other row there.
    """
    apart = [column for column in (site_column, person_column) if column is not None]
    for column in (*columns, *apart):
        table.require(column)
    if not columns or len({*columns, *apart}) < len(columns) + len(apart):
        raise InvalidArgument("columns", "columns must be different ones, and name neither site nor person: name each")
    values = np.column_stack([_read_numbers(table, column) for column in columns])
    places = _find_sites(table, sites, site_column)
    if person_column is None:
        return {site: TablePart(values[places == number]) for number, site in enumerate(sites)}
    persons = _find_persons(table, person_column)
    _require_few_sites(persons, places, max_sites_per_person)
    return {site: _group(values[places == number], persons[places == number]) for number, site in enumerate(sites)}


def _read_numbers(table: TextTable, column: str) -> Floats:
    return table.cells(column).values


def _find_sites(table: TextTable, sites: Sequence[str], column: str | None) -> Indices:
    """Return the number of each row's site; refuse a site that is not declared, whose rows nobody would pay for."""
    if column is None:
        return np.zeros(len(table.lines), dtype=np.int64)
    known = {site: number for number, site in enumerate(sites)}
    found = np.array([known.get(cell, -1) for cell in table.columns[column]], dtype=np.int64)
    if (found < 0).any():
        message = f"column {column} has a site that is not declared, and no account would pay for its rows"
        raise InvalidArgument("sites", f"{message}: name all sites")
    return found


def _find_persons(table: TextTable, column: str) -> Indices:
    """Return the number of each row's person; refuse rows without a name, which cannot be protected."""
    return np.unique(np.array(table.complete(column)), return_inverse=True)[1].reshape(-1).astype(np.int64)


def _require_few_sites(persons: Indices, places: Indices, most: int) -> None:
    pairs = np.unique(np.column_stack([persons, places]), axis=0)
    if len(pairs) and np.bincount(pairs[:, 0]).max() > most:
        message = f"a person has rows at more sites than max_sites_per_person ({most})"
        raise InvalidArgument("max_sites_per_person", f"{message}: raise it, or give different persons different names")


def _group(values: Floats, persons: Indices) -> TablePart:
    """Return the rows person by person."""
    counts = np.bincount(persons)
    return TablePart(values[np.argsort(persons, kind="stable")], counts[counts > 0].astype(np.int64))
