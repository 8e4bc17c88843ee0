from __future__ import annotations

import pytest

from dpfed.data.survey import count_values, survey, survey_column
from dpfed.data.tables import TextTable


def column(cells, separator=","):
    return survey_column(TextTable("a.csv", {"x": tuple(cells)}, range(2, len(cells) + 2), separator=separator), "x")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "2.5", ""], "number"),
        (["f", "m", "f", "m"], "category"),
        (["2024-01-02", "2024-02-03", "2024-03-04"], "date"),
        ([f"note {n}" for n in range(20)], "text"),
        (["", "NA"], "empty"),
        (["1", "2", "inf"], "broken"),
        (["1", "2", "three"], "broken"),
    ],
)
def test_a_column_is_what_most_of_its_cells_are(cells, kind):
    assert column(cells).kind == kind


def test_one_infinite_cell_says_so_and_where():
    found = column(["1", "2", "inf"])
    assert (found.why, found.detail) == ("some cells are infinite", "1 of them, the first in line 4")


def test_decimal_commas_are_noted():
    found = column(["1,5", "2,5"], separator=";")
    assert (found.kind, found.note, found.low, found.high) == ("number", "decimal commas", 1.5, 2.5)
    assert column(["1,5", "2.5"], separator=";").why == "decimal commas beside decimal points"


@pytest.mark.parametrize("name", ["patient", "patient_id", "ID", "subject no", "mrn", "customer_key"])
def test_a_name_that_is_usual_for_persons_is_noticed(name):
    (found,) = survey(TextTable("a.csv", {name: ("1", "2")}, (2, 3)))
    assert found.may_name_persons


@pytest.mark.parametrize("name", ["age", "width", "valid", "sodium"])
def test_other_names_are_not(name):
    (found,) = survey(TextTable("a.csv", {name: ("1", "2")}, (2, 3)))
    assert not found.may_name_persons


def test_codes_that_are_many_may_name_persons():
    assert column([f"P{n:04d}" for n in range(40)]).may_name_persons


def test_values_are_in_order_and_missing_ones_not_counted():
    table = TextTable("a.csv", {"y": ("10", "9", "", "9")}, (2, 3, 4, 5))
    assert count_values(table, "y") == {"10": 1, "9": 2}


def test_nothing_of_a_record_is_in_the_text_form():
    assert "17" not in repr(column(["17", "18"]))
