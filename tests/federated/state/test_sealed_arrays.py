"""Small arrays with digest and seal: what is read is what was written, and a damaged file is refused."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.state import sealed_arrays


def test_arrays_digest_and_seal_come_back(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(sealed_arrays.to_bytes({"x": np.arange(3.0), "names": np.array(["a", "b"])}, "known", "sealed"))
    found, digest, seal = sealed_arrays.read(path)
    assert (digest, seal, found["x"].tolist(), found["names"].tolist()) == (
        "known",
        "sealed",
        [0.0, 1.0, 2.0],
        ["a", "b"],
    )


def test_a_file_of_an_older_version_has_neither_digest_nor_seal(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(1))
    assert sealed_arrays.read(tmp_path / "a.npz")[1:] == ("", "")


def test_a_pickle_is_never_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([object()], dtype=object))
    with (
        pytest.raises(InvalidArgument, match=r"a file cannot be read .*: put back a copy"),
        sealed_arrays.translate_errors("a file", "put back a copy"),
    ):
        sealed_arrays.read(tmp_path / "a.npz")
