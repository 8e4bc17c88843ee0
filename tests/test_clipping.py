"""Clipping: the exact norm of the result is at most the bound, and nothing else changes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpfed.clipping import clip_gradients, clip_per_example, sum_examples, total_norm
from dpfed.errors import InvalidArgument

FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
NORMS = st.sampled_from(["l1", "l2"])
BOUNDS = st.floats(min_value=5e-324, max_value=1.7e308) | st.sampled_from([1.0, 0.1, 5.0, 1e-45, 3e-320])


def finite_arrays(dtype: Any) -> st.SearchStrategy[np.ndarray]:
    width = np.dtype(dtype).itemsize * 8
    return hnp.arrays(dtype, st.integers(1, 20), elements=st.floats(allow_nan=False, allow_infinity=False, width=width))


def exact_power(arrays: list[np.ndarray], norm: str) -> Fraction:
    power = 1 if norm == "l1" else 2
    return sum((abs(Fraction(float(x))) ** power for array in arrays for x in array.ravel()), Fraction(0))


def exact_bound(clip_norm: float, norm: str) -> Fraction:
    return Fraction(clip_norm) ** (1 if norm == "l1" else 2)


@settings(max_examples=300, deadline=None)
@given(FLOATS.flatmap(finite_arrays), BOUNDS, NORMS)
@example(np.array([2.0**1023, 5e-324]), 2.0**1023, "l1")
@example(np.array([2.0**1023, 1.0]), 2.0**1023, "l1")
def test_the_exact_norm_of_the_result_is_at_most_the_bound(array: np.ndarray, clip_norm: float, norm: str) -> None:
    clipped = clip_gradients(array, clip_norm, norm)
    assert clipped.dtype == array.dtype
    assert exact_power([clipped], norm) <= exact_bound(clip_norm, norm)


@settings(max_examples=200, deadline=None)
@given(FLOATS.flatmap(finite_arrays), BOUNDS, NORMS)
def test_what_fits_comes_back_bit_by_bit_and_nothing_grows(array: np.ndarray, clip_norm: float, norm: str) -> None:
    clipped = clip_gradients(array, clip_norm, norm)
    if exact_power([array], norm) <= exact_bound(clip_norm, norm):
        assert clipped.tobytes() == array.tobytes()
    assert np.all(np.abs(clipped) <= np.abs(array))
    assert np.all((clipped == 0) | (np.sign(clipped) == np.sign(array)))


@settings(max_examples=100, deadline=None)
@given(FLOATS.flatmap(finite_arrays), st.floats(1e-3, 1e3), NORMS)
def test_clipping_twice_is_clipping_once(array: np.ndarray, clip_norm: float, norm: str) -> None:
    once = clip_gradients(array, clip_norm, norm)
    assert clip_gradients(once, clip_norm, norm).tobytes() == once.tobytes()


@pytest.mark.parametrize(("dtype", "loss"), [(np.float64, 1e-12), (np.float32, 2e-7)])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_long_vector_keeps_its_direction_and_nearly_the_whole_bound(dtype: Any, loss: float, norm: str) -> None:
    array = np.random.default_rng(0).normal(size=1000).astype(dtype)
    clipped = clip_gradients(array, 0.7, norm).astype(np.float64)
    order = 1 if norm == "l1" else 2
    assert 0.7 * (1 - loss) < np.linalg.norm(clipped, order) <= 0.7
    expected = array.astype(np.float64) * 0.7 / np.linalg.norm(array.astype(np.float64), order)
    np.testing.assert_allclose(clipped, expected, rtol=2 * loss)


@pytest.mark.parametrize(
    "array",
    [np.array([3e38, 3e38], dtype=np.float32), np.array([1e200, -1e200]), np.array([1.7e308, 1.7e308])],
    ids=["float32", "float64", "largest"],
)
def test_huge_gradients_are_clipped_and_not_silently_zeroed(array: np.ndarray) -> None:
    clipped = clip_gradients(array, 1.0)
    np.testing.assert_allclose(np.abs(clipped), np.sqrt(0.5), rtol=1e-6)


def test_tiny_gradients_are_left_alone() -> None:
    array = np.array([5e-324, 0.0, 1e-300])
    assert clip_gradients(array, 1.0).tobytes() == array.tobytes()


def test_zero_stays_zero() -> None:
    assert np.array_equal(clip_gradients(np.zeros(4), 0.1), np.zeros(4))


def test_a_norm_equal_to_the_bound_is_not_touched() -> None:
    assert np.array_equal(clip_gradients(np.array([3.0, 4.0]), 5.0), [3.0, 4.0])


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_vector_that_is_too_long_by_one_rounding_is_clipped_and_one_that_is_not_is_left(norm: str) -> None:
    """Scaled to length 1 in floats, about half of these are longer in truth, by less than a float can show."""
    rng = np.random.default_rng(0)
    order = 1 if norm == "l1" else 2
    vectors = [vector / np.linalg.norm(vector, order) for vector in rng.normal(size=(60, 7))]
    too_long = [exact_power([vector], norm) > 1 for vector in vectors]
    assert 10 < sum(too_long) < 50
    for vector, is_longer in zip(vectors, too_long, strict=True):
        clipped = clip_gradients(vector, 1.0, norm)
        assert exact_power([clipped], norm) <= 1
        assert np.array_equal(clipped, vector) != is_longer


def test_short_gradients_are_never_scaled_up_as_the_seed_did() -> None:
    assert np.array_equal(clip_gradients(np.array([0.3, 0.4]), 1.0), [0.3, 0.4])


def test_all_arrays_of_a_tree_are_one_vector() -> None:
    tree = {"a": np.array([6.0, 0.0]), "b": [np.array([[8.0]]), (0.0, np.float32(0))]}
    clipped = clip_gradients(tree, 5.0)
    np.testing.assert_allclose(clipped["a"], [3.0, 0.0])
    np.testing.assert_allclose(clipped["b"][0], [[4.0]])
    assert clipped["b"][1] == (0.0, 0.0)
    assert isinstance(clipped["b"][1][1], np.float32)


def test_structure_precision_and_zeros_are_kept() -> None:
    pair = namedtuple("pair", "x y")
    tree = OrderedDict(w=np.eye(3, dtype=np.float32) * 9, p=pair(np.ones(2, dtype=np.float16), 2.0), n=np.array(7))
    clipped = clip_gradients(tree, 1.0)
    assert type(clipped) is OrderedDict
    assert list(clipped) == ["w", "p", "n"]
    assert type(clipped["p"]) is pair
    assert clipped["w"].dtype == np.float32
    assert clipped["p"].x.dtype == np.float16
    assert isinstance(clipped["p"].y, float)
    assert clipped["n"].dtype == np.float64
    assert clipped["n"].shape == ()
    assert np.array_equal(clipped["w"] == 0, np.eye(3) == 0)


def test_the_input_is_not_changed() -> None:
    array = np.array([30.0, 40.0])
    clip_gradients(array, 1.0)
    assert np.array_equal(array, [30.0, 40.0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_tensors_stay_tensors_of_their_precision_within_the_bound(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(4, 3).to(dtype), torch.randn(5, requires_grad=True).to(dtype)]
    clipped = clip_gradients(gradients, 0.1)
    assert [g.dtype for g in clipped] == [dtype, dtype]
    assert [g.shape for g in clipped] == [g.shape for g in gradients]
    parts = [g.detach().double().numpy() for g in clipped]
    assert exact_power(parts, "l2") <= exact_bound(0.1, "l2")
    assert np.linalg.norm(np.concatenate([p.ravel() for p in parts])) > 0.099


def test_each_example_is_clipped_on_its_own() -> None:
    examples = {"w": np.array([[30.0, 0.0], [0.3, 0.0], [0.0, 0.0]]), "b": np.array([40.0, 0.4, 0.0])}
    clipped = clip_per_example(examples, 5.0)
    np.testing.assert_allclose(clipped["w"][0], [3.0, 0.0])
    np.testing.assert_allclose(clipped["b"][0], 4.0)
    assert np.array_equal(clipped["w"][1:], examples["w"][1:])
    assert np.array_equal(clipped["b"][1:], examples["b"][1:])


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        elements=st.floats(-(2.0**127), 2.0**127, width=32),
    ),
    st.floats(1e-6, 1e6),
    NORMS,
)
def test_no_example_exceeds_the_bound(array: np.ndarray, clip_norm: float, norm: str) -> None:
    for row, original in zip(clip_per_example(array, clip_norm, norm), array, strict=True):
        assert exact_power([row], norm) <= exact_bound(clip_norm, norm)
        assert row.tobytes() == clip_gradients(original, clip_norm, norm).tobytes()


def test_scaling_one_example_by_a_million_moves_the_sum_by_no_more_than_twice_the_bound() -> None:
    examples = np.random.default_rng(1).normal(size=(20, 8))
    moved = examples.copy()
    moved[3] *= -1e6
    change = clip_per_example(examples, 0.5).sum(0) - clip_per_example(moved, 0.5).sum(0)
    assert np.linalg.norm(change) <= 1.0 + 1e-12


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_by_name(bad: float) -> None:
    with pytest.raises(InvalidArgument, match=r"gradients\['w'\]\[1\] must be finite"):
        clip_gradients({"w": [np.ones(2), np.array([1.0, bad])]}, 1.0)


@pytest.mark.parametrize(
    "gradients",
    [
        [],
        {},
        np.array([]),
        "text",
        None,
        True,
        np.array(["a"]),
        np.array([1j]),
        np.array([True]),
        2**53,
        10**400,
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.array([2**60]),
        torch.ones(2, dtype=torch.int64),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_vector_of_real_numbers_is_refused(gradients: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        clip_gradients(gradients, 1.0)
    assert refusal.value.argument == "gradients"


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, np.nan, np.inf, "1", None])
def test_a_bound_that_is_not_positive_is_refused(clip_norm: object) -> None:
    with pytest.raises(InvalidArgument, match="clip_norm"):
        clip_gradients(np.ones(2), clip_norm)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="norm"):
        clip_gradients(np.ones(2), 1.0, norm="max")


@pytest.mark.parametrize("gradients", [{"w": np.ones((2, 3)), "b": np.ones(3)}, [1.0, 2.0], np.array(1.0)])
def test_examples_need_one_leading_axis(gradients: object) -> None:
    with pytest.raises(InvalidArgument, match="leading axis"):
        clip_per_example(gradients, 1.0)


@pytest.mark.parametrize(
    ("tree", "norm", "expected"),
    [
        ([np.array([3.0]), np.array([-4.0])], "l2", 5.0),
        ([np.array([3.0]), np.array([-4.0])], "l1", 7.0),
        (np.array([3e38, 4e38 / 2], dtype=np.float32), "l2", np.hypot(3e38, 2e38)),
        (np.array([3e200, 4e200]), "l2", 5e200),
        (np.zeros(3), "l2", 0.0),
    ],
)
def test_total_norm_is_that_of_one_vector(tree: object, norm: str, expected: float) -> None:
    assert total_norm(tree, norm) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("clip_norm", [1.0, 0.1, 3e-7])
def test_one_example_moves_the_sum_by_itself_without_any_rounding(clip_norm: float) -> None:
    """A float sum of so many would be off by thousands of last bits, and a neighbour's by others."""
    rows = clip_per_example(np.random.default_rng(1).normal(size=(1000, 3)), clip_norm)
    whole = sum_examples(rows, clip_norm)
    for gone in range(0, 1000, 50):
        rest = sum_examples(np.delete(rows, gone, axis=0), clip_norm)
        moved = [Fraction(a) - Fraction(b) for a, b in zip(whole.tolist(), rest.tolist(), strict=True)]
        assert all(abs(m) <= abs(Fraction(own)) for m, own in zip(moved, rows[gone].tolist(), strict=True))
