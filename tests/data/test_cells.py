from __future__ import annotations

import pytest

from dpfed.data.cells import Kind, is_date, mixes_decimals, read_cells


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("1", Kind.NUMBER), ("-3e2", Kind.NUMBER), ("1_000", Kind.TEXT), ("", Kind.MISSING), ("N/A", Kind.MISSING),
        ("nan", Kind.MISSING), ("inf", Kind.INFINITE), ("-Infinity", Kind.INFINITE), ("12 kg", Kind.TEXT),
        ("1,5", Kind.COMMA), (",5", Kind.COMMA), ("1.234,5", Kind.TEXT), ("1,2,3", Kind.TEXT),
    ],
)  # fmt: skip
def test_a_cell_is_what_it_says(cell, kind):
    assert read_cells([cell], has_decimal_comma=True).kinds.tolist() == [kind]
    assert read_cells(["7", cell], has_decimal_comma=True).kinds.tolist() == [Kind.NUMBER, kind]


def test_a_comma_is_no_decimal_where_it_separates_cells():
    assert read_cells(["1,5"]).kinds.tolist() == [Kind.TEXT]


def test_a_cell_means_the_same_beside_any_other():
    alone = read_cells(["61,5"], has_decimal_comma=True).values[0]
    for other in ("1.5", "x", "", "inf"):
        assert read_cells([other, "61,5"], has_decimal_comma=True).values[1] == alone


def test_two_kinds_of_decimals_are_noticed():
    cells = ["1.5", "2,5"]
    assert mixes_decimals(cells, read_cells(cells, has_decimal_comma=True))
    assert not mixes_decimals(["1", "2,5"], read_cells(["1", "2,5"], has_decimal_comma=True))


@pytest.mark.parametrize("cell", ["2024-05-31", "2024-05-31 12:00:01", "31.05.2024", "5/31/24", "2024/5/31"])
def test_days_are_recognised(cell):
    assert is_date(cell)


@pytest.mark.parametrize("cell", ["2024", "1.5", "north", "12-34", ""])
def test_other_texts_are_no_days(cell):
    assert not is_date(cell)
