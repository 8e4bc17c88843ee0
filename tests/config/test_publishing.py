from __future__ import annotations

import pytest

from dpfed.config.drafts import TableDraft
from dpfed.config.publishing import WORDS, count_sizes, find_classes, publish
from dpfed.data.tables import TextTable
from dpfed.errors import InvalidArgument

ROWS = 40


def make_table(extra=()):
    rows = [
        (
            str(30 + n),
            "f" if n % 2 else "m",
            f"P{n // 2:04d}",
            "north" if n % 3 else "south",
            "ill" if n % 4 else "well",
        )
        for n in range(ROWS)
    ]
    columns = zip(*[*rows, *extra], strict=True)
    names = ("age", "sex", "patient", "site", "y")
    return TextTable("my.csv", dict(zip(names, columns, strict=True)), range(2, ROWS + 2 + len(extra)))


DRAFT = TableDraft("my.csv", ("age", "sex", "patient", "site", "y"), label="y", site_column="site")
# Neighbours: one record more that is unlike all others, in every column.
NEIGHBOUR = [("999", "x", "NEW", "east", "other")]


def test_each_word_publishes_its_own_fact_and_no_other():
    table = make_table()
    blank = DRAFT.to_yaml()
    assert publish(DRAFT, table, []).to_yaml() == blank
    assert publish(DRAFT, table, ["bounds"]).bounds == {"age": (30.0, 69.0)}
    assert publish(DRAFT, table, ["categories"]).categories == {"sex": ("f", "m")}
    assert publish(DRAFT, table, ["classes"]).classes == ("ill", "well")
    assert publish(DRAFT, table, ["sites"]).sites == ("north", "south")
    found = publish(DRAFT, table, ["sizes"])
    assert (found.sizes, found.sites, found.classes) == ("public", None, None)


def test_a_record_more_changes_nothing_in_the_file_unless_a_word_declares_it():
    assert publish(DRAFT, make_table(NEIGHBOUR), []).to_yaml() == publish(DRAFT, make_table(), []).to_yaml()
    for word in WORDS:
        others = [each for each in WORDS if each not in (word, "bounds", "categories")]
        before, after = (publish(DRAFT, table, others) for table in (make_table(), make_table(NEIGHBOUR)))
        field = {
            "bounds": "bounds",
            "categories": "categories",
            "classes": "classes",
            "sites": "sites",
            "sizes": "sizes",
        }
        assert getattr(before, field[word]) == getattr(after, field[word]) or word in others


def test_a_column_that_may_name_persons_stays_open():
    assert publish(DRAFT, make_table(), WORDS).open_columns == ("patient",)


def test_what_was_declared_is_kept():
    draft = TableDraft("my.csv", DRAFT.columns, "y", "site", bounds={"age": (0, 120)}, classes=("a",), sizes=7)
    found = publish(draft, make_table(), WORDS)
    assert (found.bounds["age"], found.classes, found.sizes) == ((0, 120), ("a",), 7)


def test_sizes_count_persons_where_a_column_names_them():
    assert sum(count_sizes(DRAFT, make_table()).values()) == ROWS
    persons = TableDraft("my.csv", DRAFT.columns, "y", person_column="patient")
    assert count_sizes(persons, make_table()) == {"all": ROWS // 2}


def test_classes_are_texts_or_few_whole_numbers():
    def label(cells):
        known = tuple(cells)
        return find_classes(TextTable("a.csv", {"y": known}, range(len(known))), "y")

    assert label(["10", "9", "2"]) == ("2", "9", "10")
    assert label(["0.5", "1"]) == ()
    assert label(map(str, range(30))) == ()
    with pytest.raises(InvalidArgument, match="more than 20"):
        label(f"text {n}" for n in range(60))
