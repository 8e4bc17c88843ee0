"""What an owner declares of a table's columns: categories of texts, and how missing cells are filled.

>>> declared = Declared({"sex": ["f", "m"]}, fill={"age": 50}, indicator=["sex"])
>>> declared.name_features("sex")
['sex=f', 'sex=m', 'sex is missing']
>>> Declared({"sex": ["f", "m"]}, fill={"sex": "x"})
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: fill: sex must be one of its categories f, m: write one of them, or declare it
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpfed.errors import InvalidArgument

INDICATOR = "{} is missing"  # the feature that says which cells of a column were


@dataclass(frozen=True)
class Declared:
    """Public facts of columns; a column that is in none of them holds numbers, and all of them."""

    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    indicator: Sequence[str] = ()

    def __post_init__(self) -> None:
        for column in self.fill.keys() & self.categories.keys():
            known = list(map(str, self.categories[column]))
            if str(self.fill[column]) not in known:
                message = f"fill: {column} must be one of its categories {', '.join(known)}"
                raise InvalidArgument("fill", f"{message}: write one of them, or declare it")
        for column in self.fill.keys() - self.categories.keys():
            if not math.isfinite(self.number(column)):
                message = f"fill: {column} has no categories, so what fills it must be a finite number"
                raise InvalidArgument("fill", f"{message}: write one, or declare its categories")

    def number(self, column: str) -> float:
        """Return the number that fills the column; NaN if there is none."""
        try:
            return float(self.fill.get(column, math.nan))
        except ValueError:
            return math.nan

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        return [*self.categories, *self.fill, *self.indicator]

    def bears_missing(self, column: str) -> bool:
        """Return whether missing cells of the column become a feature."""
        return column in self.fill or (column in self.indicator and column in self.categories)

    def name_features(self, column: str) -> list[str]:
        """Return the names of the features that a column becomes."""
        own = [f"{column}={value}" for value in self.categories[column]] if column in self.categories else [column]
        return [*own, INDICATOR.format(column)] if column in self.indicator else own


@dataclass(frozen=True)
class Missing:
    """How many cells of a column are missing, and the line of the first."""

    count: int
    line: int


def refuse_missing(
    name: str, place: str, found: Mapping[str, Missing], features: Collection[str], declared: Declared
) -> InvalidArgument:
    """Return the refusal of all missing cells at once, with the lines that would fill them."""
    ways = []
    if open_ := [column for column in found if column in features]:
        form = ", ".join(f"{column}: {_form(column, declared)}" for column in open_)
        names = ", ".join(open_)
        ways.append(
            f"under data: write `fill: {{{form}}}` with values that anybody may know, add `indicator: [{names}]` for "
            "features that say which are missing, or `ignore` a column"
        )
    if fixed := [column for column in found if column not in features]:
        ways.append(f"fill in {' and '.join(fixed)}, or leave these records out of the file")
    message = f"{_list_missing(name, place, found)}; what stands for them is your choice: {'; '.join(ways)}"
    return InvalidArgument(next(iter(found)), message)


def refuse_missing_later(name: str, place: str, found: Mapping[str, Missing]) -> InvalidArgument:
    """Return the refusal of missing cells in a table for a model that is trained already, with what still helps."""
    why = "the model was trained without missing cells there, and `fill:` in its file would come too late"
    ways = f"write a value into these cells of {name}, or leave their records out"
    anew = "for a model that bears missing cells, add `fill:` or `indicator:` to the file and `dpfed run` it anew"
    return InvalidArgument(next(iter(found)), f"{_list_missing(name, place, found)}; {why}: {ways}; {anew}")


def _list_missing(name: str, place: str, found: Mapping[str, Missing]) -> str:
    listed = ", ".join(f"{column} ({each.count}, the first in {place} {each.line})" for column, each in found.items())
    return f"{name}: cells are missing in {listed}"


def _form(column: str, declared: Declared) -> str:
    return "CATEGORY" if column in declared.categories else "NUMBER"
