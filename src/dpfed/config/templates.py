"""A first configuration to change: the five hospitals of the demo, or what fits a CSV file.

What is in your file is private until you say otherwise. Ranges of columns are left to fill in; the names of classes
and categories are needed to read the file and are written with a warning; sizes are the true counts only under
``sizes: public``, which says so.

>>> hospitals().config.data.names
('north', 'south', 'east', 'west', 'harbour')
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfed.config.run import RunConfig
from dpfed.config.writing import Notes
from dpfed.config.yaml12 import dump
from dpfed.data.tables import TextTable, read_table
from dpfed.errors import InvalidArgument

HEADER = """\
# A run of dpfed. Everything in this file is public.
# What is at its default is commented out: remove the # in the first column to change it.

"""
FOUND = "Found in the file, so it is NOT PRIVATE until you have checked that anybody may know it: "
TEST_FRACTION = 0.2
MOST_CLASSES = 20
MOST_CATEGORIES = 50
FEWEST_CATEGORIES = 3  # that a short file may have as well
ROWS_PER_PERSON = 10

# The range in which each of the thirty measurements is expected, as constants that anybody may know: round numbers of
# the size of a cell nucleus. A real study takes the ranges of its device.
_RANGES = """8 22, 10 30, 50 150, 150 1300, .07 .13, 0 .25, 0 .3, 0 .15, .12 .25, .05 .08,
    0 1, 0 3, 0 8, 0 120, 0 .015, 0 .08, 0 .1, 0 .03, 0 .04, 0 .01,
    8 28, 12 42, 50 190, 200 2000, .08 .19, 0 .7, 0 .8, 0 .25, .15 .45, .05 .13"""


@dataclass(frozen=True)
class Template:
    """A configuration to begin with, and notes on some of its settings."""

    config: RunConfig
    notes: Notes = field(default_factory=dict)

    def to_yaml(self) -> str:
        """Return the template as a commented YAML file."""
        return HEADER + self.config.to_yaml(self.notes)


def hospitals() -> Template:
    """Return five unequal hospitals with scikit-learn's breast-cancer data and ε = 4 for each record."""
    data = {
        "source": "sklearn:breast_cancer",
        "feature_bounds": [[float(end) for end in pair.split()] for pair in _RANGES.split(",")],
        "partition": {"kind": "quantity", "sizes": [182, 114, 68, 55, 36]},
        "names": ["north", "south", "east", "west", "harbour"],
        "test_is_public": True,
    }
    notes = {
        "data.feature_bounds": ["Round numbers of the size of a cell nucleus, not taken from the patients."],
        "data.partition.sizes": ["They are also what each hospital declares, as data.sizes is not given."],
    }
    common = _make_common("hospitals", data, batch_size=16, learning_rate=1.0)
    return Template(RunConfig.of(common | {"weighting": "declared"}), notes)


TEMPLATES = {"hospitals": hospitals}


def from_csv(
    path: str | Path,
    label: str,
    site_column: str,
    sizes: Mapping[str, int] | int | None = None,
    source: str = "",
    *,
    person_column: str | None = None,
    rows_per_person: int = ROWS_PER_PERSON,
) -> Template:
    """Return a configuration for a CSV file; `source` is the file's name as the configuration names it.

    With a `person_column` the promise is for one person, of whom at most `rows_per_person` rows are used.
    """
    table = read_table(path)
    special = {"label": label, "site_column": site_column, "person_column": person_column}
    for name, column in special.items():
        if column is not None:
            table.require(column, name)
    features = [column for column in table.columns if column not in special.values()]
    numbers = {column: _read_numbers(table, column) for column in [*features, label]}
    words = {column: sorted(set(table.complete(column))) for column in features if numbers[column] is None}
    ignored = [column for column, values in words.items() if _is_private(values, len(table.lines))]
    data = {
        "source": source or str(path),
        "label": label,
        "classes": _find_classes(table, label, numbers[label]),
        "categories": {column: values for column, values in words.items() if column not in ignored},
        "ignore": ignored,
        "person_column": person_column,
        "rows_per_person": None if person_column is None else rows_per_person,
        "partition": {"kind": "column", "column": site_column},
        "names": sorted(set(table.complete(site_column))) if isinstance(sizes, int) else [],
        "sizes": "public" if sizes is None else sizes,
    }
    values = _make_common(Path(path).stem, data, _choose_batch_size(table, site_column, sizes, person_column))
    if person_column is not None:
        values["privacy"] = {"style": "sample", "person": values["privacy"]["record"]}
    if not data["classes"]:
        values["model"] |= {"options": {"classes": 1}, "loss": "mse", "metric": "mse"}
    return Template(
        RunConfig.of(values), _write_notes(data, [column for column in features if numbers[column] is not None])
    )


