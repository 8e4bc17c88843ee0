from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.config.yaml12 import dump, load

READ = {
    "1e-5": 1e-5,
    "1E5": 1e5,
    "-2.5e+3": -2500.0,
    ".5": 0.5,
    "3.": 3.0,
    "inf": math.inf,
    "-inf": -math.inf,
    ".inf": math.inf,
    "12": 12,
    "-3": -3,
    "010": "010",
    "0x1f": "0x1f",
    "1_000": "1_000",
    "12:30": "12:30",
    "no": "no",
    "yes": "yes",
    "on": "on",
    "y": "y",
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "2026-11-16": "2026-11-16",
    '"1e-5"': "1e-5",
    "information": "information",
}


@pytest.mark.parametrize("text", READ)
def test_scalars_are_what_they_look_like(text):
    value = load(f"key: {text}\n")[0]["key"]
    assert value == READ[text]
    assert type(value) is type(READ[text])


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(PLAIN)
def test_what_is_written_is_read_back(value):
    text = dump(value)
    assert "\n" not in text or isinstance(value, str)
    assert load(text)[0] == value


def test_every_key_and_entry_knows_its_line():
    lines = load("a:\n  b: 1\n  c:\n  - x\n  - y: 2\n")[1]
    assert {path: line for path, line in lines.items() if path} == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "y"): 5,
    }
