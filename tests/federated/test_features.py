from __future__ import annotations

from dpfed.config.data import Data
from dpfed.federated.features import name_features


def test_columns_that_are_no_features_are_left_out():
    data = Data(
        source="a.csv",
        label="y",
        ignore=["note"],
        person_column="patient",
        rows_per_person=2,
        indicator=["age"],
        categories={"sex": ["f", "m"]},
        partition={"kind": "column", "column": "site"},
    )
    columns = ["sex", "note", "patient", "site", "age", "y"]
    assert name_features(data, columns) == ("sex=f", "sex=m", "age", "age is missing")
