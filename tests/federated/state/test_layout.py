"""A model is a vector and a file of named arrays, bit for bit, for its owner's eyes only."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from dpfed.errors import InvalidArgument
from dpfed.federated.state.layout import Layout, load

LAYOUT = Layout(("linear.weight", "linear.bias"), ((2, 3), (2,)))
VECTOR = np.arange(8, dtype=np.float32) / 7

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=4)


@given(shapes, st.sampled_from(["float32", "float64"]))
def test_a_vector_goes_into_arrays_and_back(found, dtype):
    layout = Layout(tuple(f"p{number}" for number in range(len(found))), tuple(found), dtype)
    vector = np.random.default_rng(1).normal(size=layout.size).astype(dtype)
    arrays = layout.unflatten(vector)
    assert [array.shape for array in arrays.values()] == found
    assert layout.flatten(arrays).tobytes() == vector.tobytes()
    assert Layout.from_json(layout.to_json()) == layout


def test_arrays_are_put_in_the_layouts_order_whatever_theirs_is():
    arrays = LAYOUT.unflatten(VECTOR)
    assert LAYOUT.flatten(dict(reversed(arrays.items()))).tolist() == VECTOR.tolist()


def test_arrays_are_copies():
    arrays = LAYOUT.unflatten(VECTOR)
    arrays["linear.bias"][:] = 9
    assert 9 not in VECTOR


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"linear.bias": np.zeros(3)}, "shape"),
        ({"running_mean": np.zeros(2)}, "no parameter"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, word):
    with pytest.raises(InvalidArgument, match=word):
        LAYOUT.flatten({**LAYOUT.unflatten(VECTOR), **change})


def test_a_missing_array_is_refused():
    with pytest.raises(InvalidArgument, match=r"'linear\.bias' is missing"):
        LAYOUT.flatten({"linear.weight": np.zeros((2, 3))})


@pytest.mark.parametrize("vector", [np.zeros(7), np.zeros((2, 4)), np.zeros(8, dtype=int), 0.0])
def test_a_vector_of_another_form_is_refused(vector):
    with pytest.raises(InvalidArgument, match="8 numbers"):
        LAYOUT.unflatten(vector)


@pytest.mark.parametrize(
    "arguments",
    [
        (("a", "a"), ((1,), (1,))),
        (("a",), ()),
        (("a",), ((0,),)),
        ((), ()),
        (("a",), ((-1,),)),
        (("a",), ((1,),), "f2"),
    ],
)
def test_a_layout_that_is_none_is_refused(arguments):
    with pytest.raises(InvalidArgument):
        Layout(*arguments)


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"names": ["a"], "shapes": 3}'])
def test_json_that_is_no_layout_is_refused(text):
    with pytest.raises(InvalidArgument):
        Layout.from_json(text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_read_is_what_was_written_to_the_bit(tmp_path, dtype):
    layout = replace(LAYOUT, dtype=dtype)
    vector = np.random.default_rng(2).normal(size=8).astype(dtype)
    layout.write(tmp_path / "m.safetensors", vector, {"round": 3, "head": "12:ab"})
    found, facts = layout.read(tmp_path / "m.safetensors")
    assert (found.tobytes(), found.dtype, facts) == (vector.tobytes(), vector.dtype, {"round": 3, "head": "12:ab"})
    assert load(tmp_path / "m.safetensors")[0] == layout


def test_the_file_is_read_without_dpfed(tmp_path):
    LAYOUT.write(tmp_path / "m.safetensors", VECTOR)
    assert load_file(tmp_path / "m.safetensors")["linear.bias"].tolist() == VECTOR[6:].tolist()


def test_nobody_but_the_owner_reads_the_file(tmp_path):
    path = tmp_path / "m.safetensors"
    for _ in range(2):
        LAYOUT.write(path, VECTOR)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_no_number_is_rounded_on_the_way(tmp_path):
    with pytest.raises(InvalidArgument, match="no number is rounded"):
        LAYOUT.write(tmp_path / "m.safetensors", VECTOR.astype(float))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_neither_written_nor_read(tmp_path, bad):
    path = tmp_path / "m.safetensors"
    LAYOUT.write(path, VECTOR)
    note = json.dumps({"format": 1, "layout": json.loads(LAYOUT.to_json()), "facts": {}})
    broken = np.append(VECTOR[1:], np.float32(bad))
    with pytest.raises(InvalidArgument, match="not finite"):
        LAYOUT.write(path, broken)
    assert LAYOUT.read(path)[0].tolist() == VECTOR.tolist()
    save_file(LAYOUT.unflatten(broken), path, {"dpfed": note})
    with pytest.raises(InvalidArgument, match="not finite"):
        LAYOUT.read(path)


def test_the_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    Layout(("other",), ((8,),)).write(path, VECTOR)
    with pytest.raises(InvalidArgument, match="another model"):
        LAYOUT.read(path)


@pytest.mark.parametrize("content", [b"", b"\x80\x04K\x01.", b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(InvalidArgument, match="no model of dpfed"):
        load(tmp_path / "m.safetensors")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no model"):
        LAYOUT.read(tmp_path / "none")


def test_a_file_of_a_later_format_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    note = {"format": 2, "layout": json.loads(LAYOUT.to_json()), "facts": {}}
    save_file(LAYOUT.unflatten(VECTOR), path, {"dpfed": json.dumps(note)})
    with pytest.raises(InvalidArgument, match="format 1"):
        load(path)


def test_facts_that_are_no_json_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="JSON"):
        LAYOUT.write(tmp_path / "m.safetensors", VECTOR, {"epsilon": float("nan")})
