"""What was read from a table, written into a run file because its owner says that anybody may know it.

Each word is a decision of its own: ``bounds`` (and which columns hold numbers), ``categories`` (and which columns are
texts), ``classes``, ``sites`` (their names) and ``sizes`` (true counts, which turn the promise into one for replacing).

>>> from dpfed.data.tables import TextTable
>>> table = TextTable("ward.csv", {"age": ("61", "47"), "ill": ("no", "yes")}, (2, 3))
>>> draft = publish(TableDraft("ward.csv", ("age", "ill"), "ill"), table, ["classes"])
>>> draft.classes, draft.bounds
(('no', 'yes'), {})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from dpfed.config.drafts import PUBLIC, TableDraft
from dpfed.data.survey import CATEGORY, NUMBER, ColumnSurvey, count_values, survey_column
from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument

WORDS = ("bounds", "categories", "classes", "sites", "sizes")
MOST_CLASSES = 20


def publish(draft: TableDraft, table: TextTable, words: Collection[str]) -> TableDraft:
    """Return the draft with everything that is still open and that a word declares public.

    Privacy: what is added is read from the records, without noise. Whoever gives a word says that it is public.
    """
    made = replace(draft, found=draft.found | set(words))
    if "classes" in words and made.classes is None:
        made = replace(made, classes=find_classes(table, made.label))
    if "bounds" in words:
        made = publish_bounds(made, table)
    if "categories" in words:
        made = publish_categories(made, table)
    if {"bounds", "categories"} <= set(words):
        made = ignore_others(made, table)
    if "sites" in words and made.needs_sites and made.site_column is not None:
        made = replace(made, sites=tuple(sorted(set(table.complete(made.site_column)))))
    if "sizes" in words and made.sizes is None:
        made = replace(made, sizes=PUBLIC, counts=tuple(count_sizes(made, table).values()))
    return made


def publish_bounds(draft: TableDraft, table: TextTable) -> TableDraft:
    """Return the draft with the range of every open column that holds numbers, unless it may name persons."""
    found = [each for each in _survey_open(draft, table) if each.kind == NUMBER and not each.may_name_persons]
    return replace(draft, bounds={**draft.bounds, **{each.name: find_range(each) for each in found}})


def publish_categories(draft: TableDraft, table: TextTable) -> TableDraft:
    """Return the draft with the texts of every open column that holds few, unless they may name persons."""
    found = [each for each in _survey_open(draft, table) if each.kind == CATEGORY and not each.may_name_persons]
    return replace(draft, categories={**draft.categories, **{each.name: each.values for each in found}})


def ignore_others(draft: TableDraft, table: TextTable) -> TableDraft:
    """Return the draft without the open columns that cannot be features; one that may name persons stays open."""
    unfit = [each for each in _survey_open(draft, table) if not each.is_usable and not each.may_name_persons]
    return replace(draft, ignore=(*draft.ignore, *(each.name for each in unfit)))


def find_range(column: ColumnSurvey) -> tuple[float, float]:
    """Return the smallest and the largest number of a column, a little apart where they are the same."""
    low, high = column.low or 0.0, column.high or 0.0
    return (low, high) if low < high else (low, low + 1.0)


def find_classes(table: TextTable, label: str) -> tuple[str, ...]:
    """Return the values of the label in order; none if it is a quantity."""
    found = survey_column(table, label)
    counts = found.counts or count_values(table, label)
    is_whole = found.kind == NUMBER and all(_is_whole(value) for value in counts)
    if found.kind == NUMBER and (len(counts) > MOST_CLASSES or not is_whole):
        return ()
    if len(counts) > MOST_CLASSES:
        message = f"column {label} has more than {MOST_CLASSES} different texts, too many for classes"
        raise InvalidArgument("label", f"{message}: name another label")
    return replace(found, counts=counts).values


def count_sizes(draft: TableDraft, table: TextTable) -> dict[str, int]:
    """Return how many records, or persons, each site has; one count for a table without a column of sites."""
    length = len(table.lines)
    sites = ["all"] * length if draft.site_column is None else table.complete(draft.site_column)
    persons = range(length) if draft.person_column is None else table.complete(draft.person_column)
    return dict(Counter(site for site, _ in set(zip(sites, persons, strict=True))))


def _survey_open(draft: TableDraft, table: TextTable) -> list[ColumnSurvey]:
    return [survey_column(table, column) for column in draft.open_columns]


def _is_whole(text: str) -> bool:
    try:
        return float(text).is_integer()
    except ValueError:
        return False
