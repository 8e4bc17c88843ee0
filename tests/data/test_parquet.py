from __future__ import annotations

import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dpfed.data.parquet import read_parquet
from dpfed.data.sources import load
from dpfed.data.tables import read_table
from dpfed.errors import InvalidArgument

DECLARED = {"classes": ["no", "yes"], "categories": {"sex": ["f", "m"]}, "groups": ["ward"]}


@pytest.fixture
def written(tmp_path):
    def write(columns):
        table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
        parquet.write_table(table, tmp_path / "ward.parquet")
        return tmp_path / "ward.parquet"

    return write


def test_a_parquet_file_holds_the_same_records_as_the_csv_file(written, tmp_path):
    path = written({"age": [61, 47], "sex": ["f", "m"], "ward": ["north", "south"], "ill": ["yes", "no"]})
    (tmp_path / "ward.csv").write_text("age,sex,ward,ill\n61,f,north,yes\n47,m,south,no\n")
    ours, theirs = (
        table.records("ill", **DECLARED) for table in (read_parquet(path), read_table(tmp_path / "ward.csv"))
    )
    assert np.array_equal(ours.features, theirs.features)
    assert (ours.columns, ours.classes, ours.labels.tolist()) == (theirs.columns, theirs.classes, [1, 0])
    assert ours.groups["ward"].tolist() == ["north", "south"]


def test_numbers_keep_every_bit(written):
    values = [0.1, 1e-300, 1 / 3, -0.0]
    records = read_parquet(written({"x": values, "y": [0, 1, 0, 1]})).records("y")
    assert records.features.tobytes() == np.array(values)[:, None].tobytes()


def test_text_that_is_a_number_in_arrow_types_is_found_by_its_declared_values(written):
    table = pyarrow.table({"x": [1.0, 2.0], "y": pyarrow.array(["a", "b"]).dictionary_encode()})
    assert read_parquet(written(table)).records("y", classes=["b", "a"]).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"x": [1.0, None], "y": [0, 1]}, "ward.parquet: cells are missing in x .1, the first in row 2"),
        ({"x": [1.0, float("inf")], "y": [0, 1]}, "row 2, column x: the cell is not a finite number"),
        ({"x": [1.0, float("nan")], "y": [0, 1]}, "missing in x .1, the first in row 2"),
        ({"x": [[1.0], [2.0]], "y": [0, 1]}, "row 1, column x: the cell is not a finite number"),
        ({"x": ["secret", "b"], "y": [0, 1]}, "row 1, column x: the cell is not a finite number"),
    ],
)
def test_a_cell_that_is_no_number_is_refused_with_its_row_and_not_shown(written, columns, what):
    with pytest.raises(InvalidArgument, match=what) as refusal:
        read_parquet(written(columns)).records("y")
    assert "secret" not in str(refusal.value)


def test_columns_of_one_name_and_no_records_are_refused(written):
    twice = pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["x", "x"])
    for table in (twice, {"x": [], "y": []}):
        with pytest.raises(InvalidArgument, match="a different name for each column, and at least one record"):
            read_parquet(written(table))


def test_a_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"x,y\n1,2\n" * 4)
    with pytest.raises(InvalidArgument, match=r"a\.parquet is not a Parquet file"):
        read_parquet(tmp_path / "a.parquet")
    with pytest.raises(InvalidArgument, match="cannot be read: No such file"):
        read_parquet(tmp_path / "b.parquet")


def test_without_pyarrow_the_refusal_says_what_to_install(written, monkeypatch):
    path = written({"x": [1.0], "y": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidArgument, match=r"needs pyarrow: pip install dpfed\[data\]"):
        read_parquet(path)


def test_a_source_that_ends_in_parquet_is_read(written):
    path = written({"x": [1.0], "y": [0]})
    assert load("ward.parquet", label="y", directory=path.parent).features.tolist() == [[1.0]]
    with pytest.raises(InvalidArgument, match=r"label must name the column of ward\.parquet"):
        load("ward.parquet", directory=path.parent)


def test_a_few_bytes_that_stand_for_more_cells_than_a_machine_holds_are_refused(written, monkeypatch):
    monkeypatch.setattr("dpfed.data.parquet.MOST_CELLS", 99)
    with pytest.raises(InvalidArgument, match="has more than 99 cells"):
        read_parquet(written({"x": [1.0] * 50, "y": [1.0] * 50}))
