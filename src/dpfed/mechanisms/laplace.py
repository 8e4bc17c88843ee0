"""Laplace noise: pure ε-differential privacy for queries of bounded L1 sensitivity.

>>> mechanism = LaplaceMechanism(epsilon=0.5, sensitivity=1.0)
>>> mechanism.scale, mechanism.event
(2.0, Laplace(noise_multiplier=2.0))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import ADD_REMOVE
from dpfed.mechanisms.additive import perturb
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_down, round_up


@dataclass(frozen=True, repr=False)
class LaplaceMechanism:
    """Noise of density exp(−|x|/b)/(2b), b = sensitivity/ε, on every coordinate of a query.

    Privacy: ε-DP (Dwork, McSherry, Nissim and Smith 2006) for a query of L1 sensitivity `sensitivity` under
    its adjacency: add/remove for a bare number. The event is Laplace(b/sensitivity); for a replace-one
    sensitivity, which says nothing about add/remove, it is PureDP(ε, adjacency="replace_one"). The hardened
    path (the default) is described in :mod:`dpfed.mechanisms.additive`.
    """

    epsilon: float
    sensitivity: Sensitivity | float
    hardened: bool = True
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "sensitivity", in_norm("l1", self.sensitivity))
        object.__setattr__(self, "source", or_system(self.source))

    @classmethod
    def from_noise_multiplier(
        cls, noise_multiplier: float, sensitivity: Sensitivity | float, *, source: RandomSource | None = None
    ) -> LaplaceMechanism:
        """Return the mechanism of scale noise_multiplier × sensitivity, or the next float above."""
        multiplier = checks.positive(noise_multiplier=noise_multiplier)
        return cls(round_down(1 / Fraction(multiplier)), sensitivity, source=source)

    @property
    def noise_multiplier(self) -> float:
        """b over the sensitivity: 1/ε, rounded up."""
        return round_up(1 / Fraction(self.epsilon))

    @property
    def scale(self) -> float:
        """Laplace's b; the standard deviation is √2 b."""
        return checks.positive(scale=round_up(Fraction(self.sensitivity) * Fraction(self.noise_multiplier)))

    @property
    def event(self) -> ev.Event:
        """The event of one call of add_noise."""
        adjacency = self._sensitivity.adjacency
        if adjacency == ADD_REMOVE:
            return ev.Laplace(noise_multiplier=self.noise_multiplier)
        return ev.PureDP(epsilon=self.epsilon, adjacency=adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    def add_noise(self, x: Any) -> Any:
        """Add noise to every number of x, in the same structure and precision (integers become float64)."""
        return perturb(x, or_system(self.source).laplace, self.scale, self._widening, self.hardened)

    def for_sensitivity(self, sensitivity: Sensitivity | float) -> LaplaceMechanism:
        """Return the mechanism of the same ε for another sensitivity; a bare number keeps the adjacency."""
        return replace(self, sensitivity=in_norm("l1", sensitivity, self._sensitivity.adjacency))

    @property
    def _sensitivity(self) -> Sensitivity:
        return in_norm("l1", self.sensitivity)

    def _widening(self, step: float, dimension: int) -> float:
        return 1.0 + step * dimension / float(self.sensitivity)

    def __repr__(self) -> str:
        sensitivity = self._sensitivity
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return (
            f"LaplaceMechanism(epsilon={self.epsilon!r}, sensitivity={float(sensitivity)!r}, "
            f"scale={self.scale!r}, adjacency={sensitivity.adjacency!r}){stamp}"
        )
