"""The noisy maximum of a count of votes: with Laplace noise, with Gaussian noise, and only where teachers agree.

One record is in one teacher. If it is added or removed, that teacher may vote otherwise: one count loses a vote and
another gains it. So the counts move by 2 in L1 and by √2 in L2, and the largest of them by 1. Replacing a record may
change two teachers, which is twice as much: the accountant doubles the shift of these events.

>>> LNMax(epsilon=0.1).scale                                  # Lap(2/ε); Lap(1/ε) would be 2ε-DP
20.0
>>> GNMax(sigma=40.0).event                                   # σ over √2
Gaussian(noise_multiplier=28.28...)
>>> GNMax(sigma=1.0).choose([250, 0, 0])
0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.events import Event
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.laplace import LaplaceMechanism
from dpfed.randomness import RandomSource, or_system

Counts = Sequence[int] | NDArray[Any]

L1_SHIFT = 2.0  # of the counts, when one teacher votes otherwise
L2_SHIFT = math.nextafter(math.sqrt(2.0), 2.0)  # √2, rounded up
MAX_SHIFT = 1.0  # of the largest count


def require_counts(counts: Counts) -> NDArray[np.int64]:
    """Return the votes of one query as whole numbers; refuse fewer than two classes, or what is no count."""
    found = np.asarray(counts)
    if found.ndim != 1 or len(found) < 2 or found.dtype.kind not in "iuf":
        raise InvalidArgument("counts", "counts must be the votes of one query, one number for each of its classes")
    if not np.array_equal(found, np.rint(found)) or (found < 0).any():
        raise InvalidArgument("counts", "counts must be whole numbers of at least 0: one vote for each teacher")
    return found.astype(np.int64)


@dataclass(frozen=True)
class LNMax:
    """The class with the most votes after Laplace noise of scale 2/ε on each count.

    Privacy: ε-DP for one record under add/remove, where a record is in one teacher: the counts move by 2 in L1
    (Papernot et al. 2017, with γ = ε/2). Only the class is released. The event is Laplace(1/ε), whose shift doubles
    under replace-one: 2ε, as for any group of two.
    """

    epsilon: float
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "source", or_system(self.source))

    @property
    def scale(self) -> float:
        """Laplace's b: 2/ε."""
        return self._mechanism.scale

    @property
    def event(self) -> Event:
        """The event of one answer."""
        return self._mechanism.event

    @property
    def threshold_event(self) -> None:
        """None: every query is answered."""
        return None

    def choose(self, counts: Counts) -> int:
        """Return the class that wins with noise."""
        return int(np.argmax(self._mechanism.add_noise(require_counts(counts))))

    def is_confident(self, counts: Counts) -> bool:
        """Return True: every query is answered."""
        return True

    def with_noise(self, noise: float) -> LNMax:
        """Return the same vote with Laplace noise of scale 2 × `noise`: ε = 1/noise."""
        return replace(self, epsilon=1 / checks.positive(noise=noise))

    @cached_property
    def _mechanism(self) -> LaplaceMechanism:
        return LaplaceMechanism(self.epsilon, L1_SHIFT, source=self.source)


@dataclass(frozen=True)
class GNMax:
    """The class with the most votes after Gaussian noise of standard deviation `sigma` on each count.

    Privacy: one record is in one teacher, so the counts move by √2 in L2 under add/remove. The event is
    Gaussian(σ/√2), which is 1/σ²-zCDP (Papernot et al. 2018, Proposition 8: RDP α/σ², and not α/(2σ²)); under
    replace-one the accountant doubles the shift, for two teachers. Only the class is released.
    """

    sigma: float
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive(sigma=self.sigma))
        object.__setattr__(self, "source", or_system(self.source))

    @property
    def event(self) -> Event:
        """The event of one answer."""
        return self._mechanism.event

    @property
    def threshold_event(self) -> Event | None:
        """None: every query is answered."""
        return None

    def choose(self, counts: Counts) -> int:
        """Return the class that wins with noise."""
        return int(np.argmax(self._mechanism.add_noise(require_counts(counts))))

    def is_confident(self, counts: Counts) -> bool:
        """Return True: every query is answered."""
        return True

    def with_noise(self, noise: float) -> GNMax:
        """Return the same vote with noise of standard deviation `noise`."""
        return replace(self, sigma=noise)

    @cached_property
    def _mechanism(self) -> GaussianMechanism:
        # The multiplier is rounded down and the shift up: the noise drawn is never less than what is charged for.
        multiplier = math.nextafter(self.sigma / L2_SHIFT, 0.0)
        return GaussianMechanism.from_noise_multiplier(multiplier, L2_SHIFT, source=self.source)


@dataclass(frozen=True)
class ConfidentGNMax(GNMax):
    """GNMax for the queries whose largest count, with noise `threshold_sigma`, reaches the threshold.

    Privacy: the largest count moves by 1 under add/remove, so looking at it is Gaussian(threshold_sigma), for *every*
    query, the refused ones too; a query that passes costs the event of `GNMax` as well (Papernot et al. 2018,
    Algorithm 1). Which queries were answered is released with the answers.
    """

    threshold: float = 0.0
    threshold_sigma: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "threshold", checks.finite(threshold=self.threshold))
        object.__setattr__(self, "threshold_sigma", checks.positive(threshold_sigma=self.threshold_sigma))

    @property
    def threshold_event(self) -> Event:
        """The event of one look at the largest count."""
        return self._screen.event

    def is_confident(self, counts: Counts) -> bool:
        """Return whether the largest count reaches the threshold with noise: one draw, to be charged before."""
        return bool(self._screen.add_noise(float(require_counts(counts).max())) >= self.threshold)

    def with_noise(self, noise: float) -> ConfidentGNMax:
        """Return the same vote with noise of standard deviation `noise`; that of the threshold grows as much."""
        return replace(self, sigma=noise, threshold_sigma=noise * (self.threshold_sigma / self.sigma))

    @cached_property
    def _screen(self) -> GaussianMechanism:
        return GaussianMechanism.from_noise_multiplier(self.threshold_sigma, MAX_SHIFT, source=self.source)


Vote = LNMax | GNMax  # a ConfidentGNMax is a GNMax