def _make_common(name: str, data: dict[str, Any], batch_size: int, learning_rate: float = 0.5) -> dict[str, Any]:
    return {
        "name": name,
        "data": data | {"test_fraction": TEST_FRACTION},
        "model": {"kind": "logistic"},
        "rounds": 10,
        "local": {"steps": 10, "batch_size": batch_size, "learning_rate": learning_rate},
        "privacy": {"style": "sample", "record": {"epsilon": 4.0, "delta": 1e-5, "clip_norm": 1.0}},
    }


def _read_numbers(table: TextTable, column: str) -> list[float] | None:
    table.complete(column)  # a missing cell is refused, not taken for text
    try:
        return [float(value) for value in table.numbers(column)]
    except InvalidArgument:
        return None


def _is_private(values: Sequence[str], records: int) -> bool:
    """Return whether texts are too many for categories, or mostly unique to a record: names, numbers, notes."""
    return len(values) > min(MOST_CATEGORIES, max(records // 2, FEWEST_CATEGORIES))


def _find_classes(table: TextTable, label: str, numbers: Sequence[float] | None) -> list[str]:
    """Return the values of the label in order; an empty list if it is a quantity."""
    values = set(table.columns[label])
    if numbers is not None and (len(values) > MOST_CLASSES or any(not value.is_integer() for value in numbers)):
        return []
    if len(values) > MOST_CLASSES:
        raise InvalidArgument(
            "label",
            f"column {label} has more than {MOST_CLASSES} different texts, too many for classes: name another label",
        )
    return sorted(values, key=float if numbers is not None else str)


def _choose_batch_size(
    table: TextTable, site_column: str, sizes: Mapping[str, int] | int | None, person_column: str | None
) -> int:
    """Return 16, or the smallest size if that is less: the declared one, or the true one, which is then public."""
    if isinstance(sizes, int):
        return min(16, sizes)
    sites = table.complete(site_column)
    persons = range(len(sites)) if person_column is None else table.complete(person_column)
    counts = sizes or Counter(site for site, _ in set(zip(sites, persons, strict=True)))
    kept = [count if sizes else count - round(TEST_FRACTION * count) for count in counts.values()]
    return min(16, *kept)


def _write_notes(data: Mapping[str, Any], columns: Sequence[str]) -> dict[str, list[str]]:
    # The oldest patient's age is that patient's: a range is never copied from the records, not even as a comment.
    form = ", ".join(f"{dump(column)}: [low, high]" for column in columns)
    notes = {
        "data.classes": [FOUND + "a class that few records have tells of them."],
        "data.categories": [FOUND + "a category that few records have tells of them."],
        "data.names": [FOUND + "a site with few records tells of them."],
        "data.rows_per_person": ["To change to what is usual: the longest history in the file is one person's."],
        "data.ignore": [
            f"Columns of text with more than {MOST_CATEGORIES} different values, or with mostly different ones; if one "
            "names the person of each row, use --person-column."
        ],
        "data.feature_bounds": [
            "To fill in with what is publicly known, such as the range of the device; a range or mean computed from "
            "the records is NOT PRIVATE. Without it features are used as they are, and the model may not learn.",
            f"feature_bounds: {{{form}}}",
        ],
        "data.test_is_public": [
            "Leave it false unless anybody may know these records: an exact score gives their number away, and a mean "
            "square error what one of them is."
        ],
        "data.sizes": [
            "Declare what each site publishes, such as {north: 180, south: 60}, to protect being there at all."
        ],
    }
    shown = {"data.feature_bounds": form, "data.sizes": data["sizes"] == "public", "data.test_is_public": True}
    return {key: lines for key, lines in notes.items() if shown.get(key, data.get(key.removeprefix("data.")))}
