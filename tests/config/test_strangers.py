from __future__ import annotations

import gzip
import io
import json

import numpy as np
import pytest
from PIL import Image

from dpfed.config import RunConfig
from dpfed.config.strangers import COMMON, DECISIVE, LARGEST
from dpfed.errors import InvalidArgument

PATIENTS = "name,age,ill\n" + "".join(f"MARKER{number},{number},yes\n" for number in range(1200))


def image(kind):
    stream = io.BytesIO()
    Image.new("L", (4, 4)).save(stream, kind)
    return stream.getvalue()


def parquet():
    import pyarrow
    from pyarrow import parquet

    stream = io.BytesIO()
    parquet.write_table(pyarrow.table({"name": ["MARKER1", "MARKER2"]}), stream)
    return stream.getvalue()


def array():
    stream = io.BytesIO()
    np.save(stream, np.array(["MARKER1"]))
    return stream.getvalue()


STRANGERS = {
    "a table (CSV)": PATIENTS.encode(),
    "a table (CSV) ": PATIENTS.replace(",", ";").encode(),
    "a table (CSV)  ": PATIENTS.replace(",", "\t").encode(),
    "a table (CSV)   ": b"\xef\xbb\xbf" + PATIENTS.encode(),
    "a table (CSV)    ": b"name: first,age\nMARKER1: a,1\n",
    "a PNG image": image("PNG"),
    "a JPEG image": image("JPEG"),
    "a BMP image": image("BMP"),
    "a Parquet file": parquet(),
    "a gzip file": gzip.compress(PATIENTS.encode()),
    "a NumPy array": array(),
    "text in UTF-16": PATIENTS.encode("utf-16"),
    "a binary file": b"MARKER\0MARKER",
    "a binary file ": "MARKERé".encode("latin-1"),
    "JSON": json.dumps([{"name": "MARKER1", "age": 3}]).encode(),
    "JSON ": json.dumps({"MARKER1": {"age": 3}}).encode(),
    "JSON  ": json.dumps({"columns": ["age"], "index": [0], "data": [["MARKER1"]]}).encode(),
    "a text without": b"MARKER1: {age: 3}\nMARKER1: {age: 4}\n",
    "a text without ": b"Dear MARKER1\n",
    "larger than 10 MB": b"MARKER1\n" * (LARGEST // 8 + 1),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_file_of_another_kind_is_named_and_nothing_of_it_is_shown(tmp_path, kind):
    path = tmp_path / "patients.yaml"
    path.write_bytes(STRANGERS[kind])
    with pytest.raises(InvalidArgument) as refused:
        RunConfig.read(path)
    message = str(refused.value)
    assert message.startswith(f"{path} is {kind.strip()}")
    assert "and no configuration: " in message
    assert "MARKER" not in message


def test_every_key_that_tells_a_configuration_is_one():
    assert set(RunConfig.model_fields) >= DECISIVE | COMMON


@pytest.mark.parametrize("text", ["BMW:\nrounds: 5", "{rounds: 5}", "{'data': 1, 'model': 2}", "# privacy\nrounds:\n"])
def test_a_configuration_with_faults_is_still_taken_for_one(text):
    with pytest.raises(InvalidArgument, match="is missing"):
        RunConfig.parse(text)
