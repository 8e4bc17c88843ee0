"""Partial sums from a tree: what is released, how much noise it has, and what is refused."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpfed.accounting.tree_sensitivity import squared_sensitivity
from dpfed.errors import AdjacencyMismatch, InvalidArgument, PrivacyError
from dpfed.events import Gaussian, TreeAggregation
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.mechanisms.tree import PartialSums, TreeMechanism
from dpfed.randomness import SeededSource, SystemSource


class Recorder:
    """Noise that says what it was asked for: node k gets the unit vector e_k, so results are weights of nodes."""

    def __init__(self, nodes: int) -> None:
        self.totals: list[np.ndarray] = []
        self._nodes = nodes

    def __call__(self, total: np.ndarray) -> np.ndarray:
        self.totals.append(total[self._nodes :])
        noise = np.zeros_like(total)
        noise[len(self.totals) - 1] = 1.0
        return total + noise


def changes(steps: int, restarts: int = 0) -> tuple[np.ndarray, Recorder]:
    """What each step releases, as weights of node noises beside weights of steps."""
    recorder = Recorder(2 * steps)
    sums = PartialSums(recorder, TreeAggregation(1.0, steps, restarts=restarts))
    values = np.hstack([np.zeros((steps, 2 * steps)), np.eye(steps)])
    return np.array([sums.add(value) for value in values]), recorder


@pytest.mark.parametrize(("steps", "restarts"), [(1, 0), (7, 0), (8, 0), (21, 0), (21, 1), (20, 3), (9, 8), (13, 4)])
def test_noise_is_drawn_once_for_every_node_that_the_sensitivity_counts(steps: int, restarts: int) -> None:
    _, recorder = changes(steps, restarts)
    matrix = np.array(recorder.totals)
    expected, trees = [], restarts + 1
    for tree in range(trees):
        start, stop = tree * steps // trees, (tree + 1) * steps // trees
        for size in (2**level for level in range(10)):
            expected += [(first, size) for first in range(start, stop - size + 1, size)]
    found = [(int(np.flatnonzero(row)[0]), int(row.sum())) for row in matrix]
    assert sorted(found) == sorted(expected)
    assert set(np.unique(matrix)) <= {0.0, 1.0}
    squared = max(int((matrix[:, step] ** 2).sum()) for step in range(steps))
    assert squared == squared_sensitivity(TreeAggregation(1.0, steps, restarts=restarts))


@pytest.mark.parametrize(("steps", "restarts"), [(1, 0), (8, 0), (21, 0), (20, 3)])
def test_what_is_released_adds_up_to_the_true_sum_and_noise_of_complete_nodes(steps: int, restarts: int) -> None:
    released, _ = changes(steps, restarts)
    sums = released.cumsum(axis=0)[:, 2 * steps :]
    assert sums == pytest.approx(np.tril(np.ones((steps, steps))), abs=1e-12)


def test_a_node_is_used_in_no_step_before_it_is_complete() -> None:
    released, recorder = changes(16)
    for number, row in enumerate(recorder.totals):
        last = int(np.flatnonzero(row)[-1])
        assert not released[:last, number].any()


def test_the_best_estimate_from_below_leaves_the_variance_that_honaker_gives() -> None:
    released, _ = changes(64)
    variance = (released.cumsum(axis=0)[:, :128] ** 2).sum(axis=1)
    for step in range(1, 65):
        levels = [level for level in range(7) if step >> level & 1]
        assert variance[step - 1] == pytest.approx(sum(1 / (2 - 2.0**-level) for level in levels))


def test_at_equal_cost_partial_sums_have_far_less_noise_than_independent_noise_gives() -> None:
    """Mean squared error of all partial sums of 256 steps; 256 independent Gaussians cost one participation of 1."""
    released, _ = changes(256)
    tree = (released.cumsum(axis=0)[:, :512] ** 2).sum(axis=1).mean() * squared_sensitivity(TreeAggregation(1.0, 256))
    assert 5 * tree < 257 / 2


@pytest.mark.parametrize(("m", "separation", "restarts"), [(1, 1, 0), (3, 4, 0), (3, 4, 1), (4, 3, 0), (2, 6, 2)])
def test_from_what_is_released_no_pattern_is_told_better_than_the_event_says(
    m: int, separation: int, restarts: int
) -> None:
    """The best test of a shift u in the releases, of covariance S, has the power of one Gaussian of shift √(uᵀS⁻¹u)."""
    steps = 13
    released, _ = changes(steps, restarts)
    weights = released[:, : 2 * steps]
    precision = np.linalg.inv(weights @ weights.T)
    bound = squared_sensitivity(TreeAggregation(1.0, steps, m, separation, restarts))
    found = []
    for several in range(1, m + 1):
        for pattern in itertools.combinations(range(steps), several):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                shift = np.zeros(steps)
                shift[list(pattern)] = 1.0
                found.append(float(shift @ precision @ shift))
    assert 0.5 * bound < max(found) <= bound + 1e-9


def test_noise_has_the_stated_variance() -> None:
    """3000 partial sums of 7 steps: variance 1 + 2/3 + 4/7 node variances; false alarm about 1e-6 (4.9 σ of χ²)."""
    mechanism = TreeMechanism(TreeAggregation(3.0, 7), 2.0, source=SeededSource(5))
    total = sum(mechanism.add_noise(np.zeros(3000)) for _ in range(7))
    expected = 36.0 * (1 + 2 / 3 + 4 / 7)
    assert float(np.mean(total**2)) == pytest.approx(expected, rel=4.9 * math.sqrt(2 / 3000))


def test_the_noise_of_the_first_step_is_that_of_one_node() -> None:
    mechanism = TreeMechanism(TreeAggregation(3.0, 7), 2.0, source=SeededSource(6))
    noise = mechanism.add_noise(np.zeros(3000))
    assert float(np.mean(noise**2)) == pytest.approx(36.0, rel=4.9 * math.sqrt(2 / 3000))
    assert mechanism.scale == 6.0


def test_everything_released_comes_from_numbers_on_the_grid() -> None:
    """The nodes are whole numbers of steps, whatever was added up: nothing is in their low bits."""
    seen = []
    mechanism = TreeMechanism(TreeAggregation(1.0, 50), 1.0)
    noised = mechanism._sums._add_node_noise
    mechanism._sums._add_node_noise = lambda total: seen.append(noised(total)) or seen[-1]
    for step in range(50):
        mechanism.add_noise(np.array([0.1 * step, 1e30, -1e30]))
    assert len(seen) == sum(50 // 2**level for level in range(6))
    assert all(value.dtype == np.int64 and (np.abs(value) < 2**62 + 2**40).all() for value in seen)


def test_the_mechanism_keeps_structure_and_shape() -> None:
    mechanism = TreeMechanism(TreeAggregation(1e-6, 3), 1.0)
    found = mechanism.add_noise({"a": np.ones((2, 3), dtype=np.float32), "b": [1.0]})
    assert found["a"].dtype == np.float32
    assert found["a"] == pytest.approx(np.ones((2, 3)), abs=1e-4)
    assert found["b"] == [pytest.approx(1.0, abs=1e-4)]


def test_more_steps_than_were_charged_are_refused() -> None:
    mechanism = TreeMechanism(TreeAggregation(1.0, 2), 1.0)
    mechanism.add_noise(0.0)
    mechanism.add_noise(0.0)
    with pytest.raises(InvalidArgument, match="all 2 steps of the tree were taken"):
        mechanism.add_noise(0.0)


def test_two_trees_never_have_the_same_noise() -> None:
    source = SystemSource()
    first, second = (TreeMechanism(TreeAggregation(1.0, 4), 1.0, source=source) for _ in range(2))
    assert not set(first.add_noise(np.zeros(20))) & set(second.add_noise(np.zeros(20)))


def test_a_tree_is_neither_copied_nor_used_after_a_fork() -> None:
    mechanism = TreeMechanism(TreeAggregation(1.0, 4), 1.0)
    mechanism.add_noise(0.0)
    for act in (copy.deepcopy, pickle.dumps):
        with pytest.raises(PrivacyError, match="copied or pickled"):
            act(mechanism)
    child = os.fork()
    if child == 0:
        try:
            mechanism.add_noise(0.0)
        except PrivacyError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_numbers_of_several_threads_are_taken_one_after_the_other() -> None:
    totals: list[int] = []

    def noised(total: int) -> int:
        time.sleep(0)  # another thread's turn
        totals.append(total)
        return total

    sums = PartialSums(noised, TreeAggregation(1.0, 256))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(sums.add, [1] * 256)) == [1] * 256
    assert Counter(totals) == {2**level: 2 ** (8 - level) for level in range(9)}


@pytest.mark.parametrize("number", range(1, 8))
def test_a_step_that_was_stopped_ends_the_tree(number: int) -> None:
    calls = itertools.count(1)

    def noised(total: float) -> float:
        if next(calls) == number:
            raise KeyboardInterrupt
        return total

    sums = PartialSums(noised, TreeAggregation(1.0, 8, 2, 4))
    with pytest.raises(KeyboardInterrupt):
        [sums.add(1.0) for _ in range(4)]
    with pytest.raises(PrivacyError, match="did not come to its end"):
        sums.add(1.0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="must be a TreeAggregation"):
        TreeMechanism(Gaussian(1.0), 1.0)  # type: ignore[arg-type]
    with pytest.raises(AdjacencyMismatch, match="the accountant doubles it"):
        TreeMechanism(TreeAggregation(1.0, 4), Sensitivity(1.0, "l2", "replace_one"))
    with pytest.raises(InvalidArgument, match="L2 sensitivity"):
        TreeMechanism(TreeAggregation(1.0, 4), Sensitivity(1.0, "l1"))
    mechanism = TreeMechanism(TreeAggregation(1.0, 4), 1.0)
    mechanism.add_noise(np.zeros(3))
    with pytest.raises(InvalidArgument, match="must have 3 numbers"):
        mechanism.add_noise(np.zeros(4))


@pytest.mark.parametrize(("noise", "sensitivity"), [(1e300, 1.0), (1e300, 1e-300), (1e18, 1.0)])
def test_noise_that_does_not_fit_into_whole_numbers_is_refused(noise: float, sensitivity: float) -> None:
    """Cast to 64 bits it would be one and the same number in every node."""
    with pytest.raises(InvalidArgument, match="does not fit into 64 bits"):
        TreeMechanism(TreeAggregation(noise, 4), sensitivity).add_noise(0.0)
    noisy = [TreeMechanism(TreeAggregation(1e17, 4), 1.0).add_noise(0.0) for _ in range(9)]
    assert len(set(noisy)) == 9


def test_a_seeded_tree_says_that_it_is_not_private() -> None:
    assert repr(TreeMechanism(TreeAggregation(1.0, 4), 1.0, source=SeededSource(1))) == (
        "TreeMechanism(TreeAggregation(noise_multiplier=1.0, steps=4), sensitivity=1.0) [NOT PRIVATE]"
    )
    assert TreeMechanism(TreeAggregation(1.0, 4), 1.0).is_private
