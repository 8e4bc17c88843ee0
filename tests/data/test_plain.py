from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.data import tables
from dpfed.data.cells import read_cells
from dpfed.data.plain import PlainColumns, split_plain
from dpfed.errors import InvalidArgument

CELLS = st.text("0123456789.-+e_,anif ", max_size=20)
NUMBERS = st.from_regex(r"-?[0-9]{0,12}\.?[0-9]{0,12}", fullmatch=True)


def read_both(tmp_path, text: str) -> list:
    """Return what the reader of tables makes of a text, and what it does without the short way."""
    path = tmp_path / "t.csv"
    path.write_text(text, newline="")
    found = []
    separator = tables.find_separator(text.partition("\n")[0])
    for read in (lambda: tables.read_table(path), lambda: tables._read_any("t.csv", text, separator, 1)):
        try:
            table = read()
            found.append((dict(table.columns), list(table.lines), {name: table.cells(name) for name in table.columns}))
        except InvalidArgument as error:
            found.append(str(error))
    return found


def require_alike(short, long) -> None:
    if isinstance(long, str):
        assert short == long
        return
    assert short[:2] == long[:2]
    for name, cells in long[2].items():
        assert short[2][name].values.tobytes() == cells.values.tobytes()
        assert short[2][name].kinds.tobytes() == cells.kinds.tobytes()


@given(rows=st.lists(st.lists(CELLS, min_size=1, max_size=3), min_size=1, max_size=5), ends=st.booleans())
def test_any_text_is_read_or_refused_as_the_long_way_does(tmp_path_factory, rows, ends):
    text = "\n".join(["a,b", *(",".join(row) for row in rows)]) + ("\n" if ends else "")
    require_alike(*read_both(tmp_path_factory.mktemp("t"), text))


@given(cells=st.lists(NUMBERS, min_size=1, max_size=8))
def test_plain_numbers_are_read_to_the_last_bit(cells):
    found = split_plain("\n".join(["a,b", *(f"{cell},x" for cell in cells)]), ",")
    numbers = found.read_numbers("a")
    if numbers is not None:
        assert numbers.tobytes() == np.array(list(map(float, cells))).tobytes()
        assert numbers.tobytes() == read_cells(cells).values.tobytes()


@pytest.mark.parametrize("cell", ["61.5", "-0", "0.1", ".5", "5.", "999999999999999", "-1.23456789012345", "007"])
def test_usual_numbers_take_the_short_way(cell):
    assert split_plain(f"a\n{cell}\n", ",").read_numbers("a").tobytes() == np.array([float(cell)]).tobytes()


@pytest.mark.parametrize(
    "cell", ["", "-", ".", "-.", "1.2.3", "--1", "1-", "+1", "1e5", "1_0", "nan", "inf", "1234567890123456", "1,5", "x"]
)
def test_any_other_cell_leaves_its_column_to_the_long_way(cell):
    assert split_plain(f"a;b\n{cell};1\n2;1\n", ";").read_numbers("a") is None


@pytest.mark.parametrize(
    "text",
    [
        "a,b\n1,2\n\n3,4\n",  # a line without content is passed over
        "a,b\n,\n3,4\n",
        "a,b\n1\n2,3,4\n",  # as many separators as there should be
        "a,b\n1,2,3\n",
        "a,a\n1,2\n",
        "a,\n1,2\n",
        "a,b\n",
        "",
        "\na,b\n1,2\n",
        "a,b\r\n1,2\r\n",
        'a,b\n"1",2\n',
        "a,b\n1, 2\n",
        "a,b\n1,é\n",
    ],
)
def test_anything_but_a_plain_table_is_left_to_the_long_way(tmp_path, text):
    assert split_plain(text, ",") is None
    require_alike(*read_both(tmp_path, text))


def test_a_cell_that_is_longer_than_csv_allows_is_refused_as_ever(tmp_path):
    text = f"a,b\n1,{'2' * (csv.field_size_limit() + 1)}\n"
    with pytest.raises(csv.Error):
        list(csv.reader(io.StringIO(text)))
    short, long = read_both(tmp_path, text)
    assert short == long
    assert "this is not CSV" in short


def test_lines_count_from_the_declaration_of_a_separator(tmp_path):
    (tmp_path / "t.csv").write_text("sep=;\na;b\n1;x\n2;y\n")
    table = tables.read_table(tmp_path / "t.csv")
    assert isinstance(table.columns, PlainColumns)
    assert list(table.lines) == [3, 4]
