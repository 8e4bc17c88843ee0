"""Trees of arrays as one vector, and back."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dpfed import arrays
from dpfed.aggregation.mean import ClippedMean
from dpfed.clipping import clip_gradients, clip_per_example, total_norm
from dpfed.errors import InvalidArgument
from dpfed.events import TreeAggregation
from dpfed.manager.manager import PrivacyManager
from dpfed.mechanisms.discrete import DiscreteGaussianMechanism, DiscreteLaplaceMechanism
from dpfed.mechanisms.exponential import ExponentialMechanism
from dpfed.mechanisms.gaussian import GaussianMechanism, add_noise
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.mechanisms.output_perturbation import OutputPerturbation
from dpfed.mechanisms.selection import permute_and_flip, report_noisy_max
from dpfed.mechanisms.sparse_vector import SparseVector
from dpfed.mechanisms.tree import TreeMechanism
from dpfed.plan.client import ClientPlan
from dpfed.plan.server import ServerRelease

Pair = namedtuple("Pair", "first second")

# What each of them takes from a caller: lists or arrays, arrays with a leading axis of examples, one vector a client.
LISTS: dict[str, Callable[[Any], object]] = {
    "exponential": ExponentialMechanism(1.0, 1.0).select,
    "probabilities": ExponentialMechanism(1.0, 1.0).probabilities,
    "permute and flip": lambda x: permute_and_flip(x, 1.0, 1.0),
    "noisy max": lambda x: report_noisy_max(x, 1.0, 1.0),
    "Gaussian": GaussianMechanism(1.0, 1e-5, 1.0).add_noise,
    "Gaussian, plain": GaussianMechanism(1.0, 1e-5, 1.0, hardened=False).add_noise,
    "Laplace": LaplaceMechanism(1.0, 1.0).add_noise,
    "output": OutputPerturbation(LaplaceMechanism(1.0, 1.0), 2.0).add_noise,
    "gradients": lambda x: add_noise(x, 1.0, 1.0),
    "discrete Laplace": DiscreteLaplaceMechanism(3.0, 1).add_noise,
    "discrete Gaussian": DiscreteGaussianMechanism(3.0, 1, dimension=2).add_noise,
    "tree": lambda x: TreeMechanism(TreeAggregation(2.0, steps=8), 1.0).add_noise(x),
    "clipping": lambda x: clip_gradients(x, 1.0),
    "norm": total_norm,
    "manager": lambda x: PrivacyManager().apply_privacy(x),
    "manager, noise alone": lambda x: PrivacyManager().add_gaussian_noise(x),
}
ARRAYS: dict[str, Callable[[Any], object]] = LISTS | {
    "clipped examples": lambda x: clip_per_example(x, 1.0),
    "manager, examples": lambda x: PrivacyManager(per_example=True).apply_privacy(x),
    "mean": lambda x: ClippedMean(clip_norm=1.0, denominator=2.0).of({"a": np.zeros(2), "b": x}, size=2),
    "server": lambda x: ServerRelease(ClientPlan(clip_norm=1.0), {"a": 1}, Fraction(1)).query({"a": x}, dimension=2),
    "server's count": lambda x: ServerRelease(ClientPlan(clip_norm=1.0), {"a": 1}, Fraction(1)).count({"a": x}),
}
NUMBERS: dict[str, Callable[[Any], object]] = {
    "value": lambda x: SparseVector(1.0, 1.0, 0.0).is_above(x),
    "threshold": lambda x: SparseVector(1.0, 1.0, x),
    "Gaussian": GaussianMechanism(1.0, 1e-5, 1.0).add_noise,
    "discrete": DiscreteLaplaceMechanism(3.0, 1).add_noise,
    "tree": lambda x: TreeMechanism(TreeAggregation(2.0, steps=8), 1.0).add_noise(x),
    "manager": lambda x: PrivacyManager().apply_privacy(x),
}
INEXACT = [
    2**53,
    2**60 + 1,
    -(2**60) - 1,
    2**64 + 1,
    10**400,
    np.int64(2**60 + 1),
    np.uint64(2**63 + 1),
    np.longdouble(1),
    np.array(2**60 + 1, dtype=object),
    np.array(1.0, dtype=object),
    Fraction(1, 3),
    Decimal("0.1"),
    True,
    np.True_,
    1j,
    np.complex64(1),
    np.datetime64(1, "s"),
    "1",
    b"1",
    None,
    torch.tensor(2**60 + 1),
    torch.tensor(True),
    torch.tensor(1j),
]


def test_a_tree_survives_the_way_there_and_back() -> None:
    tree = OrderedDict(
        a=[np.arange(3, dtype=np.float32), (1.5, np.float16(2.0))],
        b=Pair(torch.ones(2, 2), np.array(3.0)),
        c={"empty": np.zeros((0, 4))},
    )
    again = arrays.rebuild(tree, arrays.leaves(tree, "x"))
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
    found = arrays.leaves({"x": np.array([1, 2]), "y": [3.0, torch.tensor([4.0], dtype=torch.bfloat16)]}, "x")
    assert [leaf.dtype for leaf in found] == [np.float64] * 3
    assert np.array_equal(np.concatenate([leaf.ravel() for leaf in found]), [1, 2, 3, 4])


def test_a_leaf_is_a_copy_so_the_tree_cannot_be_changed_through_it() -> None:
    tree = np.ones(3)
    arrays.leaves(tree, "x")[0][:] = 7
    assert np.array_equal(tree, np.ones(3))


def test_whole_numbers_stay_whole() -> None:
    tree = {"n": 1, "a": np.array([1, 2], dtype=np.int8), "s": np.uint8(3), "f": 4.0}
    again = arrays.rebuild_whole(tree, [np.array(k, dtype=np.int64) for k in (400, [500, -6], 700, 8)])
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
    assert arrays.precisions([leaf])[0].bits == bits


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(InvalidArgument, match=r"update\['w'\]\[0\] must be an array") as refusal:
        arrays.leaves({"w": ["text"]}, "update")
    assert refusal.value.argument == "update"


@pytest.mark.parametrize("number", INEXACT, ids=lambda value: f"{type(value).__name__} {value}"[:40])
@pytest.mark.parametrize("entrance", LISTS)
def test_a_number_that_float64_may_round_is_refused_in_any_list_before_it_is_converted(
    entrance: str, number: object
) -> None:
    for mixed in ([1.0, number], (number, 2)):
        with pytest.raises(InvalidArgument):
            LISTS[entrance](mixed)


@pytest.mark.parametrize("number", INEXACT, ids=lambda value: f"{type(value).__name__} {value}"[:40])
@pytest.mark.parametrize("entrance", NUMBERS)
def test_a_single_number_that_float64_may_round_is_refused(entrance: str, number: object) -> None:
    with pytest.raises(InvalidArgument):
        NUMBERS[entrance](number)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 2**60 + 1], dtype=object),
        np.array([0.5, 1.0], dtype=object),
        np.array([1, 2**60 + 1]),
        np.array([1, 2**60 + 1], dtype=">i8"),
        np.array([1, 2**63 + 1], dtype=np.uint64),
        np.array([1, 2], dtype=np.longdouble),
        np.array([1, 2], dtype=np.clongdouble),
        np.array([1, 2], dtype=np.complex64),
        np.array([True, False]),
        np.array(["1", "2"]),
        np.array([1, 2], dtype="timedelta64[s]"),
        np.array([(1.0,), (2.0,)], dtype=[("x", float)]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        torch.tensor([1, 2**60 + 1]),
        torch.tensor([1, 2], dtype=torch.complex64),
        torch.ones(2).to_sparse(),
        torch.tensor([True, False]),
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype}",
)
@pytest.mark.parametrize("entrance", ARRAYS)
def test_an_array_that_float64_may_round_is_refused_at_every_entrance(entrance: str, array: object) -> None:
    with pytest.raises(InvalidArgument):
        ARRAYS[entrance](array)


@pytest.mark.parametrize(
    "array",
    [
        *(np.array([0, 1], dtype=name) for name in ("f2", "f4", "f8", ">f8", "i1", "i8", ">i4", "u1", "u8")),
        np.array([2**53 - 1, 1 - 2**53]),
        *(torch.tensor([0.0, 1.0], dtype=kind) for kind in (torch.bfloat16, torch.float16, torch.float64)),
    ],
    ids=lambda array: f"{type(array).__name__} {array.dtype}",
)
@pytest.mark.parametrize("entrance", [name for name in LISTS if name != "manager, noise alone"])
def test_what_float64_holds_exactly_is_taken(entrance: str, array: object) -> None:
    assert LISTS[entrance](array) is not None


def test_nested_lists_are_looked_at_to_the_end() -> None:
    with pytest.raises(InvalidArgument, match=r"x\[1\]\['w'\]\[0\]\[1\] holds integers of 2⁵³ or more"):
        arrays.leaves([0.5, {"w": ((1.0, 2**60 + 1),)}], "x")


def test_a_refusal_never_shows_what_was_given() -> None:
    for entrance in LISTS.values():
        with pytest.raises(InvalidArgument) as refusal:
            entrance([1.0, 123456789 * 10**12])
        assert "123456789" not in str(refusal.value)
    for entrance in NUMBERS.values():
        with pytest.raises(InvalidArgument) as refusal:
            entrance(Fraction(123456789, 7))
        assert "123456789" not in str(refusal.value)


@pytest.mark.parametrize("values", [[], np.zeros(0), np.zeros((2, 2)), 1.0, [[1.0]], [np.zeros(1)], {"a": 1.0}, "12"])
def test_a_vector_is_a_flat_list_or_an_array_with_one_axis(values: object) -> None:
    with pytest.raises(InvalidArgument, match="scores"):
        arrays.vector(values, "scores")


def test_a_vector_keeps_every_number() -> None:
    assert arrays.vector([1, 2.5, np.float16(0.5), torch.tensor(3.0)], "scores").tolist() == [1.0, 2.5, 0.5, 3.0]
    assert arrays.vector(torch.tensor([1.5]), "scores").tolist() == [1.5]


@pytest.mark.parametrize("value", [[1.0], np.ones(1), np.nan, np.inf])
def test_a_number_is_single_and_finite(value: object) -> None:
    with pytest.raises(InvalidArgument, match="value"):
        arrays.number(value, "value")


def test_an_array_that_is_not_finite_can_be_read_exactly_where_that_is_decided_elsewhere() -> None:
    assert np.isnan(arrays.exact(np.array([np.nan, 1.0], dtype=np.float32), "updates")).tolist() == [True, False]
