"""A look at a table for its owner: what each column seems to hold. All of it is read from records, and private.

Nothing here may be written to a file that is shared unless the owner says that anybody may know it.

>>> from dpfed.data.tables import TextTable
>>> cells = {"age": ("61", "47", ""), "sex": ("f", "m", "f"), "seen": ("2024-01-02", "2024-02-01", "2024-03-01")}
>>> [(each.name, each.kind, each.missing) for each in survey(TextTable("ward.csv", cells, (2, 3, 4)))]
[('age', 'number', 1), ('sex', 'category', 0), ('seen', 'date', 0)]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from dpfed.data.cells import Kind, is_date, is_missing
from dpfed.data.tables import TextTable

NUMBER, CATEGORY, DATE, TEXT, EMPTY, BROKEN = "number", "category", "date", "text", "empty", "broken"
MOST_CATEGORIES = 50
FEWEST_CATEGORIES = 3  # that a short file may have as well
MOSTLY = 0.5  # the share of cells from which on a column with other cells too is one of numbers or dates
_NAMES = re.compile(
    r"(?:.*[_ .-])?(?:id|ids|patient|person|subject|participant|customer|client|user|member|mrn|ssn|name|nhs|pid|case)"
    r"(?:[_ .-]?(?:id|no|nr|num|number|key|code|name|hash))?",
    re.IGNORECASE,
)
_CODE = re.compile(r"[A-Za-z]{0,8}[-_ ]?\d{2,}")


@dataclass(frozen=True)
class ColumnSurvey:
    """What one column seems to hold, for the owner alone; `why` it is no feature has no count in it, `detail` has."""

    name: str
    kind: str
    missing: int = field(default=0, repr=False)
    counts: Counter[str] = field(default_factory=Counter, repr=False)
    low: float | None = field(default=None, repr=False)
    high: float | None = field(default=None, repr=False)
    why: str = field(default="", repr=False)
    detail: str = field(default="", repr=False)
    note: str = field(default="", repr=False)
    may_name_persons: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The texts that the column holds, in order: numbers by size."""
        return tuple(sorted(self.counts, key=_order))

    @property
    def is_usable(self) -> bool:
        """Whether the column can be a feature as it is."""
        return self.kind in (NUMBER, CATEGORY)


def survey(table: TextTable) -> tuple[ColumnSurvey, ...]:
    """Return what each column of a table seems to hold, in the file's order."""
    return tuple(survey_column(table, column) for column in table.columns)


def survey_column(table: TextTable, name: str) -> ColumnSurvey:
    """Return what a column seems to hold: numbers, categories, dates, or something that is no feature."""
    read = table.cells(name)
    missing = read.count(Kind.MISSING)
    present = len(table.lines) - missing
    blank = ColumnSurvey(name, EMPTY, missing, may_name_persons=_NAMES.fullmatch(name) is not None)
    if not present:
        return replace(blank, why="every cell is missing")
    is_text = read.count(Kind.TEXT) >= (1 - MOSTLY) * present
    return _survey_texts(table, blank, present) if is_text else _survey_numbers(table, blank)


def count_values(table: TextTable, name: str) -> Counter[str]:
    """Return how often each text is in the column; missing cells are not counted."""
    return Counter({cell: count for cell, count in Counter(table.columns[name]).items() if not is_missing(cell)})


def _survey_numbers(table: TextTable, blank: ColumnSurvey) -> ColumnSurvey:
    read = table.cells(blank.name)
    found = read.values[np.isfinite(read.values)]
    low, high = (float(found.min()), float(found.max())) if len(found) else (None, None)
    note = "decimal commas" if read.count(Kind.COMMA) else ""
    why, detail = _find_fault(table, blank.name)
    kind = BROKEN if why else NUMBER
    return replace(blank, kind=kind, low=low, high=high, why=why, detail=detail, note=note)


def _find_fault(table: TextTable, name: str) -> tuple[str, str]:
    """Return why a column of numbers cannot be read, and how many cells are to blame; empty texts if it can."""
    read = table.cells(name)
    bad = read.count(Kind.INFINITE) + read.count(Kind.TEXT)
    if bad:
        word = "no numbers" if read.count(Kind.TEXT) else "infinite"
        first = table.lines[read.first(Kind.INFINITE, Kind.TEXT) or 0]
        return f"some cells are {word}", f"{bad:,} of them, the first in {table.place} {first}"
    mixed = table.mixes_decimals(name)
    return "decimal commas beside decimal points" if mixed else "", ""


def _survey_texts(table: TextTable, blank: ColumnSurvey, present: int) -> ColumnSurvey:
    counts = count_values(table, blank.name)
    if _share(counts, is_date, present) > MOSTLY:
        return replace(blank, kind=DATE, why="a date: make an age or a duration of it")
    if len(counts) <= min(MOST_CATEGORIES, max(present // 2, FEWEST_CATEGORIES)):
        return replace(blank, kind=CATEGORY, counts=counts)
    may_name = blank.may_name_persons or _share(counts, lambda cell: bool(_CODE.fullmatch(cell)), present) > MOSTLY
    why = "too many different texts for categories"
    return replace(blank, kind=TEXT, why=why, detail=f"{len(counts):,} texts", may_name_persons=may_name)


def _share(counts: Counter[str], is_such: Callable[[str], bool], present: int) -> float:
    return sum(count for cell, count in counts.items() if is_such(cell)) / present


def _order(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
