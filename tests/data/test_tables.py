from __future__ import annotations

import pytest

from dpfed.data.tables import read_table
from dpfed.errors import InvalidArgument

WARD = 'age,sex,hospital,"note, long",ill\n61,f,north,x,yes\n47,m,south,y,no\n'


@pytest.fixture
def table(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "ward.csv"
        path.write_bytes(text.encode(encoding))
        return read_table(path)

    return write


def test_columns_become_features_labels_and_groups(table):
    records = table(WARD).records(
        "ill", classes=["no", "yes"], categories={"sex": ["m", "f", "x"]}, groups=["hospital"], ignore=["note, long"]
    )
    assert records.columns == ("age", "sex=m", "sex=f", "sex=x")
    assert records.features.tolist() == [[61, 0, 1, 0], [47, 1, 0, 0]]
    assert records.labels.tolist() == [1, 0]
    assert records.groups["hospital"].tolist() == ["north", "south"]
    assert records.classes == ("no", "yes")


def test_a_label_without_classes_is_a_number(table):
    assert table("a,y\n1,0.5\n2,-3e2\n").records("y").labels.tolist() == [0.5, -300.0]


def test_classes_that_are_numbers_are_compared_as_they_are_written(table):
    assert table("a,y\n1,2\n2,1\n").records("y", classes=[1, 2]).labels.tolist() == [1, 0]


def test_what_a_spreadsheet_adds_is_no_trouble(table):
    text = "\ufeffage , y\r\n 61 ,0\r\n\r\n47,1\r\n,\r\n"
    assert table(text).records("y").features.tolist() == [[61], [47]]


@pytest.mark.parametrize("cell", ["", "  ", "NA", "nan", "NaN", "null", "None", "?", "n/a"])
def test_a_missing_cell_is_refused_with_line_and_column(table, cell):
    with pytest.raises(
        InvalidArgument, match=r"ward.csv: cells are missing in age \(1, the first in line 3\).*`fill: \{age: NUMBER\}`"
    ):
        table(f"age,y\n1,0\n{cell},1\n").records("y")


@pytest.mark.parametrize("column", ["sex", "site", "y"])
def test_a_missing_cell_is_refused_in_every_kind_of_column(table, column):
    row = {"age": "1", "sex": "f", "site": "n", "y": "1"}
    lines = [",".join(row), ",".join(row.values()), ",".join((row | {column: ""}).values())]
    with pytest.raises(InvalidArgument, match=rf"missing in {column} \(1, the first in line 3\)"):
        table("\n".join(lines)).records("y", classes=["1"], categories={"sex": ["f"]}, groups=["site"])


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1_000", "12 kg", "0x10", "1,5"])
def test_a_cell_that_is_no_number_is_refused_and_not_shown(table, cell):
    with pytest.raises(InvalidArgument, match=r"line 2, column age: the cell is not a finite number") as refused:
        table(f'age,y\n"{cell}",0\n').records("y")
    assert cell not in str(refused.value)


def test_a_category_that_was_not_declared_is_refused_and_not_shown(table):
    with pytest.raises(InvalidArgument, match=r"line 3, column sex: the cell is none of the declared f") as refused:
        table("sex,y\nf,0\nsecret,0\n").records("y", categories={"sex": ["f"]})
    assert "secret" not in str(refused.value)


def test_the_line_counts_cells_that_run_over_several_lines(table):
    with pytest.raises(InvalidArgument, match=r"age .1, the first in line 5"):
        table('note,age,y\n"two\nlines",1,0\n\nx,,0\n').records("y", ignore=["note"])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "line of column names"),
        ("a,y\n", "at least one record"),
        ("a,a,y\n1,2,3\n", "a different name, and column 2 has the name of another"),
        ("a,,y\n1,2,3\n", "a different name, and column 2 has none"),
        ("a,y\n1,2,3\n", "line 2: 3 cells under 2 column names"),
        ("a,y\n1\n", "line 2: 1 cells under 2"),
        ('a,y\n"1,2\n', "line 2: this is not CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused(table, text, what):
    with pytest.raises(InvalidArgument, match=what):
        table(text)


def test_all_missing_cells_are_counted_at_once(table):
    text = "age,sex,site,y\n,f,n,1\n2,,n,\n,,n,1\n"
    with pytest.raises(InvalidArgument) as refused:
        table(text).records("y", classes=["1"], categories={"sex": ["f"]}, groups=["site"])
    for part in ("age (2, the first in line 2)", "sex (2, the first in line 3)", "y (1, the first in line 3)"):
        assert part in str(refused.value)
    assert "`fill: {age: NUMBER, sex: CATEGORY}`" in str(refused.value)


def test_missing_cells_are_filled_by_what_is_declared(table):
    text = "age,sex,y\n,f,1\n2,,1\n3,m,1\n"
    filled = table(text).records(
        "y", classes=["1"], categories={"sex": ["f", "m"]}, fill={"age": "50", "sex": "m"}, indicator=["age"]
    )
    assert filled.columns == ("age", "age is missing", "sex=f", "sex=m")
    assert filled.features.tolist() == [[50, 1, 1, 0], [2, 0, 0, 1], [3, 0, 0, 1]]
    marked = table(text).records("y", classes=["1"], categories={"sex": ["f", "m"]}, fill={"age": 0}, indicator=["sex"])
    assert marked.features.tolist() == [[0, 1, 0, 0], [2, 0, 0, 1], [3, 0, 1, 0]]


def test_a_declared_category_that_is_called_none_is_not_missing(table):
    records = table("drinks,y\nnone,1\nsome,1\n").records("y", classes=["1"], categories={"drinks": ["none", "some"]})
    assert records.features.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("separator", [";", "\t", "|", ":", " "])
def test_any_separator_of_the_first_line_is_taken(table, separator):
    text = "age,weight,y\n61,72.5,0\n47,80.25,1\n".replace(",", separator)
    assert table(text).records("y").features.tolist() == [[61, 72.5], [47, 80.25]]


def test_a_first_line_of_excel_declares_the_separator(table):
    found = table("sep=;\nage;y\n1,5;0\n;1\n")
    assert found.columns["age"] == ("1,5", "")
    with pytest.raises(InvalidArgument, match="the first in line 4"):
        found.records("y")


def test_a_decimal_comma_is_read_where_commas_do_not_separate(table):
    assert table("age;y\n61,5;0\n-3,25e1;1\n47;0\n").records("y").features.ravel().tolist() == [61.5, -32.5, 47]


def test_decimal_commas_beside_decimal_points_are_refused(table):
    with pytest.raises(InvalidArgument, match="decimal commas and decimal points") as refused:
        table("age;y\n61,5;0\n61.5;1\n").records("y")
    assert "61" not in str(refused.value)


def test_a_file_in_latin_1_is_read_and_one_that_is_not_there_refused(table, tmp_path):
    assert table("größe,y\n1,2\n", encoding="latin-1").records("y").columns == ("größe",)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_table(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    "columns",
    [{"label": "z"}, {"groups": ["z"]}, {"ignore": ["z"]}, {"categories": {"z": ["1"]}}, {"ignore": ["age"]},
     {"categories": {"y": ["0"]}}, {"categories": {"age": ["1", "1"]}}],
)  # fmt: skip
def test_columns_that_do_not_fit_the_file_are_refused(table, columns):
    with pytest.raises(InvalidArgument):
        table("age,y\n1,0\n").records(**{"label": "y", **columns})


@pytest.mark.parametrize("text", ["MARKER1,MARKER2\nMARKER3,MARKER4\n", "MARKER1,MARKER1\n1,2\n", "a,y\nMARKER1,2\n"])
def test_a_refusal_shows_no_cell_and_no_name_of_a_column_but_one_like_what_was_asked_for(table, text):
    with pytest.raises(InvalidArgument) as refused:
        table(text).records("y", classes=["1"])
    assert "MARKER" not in str(refused.value)


def test_a_column_that_is_misspelt_is_answered_by_the_right_one(table):
    with pytest.raises(InvalidArgument, match="no column 'labl': did you mean 'label'"):
        table("age,label\n1,2\n").records("labl")
