"""Tables of text, read without guessing: the values that a column may hold are declared, and every cell is checked.

A column of text has declared categories (one feature each, 0 or 1), a label has declared classes, any other column
holds numbers. Guessing these from the file would publish what is in it. How a missing cell is filled is a choice of the
owner: by a declared constant, with or without a feature that says so; else all of them are refused at once. Refusals
name line and column and never show a cell. The first line may be a record too, if somebody forgot the names: a refusal
for a missing column shows a column with nearly the same name only.

>>> from pathlib import Path
>>> _ = Path("ward.csv").write_text("age;sex;ill\\n61,5;f;yes\\n;m;no\\n")
>>> table = read_table("ward.csv")
>>> records = table.records("ill", classes=["no", "yes"], categories={"sex": ["f", "m"]}, fill={"age": 50})
>>> records.columns, records.features.tolist(), records.labels.tolist()
(('age', 'sex=f', 'sex=m'), [[61.5, 1.0, 0.0], [50.0, 0.0, 1.0]], [1, 0])
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.data.cells import MISSING, Cells, Kind, is_missing, mixes_decimals, read_cells
from dpfed.data.declared import Declared, Missing, refuse_missing
from dpfed.data.plain import PlainColumns, split_plain
from dpfed.data.progress import follow
from dpfed.data.records import Records
from dpfed.data.text_files import find_separator, read_text, split_declaration
from dpfed.errors import InvalidArgument

__all__ = ["MISSING", "TextTable", "read_table"]

FIRST = 1 << 20  # bytes of a file in which its first line ends
_ABSENT, _UNKNOWN = -1, -2  # codes of cells that are missing, or that nobody declared


@dataclass(frozen=True)
class TextTable:
    """The cells of a file as text, column by column, and the line (or other `place`) of each record."""

    name: str
    columns: Mapping[str, tuple[str, ...]] = field(repr=False)
    lines: Sequence[int] = field(repr=False)
    place: str = field(default="line", repr=False)
    separator: str = field(default=",", repr=False)
    _read: dict[str, Cells] = field(default_factory=dict, repr=False, compare=False)

    def records(
        self,
        label: str,
        *,
        classes: Sequence[Any] = (),
        categories: Mapping[str, Sequence[Any]] | None = None,
        groups: Iterable[str] = (),
        ignore: Iterable[str] = (),
        fill: Mapping[str, Any] | None = None,
        indicator: Iterable[str] = (),
    ) -> Records:
        """Return the records, with all columns as features except the label, the groups and the ignored ones.

        With `classes`, a label is the position of its cell in them; without, it is a number. Missing cells of a column
        in `fill` are its constant, and one in `indicator` has a feature more, which is 1 where a cell is missing.
        """
        declared, named, apart = Declared(categories or {}, fill or {}, tuple(indicator)), list(groups), set(ignore)
        for column in [label, *declared.columns, *named, *apart]:
            self.require(column)
        used = [column for column in self.columns if column not in {label, *named, *apart}]
        self._require_features(label, used, declared)
        self.require_complete(used, declared, [label, *named], {label: classes} if classes else {})
        return Records(
            features=self.features(used, declared),
            labels=self.codes(label, classes) if classes else self.numbers(label, "or declare its classes"),
            columns=tuple(name for column in used for name in declared.name_features(column)),
            groups={column: np.array(self.columns[column]) for column in named},
            classes=tuple(map(str, classes)),
        )

    def features(self, columns: Iterable[str], declared: Declared) -> NDArray[np.float64]:
        """Return these columns as features: one for each category of a column that has some, else the number."""
        return np.hstack([part for column in columns for part in self._make_features(column, declared)])

    def numbers(self, column: str, otherwise: str = "declare its categories, or ignore it") -> NDArray[np.float64]:
        """Return the column as finite numbers."""
        self.require_complete([], Declared(), [column])
        return self._read_numbers(column, otherwise)

    def codes(self, column: str, declared: Sequence[Any]) -> NDArray[np.int64]:
        """Return the column as positions in the declared values; refuse a missing cell."""
        self.require_complete([], Declared({column: declared}), [column])
        return self._find_codes(column, declared)

    def complete(self, column: str) -> tuple[str, ...]:
        """Return the column's cells as text; refuse a missing one."""
        self.require_complete([], Declared(), [column])
        return self.columns[column]

    def cells(self, column: str) -> Cells:
        """Return the column's cells as numbers, and what each of them is."""
        if column not in self._read:
            self._read[column] = self._read_cells(column)
        return self._read[column]

    def mixes_decimals(self, column: str) -> bool:
        """Return whether the column has decimal commas and decimal points: one of them may be for thousands."""
        read = self.cells(column)
        return read.count(Kind.COMMA) > 0 and mixes_decimals(self.columns[column], read)

    def _read_cells(self, column: str) -> Cells:
        numbers = self.columns.read_numbers(column) if isinstance(self.columns, PlainColumns) else None
        if numbers is not None:
            return Cells(numbers, np.zeros(len(numbers), np.int8))
        return read_cells(self.columns[column], has_decimal_comma=self.separator != ",")

    def find_missing(self, column: str, declared: Sequence[Any] = ()) -> Missing | None:
        """Return how many cells of the column are missing; a text that is declared is not, even if it is "none"."""
        if not declared and not self.cells(column).count(Kind.MISSING):
            return None
        known, cells = {str(value) for value in declared}, self.columns[column]
        absent = {cell for cell in set(cells) if is_missing(cell) and cell not in known}
        if not absent:
            return None
        missing = [cell in absent for cell in cells]
        return Missing(sum(missing), next(compress(self.lines, missing)))

    def require_complete(
        self,
        features: Collection[str],
        declared: Declared,
        others: Iterable[str] = (),
        classes: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Refuse missing cells of all columns at once, except where it is declared what fills them."""
        known = {**declared.categories, **(classes or {})}
        wanted = [*(column for column in features if not declared.bears_missing(column)), *others]
        if missing := self.list_missing(wanted, known):
            raise refuse_missing(self.name, self.place, missing, features, declared)

    def list_missing(self, columns: Iterable[str], known: Mapping[str, Sequence[Any]]) -> dict[str, Missing]:
        """Return what is missing in those of the columns that miss any cell, beside what is `known` to be a text."""
        found = {column: self.find_missing(column, known.get(column, ())) for column in columns}
        return {column: each for column, each in found.items() if each is not None}

    def require(self, column: str, argument: str = "column") -> None:
        """Refuse the name of a column that the file does not have."""
        if column not in self.columns:
            near = get_close_matches(column, self.columns, n=1, cutoff=0.75)
            what = f"did you mean {near[0]!r}?" if near else f"its first {self.place} must name the columns"
            raise InvalidArgument(argument, f"{self.name} has no column {column!r}: {what}")

    def _make_features(self, column: str, declared: Declared) -> Iterable[NDArray[np.float64]]:
        is_text = column in declared.categories
        known = declared.categories.get(column, ())
        yield self._encode(column, declared) if is_text else self._fill_numbers(column, declared)[:, None]
        if column in declared.indicator:
            names = {str(value) for value in known}
            yield np.array([[float(is_missing(cell) and cell not in names)] for cell in self.columns[column]])

    def _encode(self, column: str, declared: Declared) -> NDArray[np.float64]:
        known = declared.categories[column]
        codes = self._find_codes(column, known, declared.fill.get(column))
        return np.vstack([np.eye(len(known)), np.zeros(len(known))])[codes]  # the last row is for what is missing

    def _fill_numbers(self, column: str, declared: Declared) -> NDArray[np.float64]:
        values = self._read_numbers(column, "declare its categories, or ignore it")
        return np.where(np.isnan(values), declared.number(column), values)

    def _read_numbers(self, column: str, otherwise: str) -> NDArray[np.float64]:
        """Return the column as numbers, NaN where a cell is missing; refuse any other cell."""
        read = self.cells(column)
        if (bad := read.first(Kind.INFINITE, Kind.TEXT)) is not None:
            message = f"the cell is not a finite number: correct it, {otherwise}"
            raise self._make_refusal(self.lines[bad], column, message)
        if self.mixes_decimals(column):
            what = f"column {column} has decimal commas and decimal points, and one of them may be for thousands"
            raise InvalidArgument(column, f"{self.name}: {what}: write all numbers alike")
        return read.values

    def _find_codes(self, column: str, declared: Sequence[Any], fill: Any = None) -> NDArray[np.int64]:
        """Return the positions of the column's cells in the declared values; that of the fill where one is missing."""
        position = {str(value): code for code, value in enumerate(declared)}
        if len(position) != len(declared):
            raise InvalidArgument(
                column, f"the values declared for column {column} are not all different: remove the repeated one"
            )
        cells, absent = self.columns[column], position.get(str(fill), _ABSENT)
        found = {cell: position.get(cell, absent if is_missing(cell) else _UNKNOWN) for cell in set(cells)}
        codes = np.fromiter(map(found.__getitem__, cells), np.int64, len(cells))
        if _UNKNOWN in found.values():
            line = self.lines[int(np.argmax(codes == _UNKNOWN))]
            allowed = ", ".join(position)
            message = f"the cell is none of the declared {allowed}: correct it, or declare its value"
            raise self._make_refusal(line, column, message)
        return codes

    def _require_features(self, label: str, used: list[str], declared: Declared) -> None:
        stray = [column for column in declared.columns if column not in used]
        if stray:
            where = next(word for word in ("categories", "fill", "indicator") if stray[0] in getattr(declared, word))
            message = f"column {stray[0]} of {self.name} is the label, a group or ignored: leave its {where} out"
            raise InvalidArgument(where, message)
        if not used:
            raise InvalidArgument("ignore", f"{self.name} has no column left as a feature beside {label}: ignore fewer")

    def _make_refusal(self, line: int, column: str, what: str) -> InvalidArgument:
        return InvalidArgument(column, f"{self.name}, {self.place} {line}, column {column}: {what}")


def read_table(path: str | Path) -> TextTable:
    """Read a file's cells; its first line names the columns, and shows what separates them."""
    name = Path(path).name
    declared, text = split_declaration(read_text(path))
    separator, first = declared or find_separator(_find_first_line(text)), 1 if declared is None else 2
    if (plain := split_plain(text, separator)) is not None:
        lines = range(first + 1, first + 1 + plain.records)
        return TextTable(name, plain, lines, separator=separator)
    return _read_any(name, text, separator, first)


def _read_any(name: str, text: str, separator: str, first: int) -> TextTable:
    """Return the cells of a text in any form of CSV, with the number of its first line."""
    lines, rows = _split_cells(name, text, separator, first)
    if len(rows) < 2:
        raise InvalidArgument(
            "source", f"{name} must have a line of column names and at least one record: it has fewer than two lines"
        )
    _require_rectangle(name, rows[0], lines, rows)
    cells = [column[1:] for column in zip(*rows, strict=True)]
    return TextTable(name, dict(zip(rows[0], cells, strict=True)), lines[1:], separator=separator)


def read_header(path: str | Path) -> tuple[str, ...]:
    """Read the names of the columns alone."""
    declared, text = split_declaration(read_text(path, most=FIRST))
    line = _find_first_line(text)
    row = next(csv.reader([line], delimiter=declared or find_separator(line)), [])
    return tuple(name.strip() for name in row)


def read_column(path: str | Path, column: str) -> tuple[str, ...]:
    """Read one column of a file, and check no other; refuse a missing cell."""
    table = read_table(path)
    table.require(column)
    return table.complete(column)


def _find_first_line(text: str) -> str:
    return next((line for line in io.StringIO(text[:FIRST]) if line.strip()), "")


def _split_cells(name: str, text: str, separator: str, first: int) -> tuple[list[int], list[list[str]]]:
    """Return the cells of each line that has any, and the numbers of these lines."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=separator)
    # Without a space in the whole text there is none to strip from its cells.
    is_bare = text.isascii() and not any(letter in text for letter in ' "\t\v\f' if letter != separator)
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        numbered = ((reader.line_num, row) for row in reader)
        for line, row in follow(numbered, f"reading {name}", text.count("\n")):
            if any(row) and (is_bare or any(map(str.strip, row))):
                lines.append(line + first - 1)
                rows.append(row if is_bare else list(map(str.strip, row)))
    except csv.Error:
        message = f"{name}, line {reader.line_num}: this is not CSV: look for a quote that is not closed, or a NUL"
        raise InvalidArgument("source", message) from None
    except MemoryError:
        raise InvalidArgument("source", f"{name} is larger than this machine's memory: split it") from None
    return lines, rows


def _require_rectangle(name: str, header: list[str], lines: Sequence[int], rows: list[list[str]]) -> None:
    seen: set[str] = set()
    for place, column in enumerate(header, start=1):
        if not column or column in seen:
            what = "has the name of another" if column else "has none"
            message = f"{name}, line 1: each column needs a different name, and column {place} {what}: correct the line"
            raise InvalidArgument("source", message)
        seen.add(column)
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise InvalidArgument(
                "source",
                f"{name}, line {line}: {len(row)} cells under {len(header)} column names: look for a lost separator",
            )
