from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dpfed.data.sources import CLIENT, from_object, load
from dpfed.errors import InvalidArgument


def test_a_torch_dataset_is_read_like_arrays():
    import torch

    images, labels = torch.arange(24.0).reshape(6, 1, 2, 2), torch.arange(6)
    for dataset in (torch.utils.data.TensorDataset(images, labels), list(zip(images, range(6), strict=True))):
        records = load(dataset)
        assert np.array_equal(records.features, images.numpy())
        assert records.labels.tolist() == list(range(6))


def test_parts_by_client_keep_their_names():
    records = from_object({"north": ([[1.0]], [0]), "south-east": ([[2.0], [3.0]], [1, 0])})
    assert records.groups[CLIENT].tolist() == ["north", "south-east", "south-east"]
    assert records.features.ravel().tolist() == [1, 2, 3]


def test_an_own_loader_gets_its_options(tmp_path):
    (tmp_path / "own_loader_b.py").write_text("def wards(n):\n    return [[0.0]] * n, [1] * n\n")
    assert len(load("own_loader_b:wards", options={"n": 4}, directory=tmp_path)) == 4


def test_a_csv_file_is_looked_up_beside_the_configuration(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    assert len(load("a.csv", label="y", directory=tmp_path)) == 1


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("sklearn:mnist", "write one of breast_cancer"),
        ("data.xlsx", "must be a file that ends in .csv or .tsv or .parquet, image-folder:PATH"),
        ("a.csv", "label must name"),
        ("math:sqrt", None),
        (7, "got a value of type int"),
        ([1, 2], "must be a pair"),
        ([], "there must be at least one item"),
        ({}, "at least one client"),
        ([([1.0], 0), ([1.0, 2.0], 0)], "do not have one shape"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "different lengths"),
        ({"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [0])}, "the records of b"),
    ],
)
def test_what_is_no_source_is_refused(source, what):
    with pytest.raises((InvalidArgument, TypeError), match=what):
        load(source)


def test_torch_is_not_loaded_to_read_data():
    code = (
        "import sys; from dpfed.data.sources import load; load(([[1.0]], [0]));"
        "from dpfed.config import RunConfig; import dpfed.federated.data; print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


FAILING = """
import numpy as np
import pandas as pd

TABLE = pd.DataFrame({"age": ["MARKER1", "MARKER2"]})


def raises():
    raise ValueError("cannot read MARKER1")


def converts():
    return TABLE["age"].astype(float), [0, 1]


def table():
    return TABLE


def texts():
    return {"ward": (["MARKER1"], ["MARKER2"])}


def object_():
    return object()


def ragged():
    return [(["MARKER1"], 1), (["MARKER1", "MARKER2"], 1)]


def wants(path):
    return path


nothing = "MARKER1"
"""


@pytest.mark.parametrize("name", ["raises", "converts", "table", "texts", "object_", "ragged", "wants", "nothing"])
def test_a_loader_that_fails_is_refused_and_what_it_says_is_not_shown(tmp_path, name):
    (tmp_path / "clinic.py").write_text(FAILING)
    with pytest.raises(InvalidArgument) as refused:
        load(f"clinic:{name}", directory=tmp_path)
    assert "MARKER" not in str(refused.value)
