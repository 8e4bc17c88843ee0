"""Noise for a running sum: correlated, so that every partial sum carries little of it.

With noise of its own on each of n numbers, their sum has n times the variance. A binary tree has a node for every run
of 1, 2, 4, … numbers; each node gets noise once, and every partial sum is put together from the few nodes that cover
it (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011). A number is in about log₂ n nodes, which costs as
many times the variance, and nothing from sampling is needed: this is what DP-FTRL is made of (Kairouz et al. 2021).

>>> from dpfed.randomness import SeededSource
>>> mechanism = TreeMechanism(TreeAggregation(2.0, steps=1000), sensitivity=1.0, source=SeededSource(1))
>>> noisy = [mechanism.add_noise(1.0) for _ in range(1000)]
>>> abs(sum(noisy) - 1000) < 12  # noise of its own on each would be off by 63 on average
True
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpfed import arrays, checks
from dpfed.checks import ADD_REMOVE
from dpfed.errors import AdjacencyMismatch, InvalidArgument, PrivacyError
from dpfed.events import TreeAggregation
from dpfed.mechanisms.additive import grid_step, split
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_up

_COARSER = 2.0**10  # than the grid of single releases: sums of many steps must fit into 64 bits
_ROOM = 2**62
_LONGEST_DRAW = 10.0  # standard deviations; a normal draw ends before
_ROUNDING = 1 + 2.0**-48  # more than computing the widened scale in floats can lose

Value = TypeVar("Value", bound=Any)


@dataclass(frozen=True)
class _Node(Generic[Value]):
    level: int
    total: Value
    estimate: Value


class PartialSums(Generic[Value]):
    """The changes of noisy partial sums, one for each number, from the nodes of `restarts` + 1 trees.

    `noised` gives a sum with new noise; it is called once for every node, when the node is complete. The best estimate
    of a node weighs its own noisy value against the sum of its halves' estimates, by their variances (Honaker 2015,
    the estimator from below): 1/(2 − 2⁻ˡ) of the node's noise is left at level l.

    Privacy: all that leaves is computed from the noised nodes, so it is ``TreeAggregation`` if the noise of one node is
    noise_multiplier × the largest contribution to one number. No more than `steps` numbers are taken, and none after
    one that failed halfway.
    """

    def __init__(self, noised: Callable[[Value], Value], event: TreeAggregation) -> None:
        self._add_node_noise = noised
        self._event = event
        self._taken = 0
        self._is_whole = True
        self._open: list[_Node[Value]] = []
        self._process = os.getpid()
        self._lock = threading.Lock()

    def add(self, value: Value) -> Value:
        """Return by how much this number changes the noisy partial sum."""
        with self._lock:
            return self._add(value)

    def _add(self, value: Value) -> Value:
        self._begin()
        self._is_whole = False
        node, before = _Node(0, value, self._add_node_noise(value)), None
        while self._open and self._open[-1].level == node.level:
            left = self._open.pop()
            before = left.estimate if before is None else before + left.estimate
            node = self._join(left, node)
        self._open.append(node)
        self._is_whole = True
        change: Value = node.estimate if before is None else node.estimate - before
        return change

    def _begin(self) -> None:
        steps, trees = self._event.steps, self._event.restarts + 1
        if os.getpid() != self._process:
            message = "a tree was used in a forked process, but its nodes may get their noise in one process only"
            raise PrivacyError(f"{message}: charge and start a new tree")
        if not self._is_whole:  # its nodes would be of other steps than the event's
            raise PrivacyError("a step of this tree did not come to its end: charge and start a new tree")
        if self._taken == steps:
            message = f"all {steps} steps of the tree were taken, and what was charged is for no more"
            raise InvalidArgument("steps", f"{message}: charge and start a new tree")
        tree = -(-self._taken * trees // steps)
        if tree * steps // trees == self._taken:  # the first step of this tree
            self._open = []
        self._taken += 1

    def _join(self, left: _Node[Value], right: _Node[Value]) -> _Node[Value]:
        level, total = left.level + 1, left.total + right.total
        share = 1 / (2 - 2.0**-level)
        estimate = share * self._add_node_noise(total) + (1 - share) * (left.estimate + right.estimate)
        return _Node(level, total, estimate)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            "a tree was to be copied or pickled, but a copy would use its noise with other data: start a new tree"
        )


class TreeMechanism:
    """Noise on up to ``event.steps`` numbers or arrays of one shape, of which their partial sums have little.

    `sensitivity` bounds in L2 what one unit contributes to one call. The caller keeps the pattern that the event
    states: one unit in at most max_participations calls, min_separation apart, and where it takes part moves nobody.

    Privacy: ``event``, which must be charged before the first call; all calls are this one event. With one unit added
    or removed all nodes together move by sensitivity × √(squared_sensitivity(event)) at most
    (:mod:`dpfed.accounting.tree_sensitivity`), replaced, by twice that; each has noise of noise_multiplier ×
    sensitivity. What one call is given may depend on what earlier calls gave (Denisov et al. 2022, Theorem 2.1). Values
    are rounded to a fixed grid of step g and cut at about ±2³² scales over the steps, which moves no two of them apart
    by more than g a coordinate, and are added up as whole numbers; noise is widened for that. Nothing is stored: a
    program that ended has lost its tree, and goes on with a new one and a new charge.
    """

    def __init__(
        self, event: TreeAggregation, sensitivity: Sensitivity | float, source: RandomSource | None = None
    ) -> None:
        if not isinstance(event, TreeAggregation):
            raise InvalidArgument("event", f"event must be a TreeAggregation, got {event!r}")
        self.event = event
        self.sensitivity = in_norm("l2", sensitivity)
        if self.sensitivity.adjacency != ADD_REMOVE:
            message = "a tree's sensitivity is what adding or removing one unit moves, and the accountant doubles it"
            raise AdjacencyMismatch(f"{message} for replace_one, got {self.sensitivity!r}")
        self._source = or_system(source)
        self._sums: PartialSums[Any] = PartialSums(self._add_node_noise, event)
        self._dimension: int | None = None

    @property
    def scale(self) -> float:
        """The standard deviation of the noise of one node."""
        return checks.positive(scale=round_up(Fraction(self.event.noise_multiplier) * Fraction(self.sensitivity)))

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return self._source.is_private

    def add_noise(self, x: Any) -> Any:
        """Add noise to x, such that all that was returned so far adds up to the noisy partial sum of the tree."""
        parts = arrays.leaves(x, "x")
        vector = np.concatenate([part.ravel() for part in parts])
        if self._dimension not in (None, vector.size):
            message = f"x must have {self._dimension} numbers, as before in this tree, got {vector.size}"
            raise InvalidArgument("x", message)
        self._dimension = vector.size
        most = _ROOM // self.event.steps
        with np.errstate(over="ignore"):
            steps = np.clip(np.rint(vector / self._grid), -most, most).astype(np.int64)
        return arrays.rebuild(x, split(self._sums.add(steps) * self._grid, parts))

    @property
    def _grid(self) -> float:
        return grid_step(self.scale) * _COARSER

    def _add_node_noise(self, total: NDArray[np.int64]) -> NDArray[np.int64]:
        widening = 1.0 + self._grid * math.sqrt(total.size) / float(self.sensitivity)
        steps = self.scale * widening * _ROUNDING / self._grid
        if not steps * _LONGEST_DRAW < _ROOM // 2:
            message = f"noise of {self.event.noise_multiplier:g} times the sensitivity on {total.size} numbers"
            raise InvalidArgument("event", f"{message} does not fit into 64 bits: use a smaller noise_multiplier")
        return total + np.rint(self._source.normal(total.size) * steps).astype(np.int64)

    def __repr__(self) -> str:
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return f"TreeMechanism({self.event!r}, sensitivity={float(self.sensitivity)!r}){stamp}"
