"""How far one unit that takes part in several steps moves the nodes of a tree of partial sums.

A tree over n steps has a node for every run of 2ˡ steps, from a multiple of 2ˡ on, that ends within the n; its value is
the sum of what was contributed in these steps. A unit that takes part in cⱼ steps of node j, each time with a vector of
norm at most 1, moves node j by at most cⱼ, and by cⱼ exactly where its vectors are all the same: no node subtracts
anything. So the L2 sensitivity of all nodes together is the root of the largest Σ cⱼ² over the allowed patterns.

>>> from dpfed.events import TreeAggregation
>>> squared_sensitivity(TreeAggregation(1.0, steps=1000))  # the first step is in runs of 1, 2, 4, …, 512
10
>>> squared_sensitivity(TreeAggregation(1.0, steps=1000, max_participations=4, min_separation=250))
49
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from dpfed.events import TreeAggregation


def sensitivity(event: TreeAggregation) -> float:
    """Return the L2 sensitivity of all nodes, rounded up, where one contribution has norm at most 1."""
    squared = squared_sensitivity(event)
    root = math.sqrt(squared)
    while Fraction(root) ** 2 < squared:
        root = math.nextafter(root, math.inf)
    return root


def squared_sensitivity(event: TreeAggregation) -> int:
    """Return a bound on Σ cⱼ² over every allowed pattern.

    It is taken level by level. Two participations are at least s = min_separation steps apart, so c ≤ ⌈length/s⌉ in any
    run of steps: in one node of level l at most ⌈2ˡ/s⌉, and in all nodes of the level together at most M, which is m =
    max_participations or less where there is no room for m. The sum of squares is convex, so no pattern exceeds as
    many full nodes as M fills and one with the rest. Participations 0, s, 2s, … reach the bound of all levels at once
    where s is a power of two and there is one tree, and one participation always does; the bound is exact there.
    Elsewhere it may be above the true maximum, which participations at equal distances need not reach: of 16 steps
    with m = 5 and s = 3, steps 0, 3, 6, 12, 15 move the nodes by √57, and none at equal distances by more than √55.
    """
    most = min(event.max_participations, _room(event.steps, event.min_separation))
    total = 0
    for level in range(_longest(event).bit_length()):
        node = 2**level
        covered = sum(count * _room(length // node * node, event.min_separation) for length, count in _trees(event))
        full = _room(node, event.min_separation)
        nodes, rest = divmod(min(most, covered), full)
        total += nodes * full**2 + rest**2
    return total


def _room(steps: int, separation: int) -> int:
    """Return how many participations fit into so many steps in a row."""
    return -(-steps // separation)


def _longest(event: TreeAggregation) -> int:
    return max(length for length, count in _trees(event) if count)


def _trees(event: TreeAggregation) -> Iterator[tuple[int, int]]:
    """Return the lengths of the trees and how many there are of each: they differ by one step at most."""
    trees = event.restarts + 1
    length, longer = divmod(event.steps, trees)
    yield length, trees - longer
    yield length + 1, longer
