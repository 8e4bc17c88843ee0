from __future__ import annotations

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import packed
from dpfed.ldp.coins import ONE
from dpfed.randomness import SeededSource


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 40])
def test_what_is_packed_is_unpacked_and_counted(bits):
    rows = np.random.default_rng(bits).random((700, bits)) < 0.5
    stored = packed.pack(rows)
    assert stored.shape == (700, packed.width(bits))
    assert np.array_equal(packed.unpack(stored, bits), rows)
    assert packed.count_bits(stored, bits).tolist() == rows.sum(axis=0).tolist()
    assert packed.bit(stored, bits - 1).tolist() == rows[:, bits - 1].tolist()


def test_a_byte_never_overflows_while_bits_are_counted():
    assert packed.count_bits(np.full((1000, 1), 255, dtype=np.uint8), 8).tolist() == [1000] * 8


def test_bits_are_counted_by_group():
    rng = np.random.default_rng(1)
    groups, rows = rng.integers(0, 5, 300), rng.random((300, 10)) < 0.3
    groups[groups == 3] = 2
    found = packed.count_bits_by_group(groups, packed.pack(rows), (5, 10))
    assert found.tolist() == [rows[groups == group].sum(axis=0).tolist() for group in range(5)]


def test_each_row_may_be_asked_for_another_bit():
    rows = np.eye(9, dtype=bool)
    assert packed.bit(packed.pack(rows), np.arange(9)).all()


def test_parts_cover_all_users_once():
    parts = list(packed.chunks(10_000, 1000))
    assert np.concatenate([np.arange(10_000)[part] for part in parts]).tolist() == list(range(10_000))
    assert list(packed.chunks(2, 1 << 30)) == [slice(0, 1), slice(1, 2)]


def test_certain_coins_fill_rows():
    assert packed.flip_rows(SeededSource(1), ONE, 3, 4).all()
    assert not packed.flip_rows(SeededSource(1), 0, 3, 4).any()


def test_padding_must_be_empty():
    with pytest.raises(InvalidArgument, match="more bits"):
        packed.require_padding(np.array([[8]], dtype=np.uint8), 3)
