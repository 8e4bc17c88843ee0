from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet
import pytest

pytestmark = pytest.mark.usefixtures("flowers")  # a finished run on iris.csv, in a folder of its own


def read(text):
    return list(csv.DictReader(text.splitlines()))


def test_each_record_gets_a_class_and_probabilities(dpfed):
    result = dpfed("predict flowers-1 iris.csv")
    assert result.exit_code == 0, result.output
    rows = read(result.stdout)
    assert len(rows) == len(Path("iris.csv").read_text().splitlines()) - 1
    names = [name for name in rows[0] if name.startswith("p(")]
    for row in rows:
        assert sum(float(row[name]) for name in names) == pytest.approx(1, abs=1e-5)
        assert max(names, key=lambda name: float(row[name])) == f"p({row['prediction']})"


def test_predictions_need_neither_the_label_nor_the_training_table(dpfed):
    before = read(dpfed("predict flowers-1 iris.csv").stdout)
    table = list(csv.DictReader(Path("iris.csv").read_text().splitlines()))
    features = json.loads(Path("runs/flowers-1/features.json").read_text())
    with Path("new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, features[::-1], extrasaction="ignore", delimiter=";")
        writer.writeheader()
        writer.writerows(table)
    Path("iris.csv").unlink()
    assert read(dpfed("predict flowers-1 new.csv").stdout) == before


def test_a_file_is_written_as_csv_or_parquet(dpfed):
    assert dpfed("predict flowers-1 iris.csv -o said.csv").exit_code == 0
    assert dpfed("predict flowers-1 iris.csv -o said.parquet").exit_code == 0
    said = pyarrow.parquet.read_table("said.parquet").to_pydict()
    assert said["prediction"] == [row["prediction"] for row in read(Path("said.csv").read_text())]
    assert "exists: use --force" in dpfed("predict flowers-1 iris.csv -o said.csv").output


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("predict flowers-1 iris.txt", "TABLE must end in .csv"),
        ("predict flowers-1 iris.csv -o said.xls", "--output must end in .csv or .parquet"),
        ("predict flowers-1 iris.csv -o no/said.csv", "make it first"),
        ("predict flowers-1 no.csv", "cannot be read"),
        ("predict flowers-1 iris.csv --keep z", "has no column 'z'"),
        ("predict nothing iris.csv", "holds no run"),
        ("predict empty iris.csv", "holds no run"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(dpfed, line, what):
    result = dpfed(line)
    assert result.exit_code == 2
    assert what in result.output
    assert len(result.output.splitlines()) == 1
