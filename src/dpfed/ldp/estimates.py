"""Estimated frequencies with their standard errors, as they come: unbiased, and therefore sometimes below 0.

Cutting them off at 0 makes every rare value look more frequent than it is. So it happens only by name: `clip` and
`project` are post-processing, which costs no privacy and adds bias.

>>> found = Estimate([0.7, 0.4, -0.1], [0.05, 0.05, 0.05], users=900)
>>> found.interval()[0].round(3).tolist()
[0.602, 0.302, -0.198]
>>> found.project().round(3).tolist()
[0.65, 0.35, 0.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Unbiased estimates of the share of users with each value, and the standard error of each."""

    frequencies: Floats
    standard_errors: Floats
    users: int

    def __post_init__(self) -> None:
        for name in ("frequencies", "standard_errors"):
            object.__setattr__(self, name, _freeze(getattr(self, name)))
        if self.frequencies.shape != self.standard_errors.shape or self.frequencies.ndim != 1:
            message = "frequencies and standard_errors must be two lists of the same length: give one error for each"
            raise InvalidArgument("standard_errors", message)
        object.__setattr__(self, "users", checks.count(users=self.users))

    def __len__(self) -> int:
        return len(self.frequencies)

    @property
    def counts(self) -> Floats:
        """The estimated number of users with each value."""
        return self.frequencies * self.users

    def interval(self, confidence: float = 0.95, *, together: bool = False) -> tuple[Floats, Floats]:
        """Return both ends of a normal confidence interval for each value.

        With together=True all of them hold at once with that confidence (Bonferroni), as whoever looks for the
        largest one needs it.
        """
        half = normal_quantile(confidence, len(self) if together else 1) * self.standard_errors
        return self.frequencies - half, self.frequencies + half

    def clip(self) -> Floats:
        """Return the estimates cut to [0, 1]: post-processing, biased upwards for rare values."""
        return np.clip(self.frequencies, 0.0, 1.0)

    def project(self) -> Floats:
        """Return the nearest frequencies that are not negative and add up to 1: post-processing, biased."""
        ordered = np.sort(self.frequencies)[::-1]
        excess = (np.cumsum(ordered) - 1.0) / np.arange(1, len(ordered) + 1)
        kept = int(np.flatnonzero(ordered > excess)[-1])
        return np.asarray(np.maximum(self.frequencies - excess[kept], 0.0))


@dataclass(frozen=True, eq=False)
class MeanEstimate:
    """Unbiased estimates of the users' mean, one number or one for each coordinate, and the standard error of each."""

    means: Floats
    standard_errors: Floats
    users: int

    def __post_init__(self) -> None:
        for name in ("means", "standard_errors"):
            object.__setattr__(self, name, _freeze(getattr(self, name)))

    def interval(self, confidence: float = 0.95, *, together: bool = False) -> tuple[Floats, Floats]:
        """Return both ends of a normal confidence interval for each mean, or with together=True for all at once."""
        half = normal_quantile(confidence, self.means.size if together else 1) * self.standard_errors
        return self.means - half, self.means + half


def normal_quantile(confidence: float, intervals: int = 1) -> float:
    """Return how many standard errors an interval reaches on each side, for so many intervals at once."""
    from scipy.special import ndtri

    tail = (1.0 - checks.positive_probability(confidence=confidence)) / (2 * checks.count(intervals=intervals))
    return float(-ndtri(tail))


def _freeze(values: ArrayLike) -> NDArray[Any]:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array
