"""Guesses from scores: who was in, said only where it is surest, in numbers that nobody chose after looking.

An attacker may choose how many guesses to make, and about which canaries, from the scores alone. Whoever chooses with
the answers at hand tries many tests and must pay for each. A canary whose score ties with the last one guessed counts
as the wrong one: no order of the input can help.

>>> guess_surest(np.array([3.0, 2.0, -1.0]), np.array([0.0, -2.0, -3.0]), share=1 / 3)
Guesses(canaries=6, made=2, correct=2)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource

Scores = NDArray[np.float64]

GRID, SPLIT, FRONTIER = "grid", "split", "frontier"
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)  # of the canaries, that are guessed


@dataclass(frozen=True)
class Guesses:
    """How many guesses were made about so many canaries, and how many of them are correct."""

    canaries: int
    made: int
    correct: int

    @property
    def wrong(self) -> int:
        """The number of guesses that are not correct."""
        return self.made - self.correct

    @property
    def precision(self) -> float:
        """The share of correct guesses."""
        return self.correct / self.made

    @property
    def share(self) -> float:
        """The share of the canaries that were guessed."""
        return self.made / self.canaries


def require_scores(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Scores, Scores]:
    """Return both as vectors of floats; refuse none at all, and what cannot be ordered."""
    return _require_vector("in_scores", in_scores), _require_vector("out_scores", out_scores)


def list_guesses(members: Scores, others: Scores, threshold: str | float) -> Iterator[Guesses]:
    """Yield the guesses that a rule makes: `GRID`, `FRONTIER`, or all canaries beyond one threshold."""
    if threshold == GRID:
        sizes = dict.fromkeys(_count_guesses(share, len(members) + len(others)) for share in SHARES)
        for size in sizes:
            yield _guess(members, others, size)
    elif threshold == FRONTIER:
        yield from _list_corners(members, others)
    elif isinstance(threshold, str):
        known = f"{GRID!r}, {SPLIT!r}, {FRONTIER!r} or a number"
        raise InvalidArgument("threshold", f"threshold must be {known}, got {threshold!r}")
    else:
        yield _guess_beyond(members, others, checks.finite(threshold=threshold))


def guess_surest(members: Scores, others: Scores, share: float) -> Guesses:
    """Guess that share of the canaries: "in" for the highest scores and "out" for the lowest, equally many."""
    return _guess(members, others, _count_guesses(share, len(members) + len(others)))


def split(members: Scores, others: Scores, source: RandomSource) -> tuple[tuple[Scores, Scores], tuple[Scores, Scores]]:
    """Return two halves of the canaries, each canary in one of them by a coin that knows nothing of it."""
    coins = [source.uniform(len(scores)) < 0.5 for scores in (members, others)]
    halves = [(members[coins[0] == side], others[coins[1] == side]) for side in (True, False)]
    if not all(len(scores) for half in halves for scores in half):
        raise InvalidArgument("threshold", "there are too few canaries to split them: use threshold='grid'")
    return halves[0], halves[1]


def _count_guesses(share: float, canaries: int) -> int:
    return min(canaries, max(1, round(share * canaries)))


def _guess(members: Scores, others: Scores, size: int) -> Guesses:
    # Of a tie between an in and an out, the wrong one is guessed first.
    scores = np.concatenate([members, others])
    is_in = np.arange(len(scores)) < len(members)
    upper = (size + 1) // 2
    highest = np.lexsort((is_in, -scores))[:upper]
    ascending = np.lexsort((~is_in, scores))
    lowest = ascending[~np.isin(ascending, highest)][: size - upper]
    correct = int(is_in[highest].sum()) + int((~is_in[lowest]).sum())
    return Guesses(len(scores), size, correct)


def _guess_beyond(members: Scores, others: Scores, threshold: float) -> Guesses:
    hits, alarms = int((members >= threshold).sum()), int((others >= threshold).sum())
    if not hits + alarms:
        message = f"no score reaches the threshold {threshold:g}, so that nothing is guessed: choose a lower one"
        raise InvalidArgument("threshold", message)
    return Guesses(len(members) + len(others), hits + alarms, hits)


def _list_corners(members: Scores, others: Scores) -> Iterator[Guesses]:
    """Yield the guesses "in" above each corner of the upper hull of the ROC curve; one of them makes none."""
    thresholds = np.append(np.union1d(members, others), np.inf)
    hits = len(members) - np.searchsorted(np.sort(members), thresholds, side="left")
    alarms = len(others) - np.searchsorted(np.sort(others), thresholds, side="left")
    for place in _find_hull(alarms[::-1], hits[::-1]):
        made = int(hits[::-1][place] + alarms[::-1][place])
        # The corner without a guess is a test too: it is counted, and proves nothing.
        yield Guesses(len(members) + len(others), max(made, 1), int(hits[::-1][place]) if made else 0)


def _find_hull(across: NDArray[Any], up: NDArray[Any]) -> list[int]:
    """Return the places of the points on the upper hull, from left to right."""
    hull: list[int] = []
    for place in range(len(across)):
        while len(hull) > 1 and not _turns_right(across, up, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    return hull


def _turns_right(across: NDArray[Any], up: NDArray[Any], first: int, second: int, third: int) -> bool:
    rise = int(up[second] - up[first]) * int(across[third] - across[second])
    return rise > int(up[third] - up[second]) * int(across[second] - across[first])


def _require_vector(name: str, scores: ArrayLike) -> Scores:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not values.size or np.isnan(values).any():
        message = f"{name} must be one number for each canary, and none of them NaN, or they cannot be ordered"
        raise InvalidArgument(name, f"{message}: got shape {values.shape}; leave out an attack that failed")
    return values
