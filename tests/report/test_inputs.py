from __future__ import annotations

from dpfed.config.data import Data
from dpfed.report.inputs import list_inputs, write_snippet

BASE = {"source": "a.csv", "label": "y", "partition": {"kind": "iid", "clients": 1}, "categories": {"s": ["f", "m"]}}


def test_each_input_says_how_it_is_made():
    data = Data(**BASE, feature_bounds={"age": [0, 100]}, indicator=["age", "s"])
    made = list_inputs(data, ["age", "age is missing", "s=f", "s=m", "s is missing"])
    assert made == [
        {"feature": "age", "column": "age", "fill": 50.0, "low": 0.0, "high": 100.0},
        {"feature": "age is missing", "column": "age", "is_missing": True},
        {"feature": "s=f", "column": "s", "category": "f"},
        {"feature": "s=m", "column": "s", "category": "m"},
        {"feature": "s is missing", "column": "s", "is_missing": True},
    ]


def test_every_way_of_scaling_is_written_out():
    features = ["age", "s=f", "s=m"]
    assert all(each["low"] == 0 for each in list_inputs(Data(**BASE, feature_bounds=[0, 8]), features))
    each = Data(**BASE, feature_bounds=[[0, 8], [0, 1], [0, 2]])
    assert [part["high"] for part in list_inputs(each, features)] == [8, 1, 2]
    standard = Data(**BASE, mean=[1, 2, 3], scale=4)
    assert [(part["mean"], part["scale"]) for part in list_inputs(standard, features)] == [(1, 4), (2, 4), (3, 4)]


def test_only_models_of_linear_layers_have_a_program():
    assert "load_file" in write_snippet("mlp", "m.safetensors", "m.json", has_inputs=True)
    assert write_snippet("cnn", "m.safetensors", "m.json", has_inputs=True) == ""
    assert write_snippet("mlp", "m.safetensors", "m.json", has_inputs=False) == ""
