"""CSV files, read without guessing: the values that a column may hold are declared, and every cell is checked.

A column of text has declared categories (one feature each, 0 or 1), a label has declared classes, any other column
holds numbers. Guessing these from the file would publish what is in it; a missing cell is refused, because every way
to fill it is a choice of the owner. Refusals name line and column and never show a cell. The first line may be a record
too, if somebody forgot the names: a refusal for a missing column shows a column with nearly the same name only.

>>> from pathlib import Path
>>> _ = Path("ward.csv").write_text("age,sex,ill\\n61,f,yes\\n47,m,no\\n")
>>> records = read_table("ward.csv").records("ill", classes=["no", "yes"], categories={"sex": ["f", "m"]})
>>> records.columns, records.features.tolist(), records.labels.tolist()
(('age', 'sex=f', 'sex=m'), [[61.0, 1.0, 0.0], [47.0, 0.0, 1.0]], [1, 0])
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.data.records import Records
from dpfed.errors import InvalidArgument

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}


@dataclass(frozen=True)
class TextTable:
    """The cells of a file as text, column by column, and the line (or other `place`) of each record."""

    name: str
    columns: Mapping[str, tuple[str, ...]] = field(repr=False)
    lines: tuple[int, ...] = field(repr=False)
    place: str = field(default="line", repr=False)

    def records(
        self,
        label: str,
        *,
        classes: Sequence[Any] = (),
        categories: Mapping[str, Sequence[Any]] | None = None,
        groups: Iterable[str] = (),
        ignore: Iterable[str] = (),
    ) -> Records:
        """Return the records, with all columns as features except the label, the groups and the ignored ones.

        With `classes`, a label is the position of its cell in them; without, it is a number.
        """
        declared, named, apart = dict(categories or {}), list(groups), set(ignore)
        for column in [label, *declared, *named, *apart]:
            self.require(column)
        used = [column for column in self.columns if column not in {label, *named, *apart}]
        self._require_features(label, used, declared)
        return Records(
            features=self.features(used, declared),
            labels=self.codes(label, classes) if classes else self.numbers(label, "or declare its classes"),
            columns=tuple(name for column in used for name in _name_features(column, declared)),
            groups={column: np.array(self.complete(column)) for column in named},
            classes=tuple(map(str, classes)),
        )

    def features(self, columns: Iterable[str], categories: Mapping[str, Sequence[Any]]) -> NDArray[np.float64]:
        """Return these columns as features: one for each category of a column that has some, else the number."""
        parts = [self._encode(column, categories[column]) if column in categories else self.numbers(column)[:, None]
                 for column in columns]  # fmt: skip
        return np.hstack(parts)

    def numbers(self, column: str, otherwise: str = "declare its categories, or ignore it") -> NDArray[np.float64]:
        """Return the column as finite numbers."""
        values = [_parse_number(cell) for cell in self.complete(column)]
        for line, value in zip(self.lines, values, strict=True):
            if value is None:
                raise self._make_refusal(line, column, f"the cell is not a finite number: correct it, {otherwise}")
        return np.array(values, dtype=float)

    def codes(self, column: str, declared: Sequence[Any]) -> NDArray[np.int64]:
        """Return the column as positions in the declared values."""
        position = {str(value): code for code, value in enumerate(declared)}
        if len(position) != len(declared):
            raise InvalidArgument(
                column, f"the values declared for column {column} are not all different: remove the repeated one"
            )
        codes = [position.get(cell, -1) for cell in self.complete(column)]
        if -1 in codes:
            allowed = ", ".join(position)
            raise self._make_refusal(
                self.lines[codes.index(-1)],
                column,
                f"the cell is none of the declared {allowed}: correct it, or declare its value",
            )
        return np.array(codes, dtype=np.int64)

    def complete(self, column: str) -> tuple[str, ...]:
        """Return the column's cells as text; refuse a missing one."""
        for line, cell in zip(self.lines, self.columns[column], strict=True):
            if cell.lower() in MISSING:
                message = "the cell is missing: fill it in, leave the record out or ignore the column"
                raise self._make_refusal(line, column, message)
        return self.columns[column]

    def _encode(self, column: str, declared: Sequence[Any]) -> NDArray[np.float64]:
        return np.eye(len(declared))[self.codes(column, declared)]

    def require(self, column: str, argument: str = "column") -> None:
        """Refuse the name of a column that the file does not have."""
        if column not in self.columns:
            near = get_close_matches(column, self.columns, n=1, cutoff=0.75)
            what = f"did you mean {near[0]!r}?" if near else f"its first {self.place} must name the columns"
            raise InvalidArgument(argument, f"{self.name} has no column {column!r}: {what}")

    def _require_features(self, label: str, used: list[str], declared: Mapping[str, Any]) -> None:
        stray = [column for column in declared if column not in used]
        if stray:
            message = f"column {stray[0]} of {self.name} is the label, a group or ignored: leave its categories out"
            raise InvalidArgument("categories", message)
        if not used:
            raise InvalidArgument("ignore", f"{self.name} has no column left as a feature beside {label}: ignore fewer")

    def _make_refusal(self, line: int, column: str, what: str) -> InvalidArgument:
        return InvalidArgument(column, f"{self.name}, {self.place} {line}, column {column}: {what}")


def read_table(path: str | Path) -> TextTable:
    """Read a file's cells; its first line names the columns."""
    name = Path(path).name
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except OSError as error:
        raise InvalidArgument("source", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        message = f"{name} is not a CSV file in UTF-8 (see its byte {error.start + 1}): save it as UTF-8"
        raise InvalidArgument("source", message) from None
    except csv.Error:
        message = f"{name}, line {reader.line_num}: this is not CSV: look for a quote that is not closed, or a NUL"
        raise InvalidArgument("source", message) from None
    except MemoryError:
        raise InvalidArgument("source", f"{name} is larger than this machine's memory: split it") from None
    if len(rows) < 2:
        raise InvalidArgument(
            "source", f"{name} must have a line of column names and at least one record: it has fewer than two lines"
        )
    (_, header), *body = rows
    _require_rectangle(name, header, body)
    columns = dict(zip(header, zip(*(row for _, row in body), strict=True), strict=True))
    return TextTable(name, columns, tuple(line for line, _ in body))


def _require_rectangle(name: str, header: list[str], body: list[tuple[int, list[str]]]) -> None:
    seen: set[str] = set()
    for place, column in enumerate(header, start=1):
        if not column or column in seen:
            what = "has the name of another" if column else "has none"
            message = f"{name}, line 1: each column needs a different name, and column {place} {what}: correct the line"
            raise InvalidArgument("source", message)
        seen.add(column)
    for line, row in body:
        if len(row) != len(header):
            raise InvalidArgument(
                "source",
                f"{name}, line {line}: {len(row)} cells under {len(header)} column names: look for a lost comma",
            )


def _name_features(column: str, declared: Mapping[str, Sequence[Any]]) -> list[str]:
    return [f"{column}={value}" for value in declared[column]] if column in declared else [column]


def _parse_number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    # Python reads 1_000; no spreadsheet means a number by it.
    return value if math.isfinite(value) and "_" not in cell else None
