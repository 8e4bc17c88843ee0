from __future__ import annotations

import numpy as np
import pytest

from dpfed.runs.digests import Seal, digest, digest_arrays

ARRAYS = {"w": np.arange(6.0).reshape(2, 3), "b": np.zeros(2)}


def test_no_two_lists_of_parts_have_the_same_digest():
    assert len({digest(b"ab", b"c"), digest(b"a", b"bc"), digest(b"abc"), digest(b"abc", b""), digest()}) == 5


@pytest.mark.parametrize(
    "other",
    [
        {**ARRAYS, "w": ARRAYS["w"].reshape(3, 2)},
        {**ARRAYS, "w": ARRAYS["w"].astype(np.float32)},
        {**ARRAYS, "b": np.array([0.0, -0.0])},
        {"w": ARRAYS["w"], "c": ARRAYS["b"]},
    ],
    ids=["shape", "type", "bit", "name"],
)
def test_names_shapes_types_and_every_bit_are_in_the_digest_of_arrays_and_their_order_is_not(other):
    assert digest_arrays(other) != digest_arrays(ARRAYS) == digest_arrays(dict(reversed(ARRAYS.items())))


def test_a_seal_holds_for_its_own_key_head_and_digest_alone():
    seal = Seal(b"key", "12:ab")
    stamp = seal.of("d")
    assert seal.is_of(stamp, "d")
    others = [(Seal(b"another", "12:ab"), "d"), (Seal(b"key", "13:cd"), "d"), (seal, "e")]
    assert not any(other.is_of(stamp, digest) for other, digest in others)
    assert "key" not in repr(seal).replace("Seal", "")
