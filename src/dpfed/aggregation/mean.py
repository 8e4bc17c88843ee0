"""The mean of clipped updates over a public denominator, and how far one client can move it.

Who is missing contributes zero and the denominator stays: dividing by the number of updates that came would let one
client change the weight of all others. Weights are constants of the plan, never what a client says of itself, and the
largest of them decides the sensitivity.

>>> mean = ClippedMean(clip_norm=1.0, denominator=10.0)
>>> mean.of({"north": np.array([3.0, 4.0]), "south": np.array([0.0, 0.5])}, size=2).round(6)
array([0.06, 0.13])
>>> mean.sensitivity("add_remove"), mean.sensitivity("replace_one")
(Sensitivity(0.1, norm='l2', adjacency='add_remove'), Sensitivity(0.2, norm='l2', adjacency='replace_one'))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats, exact
from dpfed.checks import REPLACE_ONE
from dpfed.clipping import clip_per_example, sum_examples
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.rounding import round_up

MOST_CLIENTS = 1 << 20  # more are not added up exactly
_AT_ONCE = 1 << 22  # numbers in memory
_LARGEST_PLAIN = 1 << 53  # above that, an int may be no float


@dataclass(frozen=True, kw_only=True)
class ClippedMean:
    """Σ weight·clip(update) over `denominator`: both public and fixed before any update is seen.

    Without `weights` all clients have weight 1 and the denominator is the expected size of a cohort. A clip norm of ∞
    is for runs that protect no client: it has no sensitivity.

    Privacy: updates are clipped to `clip_norm` in L2, weighted relative to the largest weight, cut to a grid and added
    up without rounding error. Adding or removing one client, while the constants stay as they are, moves `total` by
    at most clip_norm, to the last bit; replacing one, by at most twice that. Noise belongs on `total` (the event is
    Gaussian(std/clip_norm), unit client; McMahan, Ramage, Talwar and Zhang 2018); `scaled` is post-processing. The
    mean itself is `total` rounded once more by scaling: it moves by at most ``sensitivity`` and 2⁻⁵² of both
    means' lengths together.
    """

    clip_norm: float
    denominator: float
    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.clip_norm != math.inf:
            object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))
        object.__setattr__(self, "denominator", checks.positive(denominator=self.denominator))
        if self.weights is not None:
            weights = {name: _check_weight(weight) for name, weight in self.weights.items()}
            if not any(weights.values()):
                raise InvalidArgument("weights", f"at least one of the weights must be above 0, got {weights}")
            object.__setattr__(self, "weights", MappingProxyType(weights))

    @property
    def largest_weight(self) -> float:
        """The weight that decides the sensitivity, whoever takes part."""
        return 1.0 if self.weights is None else max(self.weights.values())

    def sensitivity(self, adjacency: str) -> Sensitivity:
        """Return the most that one client moves the mean: clip norm × largest weight/denominator, twice if replaced."""
        if self.clip_norm == math.inf:
            message = "a mean of updates that are not clipped has no sensitivity: give it a clip_norm"
            raise InvalidArgument("clip_norm", message)
        share = Fraction(self.largest_weight) / Fraction(self.denominator)
        return sensitivity_of_mean(self.clip_norm, share, adjacency)

    def of(self, updates: Mapping[str, Floats], size: int) -> Floats:
        """Return the mean, without noise; `size` is that of an update, for a round in which none came."""
        return self.scaled(self.total(updates, size))

    def scaled(self, total: Floats) -> Floats:
        """Return the mean that belongs to a total, noised or not."""
        return np.asarray(total) * (self.largest_weight / self.denominator)

    def total(self, updates: Mapping[str, Floats], size: int) -> Floats:
        """Return the sum of clipped updates by relative weight; an update that is not finite counts as zero.

        Refusing it here would stop the round for all; screening has refused it before.
        """
        if len(updates) > MOST_CLIENTS:
            raise InvalidArgument("updates", f"updates must be of at most {MOST_CLIENTS} clients, got {len(updates)}")
        total = np.zeros(checks.count(size=size))
        names, several = list(updates), max(1, _AT_ONCE // size)
        for some in (names[start : start + several] for start in range(0, len(names), several)):
            total += self._sum_part(
                self._stack([updates[name] for name in some], size), list(self._relative_weights(some))
            )
        return total

    def _relative_weights(self, names: Sequence[str]) -> Iterator[float]:
        largest = self.largest_weight
        for name in names:
            if self.weights is not None and name not in self.weights:
                raise InvalidArgument("updates", f"{name!r} has no weight: updates must be of clients of the plan")
            yield 1.0 if self.weights is None else self.weights[name] / largest

    def _sum_part(self, rows: Floats, weights: list[float]) -> Floats:
        if self.clip_norm == math.inf:
            return np.asarray(np.asarray(weights) @ rows)
        # Rounding |w·x| with w ≤ 1 to the nearest float never exceeds |x|: weighing lengthens nothing.
        return sum_examples(clip_per_example(rows, self.clip_norm) * np.asarray(weights)[:, None], self.clip_norm)

    def _stack(self, updates: Sequence[Floats], size: int) -> Floats:
        read = [exact(update, "updates") for update in updates]
        shapes = {update.shape for update in read}
        if shapes != {(size,)}:
            raise InvalidArgument("updates", f"updates must have the shape ({size},), got {sorted(shapes)}")
        rows = np.stack(read)
        return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)


def sensitivity_of_mean(clip_norm: float, largest_share: Fraction, adjacency: str) -> Sensitivity:
    """Return how far one client can move a mean: clip norm × largest share, rounded up, and twice that if replaced."""
    times = 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1
    return Sensitivity(round_up(times * largest_share * Fraction(clip_norm)), "l2", adjacency)


def _check_weight(value: Any) -> float:
    # Ten thousand clients have ten thousand of them every round: what is plainly right is not asked twice.
    if type(value) in (int, float) and 0 <= value <= _LARGEST_PLAIN:
        return float(value)
    return checks.non_negative(weights=value)
