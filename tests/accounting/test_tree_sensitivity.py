"""How far one unit moves the nodes of a tree: against every allowed pattern, and against dp-accounting."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from dpfed.accounting.calibrate import calibrate_noise
from dpfed.accounting.exact.pairs import pairs
from dpfed.accounting.notions import zcdp_rho
from dpfed.accounting.queries import epsilon
from dpfed.accounting.renyi import rdp
from dpfed.accounting.tree_sensitivity import sensitivity, squared_sensitivity
from dpfed.errors import UnsupportedEvent
from dpfed.events import Composed, Gaussian, PoissonSampled, Repeated, SampledWithoutReplacement, TreeAggregation

DELTA = 1e-6


def tree(steps: int, m: int = 1, separation: int = 1, restarts: int = 0, noise: float = 1.0) -> TreeAggregation:
    return TreeAggregation(noise, steps, m, separation, restarts)


def nodes(event: TreeAggregation) -> np.ndarray:
    """The matrix of all complete nodes of all trees, (nodes, steps), written down from the definition."""
    trees, rows = event.restarts + 1, []
    for number in range(trees):
        start, stop = number * event.steps // trees, (number + 1) * event.steps // trees
        size = 1
        while size <= stop - start:
            for first in range(start, stop - size + 1, size):
                row = np.zeros(event.steps, dtype=int)
                row[first : first + size] = 1
                rows.append(row)
            size *= 2
    return np.array(rows)


def patterns(steps: int, m: int, separation: int, start: int = 0) -> Iterator[tuple[int, ...]]:
    yield ()
    for first in range(start, steps) if m else ():
        yield from ((first, *rest) for rest in patterns(steps, m - 1, separation, first + separation))


def brute_force(event: TreeAggregation) -> int:
    matrix, worst = nodes(event), 0
    for pattern in patterns(event.steps, event.max_participations, event.min_separation):
        worst = max(worst, int((matrix[:, list(pattern)].sum(axis=1) ** 2).sum()))
    return worst


def exact(steps: int, m: int, separation: int) -> int:
    """The largest Σ c² of one tree by dynamic programming: by how soon the next participation may come."""

    @functools.cache
    def node(level: int, wait: int, count: int) -> tuple[tuple[int, int], ...]:
        size = 2**level
        if count == 0:
            return ((max(wait - size, 0), 0),)
        if wait >= size or -(-(size - wait) // separation) < count:
            return ()
        if level == 0:
            return ((separation - 1, 1),)
        found = {}
        for left in range(count + 1):
            for between, value in node(level - 1, wait, left):
                for after, more in node(level - 1, between, count - left):
                    found[after] = max(found.get(after, 0), value + more + count**2)
        return tuple(found.items())

    states = {(0, 0): 0}
    for level in reversed(range(steps.bit_length())):
        if steps >> level & 1:
            following: dict[tuple[int, int], int] = {}
            for (taken, wait), value in states.items():
                for count in range(m - taken + 1):
                    for after, more in node(level, wait, count):
                        key = taken + count, after
                        following[key] = max(following.get(key, 0), value + more)
            states = following
    return max(states.values())


@pytest.mark.parametrize("restarts", [0, 1, 2, 4])
@pytest.mark.parametrize("steps", [*range(5, 16), 21])
def test_no_allowed_pattern_moves_the_nodes_further(steps: int, restarts: int) -> None:
    for separation in range(1, steps + 1):
        for m in range(1, 5):
            event = tree(steps, m, separation, restarts)
            assert squared_sensitivity(event) >= brute_force(event), event


@pytest.mark.parametrize("separation", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("steps", range(1, 20))
def test_a_separation_by_a_power_of_two_is_exact(steps: int, separation: int) -> None:
    for m in range(1, 5):
        event = tree(steps, m, separation)
        assert squared_sensitivity(event) == brute_force(event), event


@pytest.mark.parametrize("restarts", range(6))
@pytest.mark.parametrize("steps", [6, 7, 12, 13, 31, 32, 33])
def test_one_participation_is_exact_however_often_the_tree_starts_anew(steps: int, restarts: int) -> None:
    event = tree(steps, restarts=restarts)
    assert squared_sensitivity(event) == brute_force(event) == (-(-steps // (restarts + 1))).bit_length()


@given(steps=st.integers(1, 200), m=st.integers(1, 10), separation=st.integers(1, 60))
def test_long_trees_are_bounded_closely(steps: int, m: int, separation: int) -> None:
    bound, truth = squared_sensitivity(tree(steps, m, separation)), exact(steps, m, separation)
    assert truth <= bound <= 1.12 * truth


def test_the_dynamic_programme_of_this_file_agrees_with_brute_force() -> None:
    for steps in range(1, 14):
        for separation in range(1, steps + 1):
            assert exact(steps, 4, separation) == brute_force(tree(steps, 4, separation))


def test_participations_at_equal_distances_are_not_the_worst() -> None:
    """The popular shortcut: 55 where steps 0, 3, 6, 12 and 15 make it 57."""
    matrix = nodes(tree(16))
    equal = [list(range(start, 16, 3))[:5] for start in range(16)]
    assert max(int((matrix[:, pattern].sum(axis=1) ** 2).sum()) for pattern in equal) == 55
    assert brute_force(tree(16, 5, 3)) == 57 <= squared_sensitivity(tree(16, 5, 3))


def test_contributions_of_any_direction_move_the_nodes_by_no_more() -> None:
    generator = np.random.default_rng(3)
    event = tree(13, 3, 4)
    matrix, bound = nodes(event), squared_sensitivity(event)
    for pattern in patterns(13, 3, 4):
        vectors = np.zeros((13, 5))
        drawn = generator.normal(size=(len(pattern), 5))
        vectors[list(pattern)] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        assert np.linalg.norm(matrix @ vectors) ** 2 <= bound + 1e-9


def test_a_second_participation_costs_more_than_twice_the_variance_in_one_tree_and_twice_in_two() -> None:
    assert squared_sensitivity(tree(64, 1)) == 7
    assert squared_sensitivity(tree(64, 2, 32)) == 6 * 2 + 4
    assert squared_sensitivity(tree(64, 2, 32, restarts=1)) == 6 * 2


def zero_out(orders: list[float]) -> RdpAccountant:
    """A peer that asks for what the event asks for: the others stay where they are."""
    return RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 100, 1000, 1023, 1024])
def test_one_pass_costs_what_dp_accounting_says(steps: int) -> None:
    orders = [1.5, 2.0, 8.0, 32.0]
    peer = zero_out(orders)
    peer.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, steps))
    assert rdp(tree(steps, noise=3.0), orders) == pytest.approx(peer._rdp, rel=1e-12)


@pytest.mark.parametrize("restarts", [0, 1, 3, 6])
def test_restarts_within_one_pass_cost_what_dp_accounting_says(restarts: int) -> None:
    orders, trees = [2.0, 16.0], restarts + 1
    lengths = [(number + 1) * 100 // trees - number * 100 // trees for number in range(trees)]
    peer = zero_out(orders)
    peer.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(2.0, lengths))
    assert rdp(tree(100, restarts=restarts, noise=2.0), orders) == pytest.approx(peer._rdp, rel=1e-12)


def test_a_new_tree_for_each_pass_costs_what_dp_accounting_says() -> None:
    orders = [2.0, 16.0]
    peer = zero_out(orders)
    peer.compose(dp_accounting.SelfComposedDpEvent(dp_accounting.SingleEpochTreeAggregationDpEvent(4.0, 50), 5))
    event = tree(250, m=5, separation=50, restarts=4, noise=4.0)
    assert rdp(event, orders) == pytest.approx(peer._rdp, rel=1e-12)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_a_tree_costs_what_one_gaussian_does(adjacency: str) -> None:
    event = tree(1000, m=4, separation=250, noise=20.0)
    same = Gaussian(20.0 / math.sqrt(49))
    assert epsilon(event, DELTA, adjacency=adjacency) == pytest.approx(epsilon(same, DELTA, adjacency=adjacency))
    (pair,) = pairs(event, adjacency)
    assert Fraction(pair.mu) >= Fraction(7, 20) * (1 if adjacency == "add_remove" else 2)
    assert zcdp_rho(event, adjacency) == pytest.approx(zcdp_rho(same, adjacency))
    assert rdp(event, [4.0], adjacency=adjacency) == pytest.approx(rdp(same, [4.0], adjacency=adjacency))


def test_replacing_a_unit_costs_what_half_the_noise_does() -> None:
    once, twice = tree(100, 2, 50, noise=10.0), tree(100, 2, 50, noise=5.0)
    assert epsilon(once, DELTA, adjacency="replace_one") == pytest.approx(epsilon(twice, DELTA))


def test_trees_compose_with_other_events() -> None:
    event = tree(100, noise=5.0)
    several = Composed([Repeated(event, 3), Gaussian(2.0)])
    shift = math.sqrt(3 * 7 / 25 + 1 / 4)
    assert epsilon(several, DELTA) == pytest.approx(epsilon(Gaussian(1 / shift), DELTA))


@pytest.mark.parametrize(
    "sampled",
    [
        PoissonSampled(tree(8), 0.1),
        PoissonSampled(tree(8), 1.0),
        PoissonSampled(Composed([Gaussian(1.0), Repeated(tree(8), 2)]), 0.1),
        SampledWithoutReplacement(tree(8), 1, 10),
        PoissonSampled(PoissonSampled(tree(8), 0.5), 0.5),
    ],
)
def test_sampling_amplifies_no_tree(sampled: PoissonSampled) -> None:
    with pytest.raises(UnsupportedEvent, match="no gain from sampling"):
        epsilon(sampled, DELTA, adjacency="replace_one")


def test_noise_is_calibrated_for_a_tree() -> None:
    found = calibrate_noise(2.0, DELTA, lambda noise: tree(500, 2, 250, noise=noise))
    event = tree(500, 2, 250, noise=found)
    assert 1.999 < epsilon(event, DELTA) <= 2.0


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 10**12), st.integers(0, 10**12))
def test_the_root_is_rounded_up_and_runs_of_any_length_are_answered(
    steps: int, m: int, separation: int, restarts: int
) -> None:
    event = tree(steps, m, separation, min(restarts, steps - 1))
    root, squared = Fraction(sensitivity(event)), squared_sensitivity(event)
    assert root**2 >= squared
    assert Fraction(math.nextafter(sensitivity(event), 0.0)) ** 2 < squared


@given(st.integers(1, 80), st.integers(1, 8), st.integers(1, 30))
def test_more_participations_closer_together_never_cost_less(steps: int, m: int, separation: int) -> None:
    base = squared_sensitivity(tree(steps, m, separation))
    assert squared_sensitivity(tree(steps, m + 1, separation)) >= base
    assert squared_sensitivity(tree(steps + 1, m, separation)) >= base
    assert squared_sensitivity(tree(steps, m, separation + 1)) <= base
