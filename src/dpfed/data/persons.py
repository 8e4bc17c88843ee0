"""Rows of the same person grouped as one record, as a promise for one person needs it.

A promise for one row says little to a patient with fifty of them. So the rows of a person stay together: they are held
out together, given to one client together, sampled together, and clipped as one. The number of a person's rows that are
used is bounded by a declared constant; which ones are left out depends on that person alone.

>>> visits = Records([[1.0], [2.0], [3.0], [4.0]], [0, 1, 0, 0], groups={"patient": ["ann", "ben", "ann", "ann"]})
>>> found = grouped(visits, "patient", rows_per_person=2)
>>> len(found.persons), found.persons.counts.tolist(), found.persons.rows.features.ravel().tolist(), found.left_out
(2, [2, 1], [1.0, 3.0, 2.0], 1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.data.records import Records
from dpfed.data.tables import MISSING
from dpfed.errors import InvalidArgument

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Persons:
    """Records of several rows each: the rows person by person, and how many rows each person has.

    Like `Records`, and how many persons there are is as secret. A person's label and groups are those of its first row.
    """

    rows: Records = field(repr=False)
    counts: Indices = field(repr=False)

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or not len(counts) or counts.min() < 1:
            raise InvalidArgument("counts", "counts must be whole numbers of at least 1, one for each person")
        if counts.sum() != len(self.rows):
            raise InvalidArgument("counts", "counts must add up to the number of rows")
        object.__setattr__(self, "counts", counts.astype(np.int64))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def starts(self) -> Indices:
        """The position of each person's first row."""
        return np.asarray(np.cumsum(self.counts) - self.counts)

    @property
    def labels(self) -> NDArray[Any]:
        """The label of each person's first row, by which persons are assigned to clients."""
        return np.asarray(self.rows.labels[self.starts])

    @property
    def groups(self) -> Mapping[str, NDArray[Any]]:
        """The group columns of each person's first row, the person's name among them."""
        return {name: column[self.starts] for name, column in self.rows.groups.items()}

    @property
    def classes(self) -> tuple[str, ...]:
        """The declared names of the labels."""
        return self.rows.classes

    def take(self, positions: NDArray[Any]) -> Persons:
        """Return the persons at these positions, each with all its rows."""
        starts, counts = self.starts[positions], self.counts[positions]
        rows = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        return Persons(self.rows.take(np.concatenate([np.empty(0, np.int64), *rows])), counts)


class Grouped(NamedTuple):
    """The persons, and the number of rows that were left out, which is for the owner alone."""

    persons: Persons
    left_out: int


def grouped(records: Records, column: str, rows_per_person: int, site: str | None = None) -> Grouped:
    """Group the first `rows_per_person` rows of each person; rows and persons stay in the data's order.

    Where a column names the `site`, a person with rows at two sites is one record at each of them: neither site knows
    of the other, and `max_sites_per_person` says how many of them a promise adds up.

    Privacy: which rows of a person are used depends on that person's rows alone, so adding or removing a person adds or
    removes one record.
    """
    most, ids = checks.count(rows_per_person=rows_per_person), _read_ids(records, column)
    keys = [ids] if site is None else [ids, _require_column(records, site, "site")]
    first, member = _number_keys(keys)
    order = np.argsort(member, kind="stable")
    counts = np.bincount(member, minlength=len(first))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = order[place < most]
    return Grouped(Persons(records.take(kept), np.minimum(counts, most)), len(order) - len(kept))


def most_sites(persons: Persons, column: str) -> int:
    """Return the largest number of sites of one person, which is how often its name is found among the records."""
    return int(np.unique(persons.groups[column], return_counts=True)[1].max())


def _read_ids(records: Records, column: str) -> NDArray[Any]:
    if column in records.columns:
        raise InvalidArgument(
            "person_column",
            f"column {column} names the person, so it must not be a feature: take it out of the features",
        )
    ids = _require_column(records, column, "person")
    if ids.ndim != 1 or ids.dtype.kind not in "iuUS":
        message = f"column {column} must name the person of each row by a text or a whole number, got {ids.dtype}"
        raise InvalidArgument("person_column", message)
    if {str(name).strip().lower() for name in np.unique(ids.astype(str))} & MISSING:
        # Taken for one person of that name, they would be a second record of whomever they belong to.
        message = (
            f"column {column} has rows without a name, which cannot be protected: fill them in, or remove these rows"
        )
        raise InvalidArgument("person_column", message)
    return ids


def _require_column(records: Records, column: str, what: str) -> NDArray[Any]:
    if column not in records.groups:
        known = ", ".join(records.groups) or "none"
        message = f"the data have no column {column!r} to name the {what}: write one of {known}"
        raise InvalidArgument("person_column", message)
    return records.groups[column]


def _number_keys(keys: list[NDArray[Any]]) -> tuple[Indices, Indices]:
    """Return where each different combination of keys is first met, in that order, and the combination of each row."""
    codes = np.column_stack([np.unique(key, return_inverse=True)[1].reshape(len(key)) for key in keys])
    _, first, inverse = np.unique(codes, axis=0, return_index=True, return_inverse=True)
    # By first appearance: sorted by name, one person in place of another would move all others to other places.
    rank = np.argsort(np.argsort(first))
    return np.sort(first), rank[inverse.reshape(-1)]
