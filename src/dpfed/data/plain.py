"""Plain tables, cut in bulk: ASCII without quotes or blanks, each line with a cell for each column.

Most large tables are such. Their cells are found as places in the text, columns are cut out when somebody asks, and
plain decimal numbers are read all at once. Anything else is left to the reader of `tables`, which also says what is
wrong: what is read here is what it would have read, to the last bit.

>>> found = split_plain("age,sex\\n61.5,f\\n47,m\\n", ",")
>>> found["sex"], found.read_numbers("age").tolist()
(('f', 'm'), [61.5, 47.0])
>>> split_plain("age,sex\\n61.5\\n", ",") is None
True
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_DIGITS = 15  # whole numbers of so many digits, and powers of ten up to that, are exact as floats
_LONGEST = MOST_DIGITS + 2  # a sign and a point
_BLANKS = ' "\t\v\f\r'
_NEWLINE, _POINT, _MINUS, _ZERO = b"\n.-0"


@dataclass(frozen=True, eq=False)
class PlainColumns(Mapping[str, tuple[str, ...]]):
    """The columns of a plain table by name: texts are cut out when they are asked for."""

    text: str = field(repr=False)
    names: tuple[str, ...]
    content: NDArray[np.uint8] = field(repr=False)
    ends: NDArray[np.int64] = field(repr=False)
    _cut: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> tuple[str, ...]:
        if name not in self._cut:
            starts, stops = self._find_places(name)
            places = zip(starts.tolist(), stops.tolist(), strict=True)
            self._cut[name] = tuple(self.text[start:stop] for start, stop in places)
        return self._cut[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def records(self) -> int:
        """The number of lines after that of the names."""
        return len(self.ends) - 1

    def read_numbers(self, name: str) -> NDArray[np.float64] | None:
        """Return the column's numbers; None if a cell is no plain decimal number such as -61.5 with few digits.

        Digits make a whole number, which is divided by a power of ten: both are exact, so the quotient is the float
        that is nearest to what is written.
        """
        starts, stops = self._find_places(name)
        lengths = stops - starts
        if lengths.max() > _LONGEST:
            return None
        is_negative = self.content[starts] == _MINUS
        number, points = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
        decimals = np.zeros(len(starts), np.int64)
        for place in range(int(lengths.max())):
            letters, is_inside = self.content[starts + place], place < lengths
            digits = letters - np.uint8(_ZERO)  # what is below wraps around
            is_digit, is_point = (digits < 10) & is_inside, (letters == _POINT) & is_inside
            is_sign = is_negative if place == 0 else False
            if not (is_digit | is_point | is_sign | ~is_inside).all():
                return None
            number = np.where(is_digit, number * 10 + digits, number)
            points += is_point
            decimals += is_digit & (points > 0)
        count = lengths - points - is_negative
        if points.max() > 1 or count.min() < 1 or count.max() > MOST_DIGITS:
            return None
        return np.where(is_negative, -1.0, 1.0) * (number / 10.0**decimals)

    def _find_places(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each cell of the column begins, and where it ends."""
        column = self.names.index(name)
        before = self.ends[1:, column - 1] if column else self.ends[:-1, -1]
        return before + 1, self.ends[1:, column]


def split_plain(text: str, separator: str) -> PlainColumns | None:
    """Return the columns of a plain table; None if it is another, be it one that must be refused."""
    if not (text.isascii() and separator.isascii()) or separator in '\r\n"':
        return None
    if any(letter in text for letter in _BLANKS if letter != separator):
        return None
    text = text if text.endswith("\n") else text + "\n"
    names = tuple(text[: text.index("\n")].split(separator))
    if not all(names) or len(set(names)) < len(names):
        return None
    content = np.frombuffer(text.encode() + bytes(_LONGEST), np.uint8)
    ends = np.flatnonzero((content == _NEWLINE) | (content == ord(separator)))
    lines = text.count("\n")
    if lines < 2 or len(ends) != lines * len(names):
        return None
    grid = ends.reshape(lines, len(names))
    is_even = bool((content[grid[:, -1]] == _NEWLINE).all())
    return PlainColumns(text, names, content, grid) if is_even and _has_usual_cells(grid) else None


def _has_usual_cells(ends: NDArray[np.int64]) -> bool:
    """Return whether no line is without content, which counts as none, and no cell is longer than CSV allows."""
    lengths = np.diff(ends[:, -1], prepend=-1) - ends.shape[1]
    return bool(lengths.min() > 0 and lengths.max() <= csv.field_size_limit())
