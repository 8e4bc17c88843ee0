"""Audit a local mechanism: how far apart do two values' reports come, at least, and does that refute the ε claimed?

A local mechanism is ε-DP if no set of reports is more than e^ε times as likely for one value as for another. So draw
many reports for each of two values, find sets that tell them apart, and bound the ratio from below. What is found holds
with the stated confidence; that no violation is found proves nothing.

>>> from dpfed.ldp import BinaryResponse
>>> from dpfed.randomness import SeededSource
>>> found = audit(BinaryResponse(truth=0.9), 0, 1, trials=20_000, source=SeededSource(1))
>>> found.is_refuted, round(found.lower, 1), round(found.claimed, 1)
(False, 2.1, 2.2)
>>> audit(BinaryResponse(truth=0.9), 0, 1, trials=20_000, claimed=1.0, source=SeededSource(1)).is_refuted
True
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource, or_system

MOST_OUTCOMES = 4096  # that are told apart: the more there are, the weaker the bound for each

Codes = NDArray[np.int64]
View = Callable[[Any], Any]


class LocalMechanism(Protocol):
    """What is audited: anything that randomizes a list of values."""

    def randomize(self, values: Any, source: RandomSource | None = None) -> Any:
        """Return one report for each value."""


@dataclass(frozen=True)
class Audit:
    """What reports of two values say about ε.

    `lower` is a lower bound of the true ε at that confidence. `largest` is the largest log-likelihood ratio observed:
    it may be above the true one by chance, and is ∞ where an outcome came for one value only.
    """

    lower: float
    largest: float
    claimed: float
    confidence: float
    trials: int
    events: int

    @property
    def is_refuted(self) -> bool:
        """Whether the true ε is above the one claimed, at that confidence."""
        return self.lower > self.claimed

    def __str__(self) -> str:
        verdict = "REFUTED: ε is at least" if self.is_refuted else "not refuted; ε is at least"
        return (
            f"claimed ε = {self.claimed:.4g}: {verdict} {self.lower:.4g} with confidence {self.confidence:g} "
            f"({self.trials:,} reports of each value, {self.events} sets of outcomes)"
        )


def audit(
    mechanism: LocalMechanism,
    first: Any,
    second: Any,
    *,
    claimed: float | None = None,
    trials: int = 100_000,
    confidence: float = 0.999,
    view: View | None = None,
    source: RandomSource | None = None,
) -> Audit:
    """Return how far reports of two values are apart, at least: the largest log-likelihood ratio with its bound.

    `claimed` is the mechanism's own `epsilon` unless it is given. `view` turns reports into whole numbers that keep
    what tells the values apart; by default it is how far each report supports the two values, or the reports
    themselves where a mechanism has no `supports`.

    Half of the reports puts outcomes in order of their likelihood ratio, the other half counts the sets of the first
    k of them: each ratio of two chances is bounded by Clopper and Pearson, at a level shared by all sets (Bonferroni).
    """
    trials, claim = checks.count(trials=trials), _read_claim(mechanism, claimed)
    risk = 1 - checks.positive_probability(confidence=confidence)
    look, coin = view or _default_view(mechanism, first, second), or_system(source)
    drawn = _require_alike([np.asarray(mechanism.randomize(np.full(trials, v), coin)) for v in (first, second)], trials)
    learned, counted = _tabulate(_number(look, drawn).reshape(2, trials))
    lower = max(_bound(learned, counted, risk), _bound(learned[::-1], counted[::-1], risk), 0.0)
    return Audit(lower, _largest(learned + counted), claim, confidence, trials, 2 * learned.shape[1])


def _read_claim(mechanism: LocalMechanism, claimed: float | None) -> float:
    claim = getattr(mechanism, "epsilon", None) if claimed is None else claimed
    if claim is None:
        raise InvalidArgument(
            "claimed", "claimed must be the ε to refute, since the mechanism has no `epsilon`: give it"
        )
    return checks.non_negative(claimed=claim)


def _default_view(mechanism: Any, first: Any, second: Any) -> View:
    if not hasattr(mechanism, "supports"):
        return np.asarray

    def look(reports: Any) -> Codes:
        ours, theirs = (np.asarray(mechanism.supports(reports, value), dtype=np.int64) for value in (first, second))
        return np.asarray(ours * (1 + theirs.max(initial=0)) + theirs)

    return look


def _require_alike(drawn: list[NDArray[Any]], trials: int) -> list[NDArray[Any]]:
    """Return both values' reports, if there is one for each user and they are all of one type.

    Put together they would be converted to one, and what tells them apart without any noise would be gone.
    """
    kinds = {(each.dtype.kind if each.dtype.kind in "US" else each.dtype, each.shape[1:]) for each in drawn}
    if len(kinds) > 1 or any(each.shape[:1] != (trials,) for each in drawn):
        raise InvalidArgument(
            "mechanism",
            "mechanism must return one report for each user, of the same type and shape for both values: these tell "
            "the values apart by what they are, so no ε holds; let every value's reports be of one type",
        )
    return drawn


def _number(look: View, drawn: list[NDArray[Any]]) -> Codes:
    """Return the outcomes of all reports as numbers from 0 on."""
    seen = np.asarray(look(np.concatenate(drawn)))
    if seen.ndim != 1 or seen.dtype.kind not in "iub":
        rows = np.ascontiguousarray(seen.reshape(len(seen), -1))
        seen = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    found, numbers = np.unique(seen, return_inverse=True)
    if len(found) > MOST_OUTCOMES:
        raise InvalidArgument(
            "view",
            f"view must leave at most {MOST_OUTCOMES} outcomes, or each is too rare to count: give one that keeps only "
            "the parts of a report in which the two values differ",
        )
    return numbers.reshape(-1)


def _tabulate(numbers: Codes) -> tuple[Codes, Codes]:
    """Return how often each outcome came for each value: in the half to learn from, and in the half that counts.

    Outcomes that the first half does not have are one outcome, the last: what is counted was fixed before.
    """
    middle = numbers.shape[1] // 2
    known = np.unique(numbers[:, :middle])
    place = np.full(numbers.max() + 1, len(known))
    place[known] = np.arange(len(known))
    counts = [
        np.array([np.bincount(place[row[half]], minlength=len(known) + 1) for row in numbers])
        for half in (slice(0, middle), slice(middle, None))
    ]
    return counts[0], counts[1]


def _bound(learned: Codes, counted: Codes, risk: float) -> float:
    """Return the best lower bound of a set's log-likelihood ratio, first value against second."""
    from dpfed.audit.proportions import find_limits

    order = np.argsort(-(learned[0] + 0.5) / (learned[1] + 0.5), kind="stable")
    hits, misses = np.cumsum(counted[:, order], axis=1)
    level = risk / (4 * learned.shape[1])  # two ends, two directions
    ours, theirs = counted.sum(axis=1)
    lowest, highest = find_limits(hits, ours, tail=level)[0], find_limits(misses, theirs, tail=level)[1]
    with np.errstate(divide="ignore"):
        return float(np.max(np.log(lowest) - np.log(highest)))


def _largest(counts: Codes) -> float:
    """Return the largest observed log-likelihood ratio of an outcome, either way round."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    seen = shares[:, shares.max(axis=0) > 0]
    return math.inf if seen.min() == 0 else float(np.max(np.abs(np.log(seen[0]) - np.log(seen[1]))))
