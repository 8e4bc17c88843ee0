"""Trees of arrays as one vector, and back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from dpfed import structure
from dpfed.errors import InvalidArgument

Pair = namedtuple("Pair", "first second")


def test_a_tree_survives_the_way_there_and_back() -> None:
    tree = OrderedDict(
        a=[np.arange(3, dtype=np.float32), (1.5, np.float16(2.0))],
        b=Pair(torch.ones(2, 2), np.array(3.0)),
        c={"empty": np.zeros((0, 4))},
    )
    again = structure.rebuild(tree, structure.leaves(tree, "x"))
    assert type(again) is OrderedDict
    assert np.array_equal(again["a"][0], tree["a"][0])
    assert again["a"][0].dtype == np.float32
    assert again["a"][1] == (1.5, 2.0)
    assert isinstance(again["a"][1][1], np.float16)
    assert type(again["b"]) is Pair
    assert torch.equal(again["b"].first, tree["b"].first)
    assert again["b"].second.shape == ()
    assert again["c"]["empty"].shape == (0, 4)


def test_leaves_come_in_order_as_float64() -> None:
    found = structure.leaves({"x": np.array([1, 2]), "y": [3.0, torch.tensor([4.0], dtype=torch.bfloat16)]}, "x")
    assert [leaf.dtype for leaf in found] == [np.float64] * 3
    assert np.array_equal(np.concatenate([leaf.ravel() for leaf in found]), [1, 2, 3, 4])


def test_a_leaf_is_a_copy_so_the_tree_cannot_be_changed_through_it() -> None:
    tree = np.ones(3)
    structure.leaves(tree, "x")[0][:] = 7
    assert np.array_equal(tree, np.ones(3))


def test_whole_numbers_stay_whole() -> None:
    tree = {"n": 1, "a": np.array([1, 2], dtype=np.int8), "s": np.uint8(3), "f": 4.0}
    again = structure.rebuild_whole(tree, [np.array(k, dtype=np.int64) for k in (400, [500, -6], 700, 8)])
    assert again["n"] == 400
    assert type(again["n"]) is int
    assert np.array_equal(again["a"], [500, -6])
    assert again["a"].dtype == again["s"].dtype == np.int64
    assert type(again["f"]) is float


@pytest.mark.parametrize(
    ("leaf", "bits"),
    [
        (np.float32(1), 24),
        (np.zeros(1), 53),
        (1.0, 53),
        (np.array([1]), 53),
        (torch.zeros(1, dtype=torch.bfloat16), 8),
        (torch.zeros(1, dtype=torch.float16), 11),
    ],
)
def test_precision_is_that_of_the_rebuilt_leaf(leaf: object, bits: int) -> None:
    assert structure.precisions([leaf])[0].bits == bits


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(InvalidArgument, match=r"update\['w'\]\[0\] must be an array") as refusal:
        structure.leaves({"w": ["text"]}, "update")
    assert refusal.value.argument == "update"


@pytest.mark.parametrize("whole", [2**53, -(2**53), 2**60, np.array([0, 2**60]), np.array([2**63], dtype=np.uint64)])
def test_whole_numbers_that_float64_would_round_are_refused(whole):
    """Neighbours that rounding moves apart by 128 would be noised for a sensitivity of 1."""
    with pytest.raises(InvalidArgument, match="2⁵³"):
        structure.leaves({"count": whole}, "x")
    kept = structure.leaves([2**53 - 1, np.array([1 - 2**53])], "x")
    assert [leaf.tolist() for leaf in kept] == [2.0**53 - 1, [1 - 2.0**53]]
