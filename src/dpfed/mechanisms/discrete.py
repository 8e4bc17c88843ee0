"""Integer noise for integer queries, sampled exactly: what is proved is what runs.

Counts, histograms and fixed-point vectors need no float at all. The noise law is exact to the last bit (see
:mod:`dpfed.mechanisms.exact`), so there is no gap between the theorem and the program; it costs tens of
microseconds a number.

>>> mechanism = DiscreteLaplaceMechanism.from_epsilon(0.5, sensitivity=1)
>>> mechanism.event
DiscreteLaplace(scale=2.0)
>>> type(mechanism.add_noise(42))
<class 'int'>
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpfed import arrays, checks
from dpfed import events as ev
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.exact import Coins, discrete_gaussian, discrete_laplace
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_up

_LARGEST_SCALE = 2.0**50  # beyond, noise would leave the 64-bit integers
_LARGEST_VALUE = 2.0**53  # beyond, floats skip integers, and from 2⁶³ on neighbours would wrap around apart


@dataclass(frozen=True, repr=False)
class DiscreteGaussianMechanism:
    """Noise P[k] ∝ exp(−k²/(2 scale²)) on each of the `dimension` integers of a query.

    Privacy: the query is integer with L2 sensitivity `sensitivity` under its adjacency: add/remove for a bare
    number. The event is DiscreteGaussian(scale, sensitivity, dimension): exact in one dimension,
    sensitivity²/(2 scale²)-zCDP in more (Canonne, Kamath and Steinke 2020, Theorem 4); that zCDP bound is
    also the event for a replace-one sensitivity.
    """

    scale: float
    sensitivity: Sensitivity | int
    dimension: int = 1
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _check_scale(self.scale))
        object.__setattr__(self, "sensitivity", _require_whole("l2", self.sensitivity))
        object.__setattr__(self, "dimension", checks.count(dimension=self.dimension))
        object.__setattr__(self, "source", or_system(self.source))

    @property
    def event(self) -> ev.Event:
        """The event of one call of add_noise."""
        sensitivity = in_norm("l2", self.sensitivity)
        if sensitivity.adjacency == ADD_REMOVE:
            return ev.DiscreteGaussian(self.scale, int(sensitivity), self.dimension)
        rho = round_up(Fraction(sensitivity) ** 2 / (2 * Fraction(self.scale) ** 2))
        return ev.ZeroConcentratedDP(rho, adjacency=sensitivity.adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    def add_noise(self, x: Any) -> Any:
        """Add integer noise to every number of x; integers stay integers (arrays of them become int64)."""
        scale = Fraction(self.scale)
        return _perturb(x, or_system(self.source), lambda coins: discrete_gaussian(coins, scale), self.dimension)

    def __repr__(self) -> str:
        return _show(self, in_norm("l2", self.sensitivity), f", dimension={self.dimension}")


@dataclass(frozen=True, repr=False)
class DiscreteLaplaceMechanism:
    """Noise P[k] ∝ exp(−|k|/scale) on every integer of a query: the two-sided geometric law.

    Privacy: sensitivity/scale-DP (Ghosh, Roughgarden and Sundararajan 2009) for an integer query of L1
    sensitivity `sensitivity` under its adjacency: add/remove for a bare number. The event is
    DiscreteLaplace(scale, sensitivity); for a replace-one sensitivity it is PureDP(sensitivity/scale,
    adjacency="replace_one").
    """

    scale: float
    sensitivity: Sensitivity | int
    source: RandomSource | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _check_scale(self.scale))
        object.__setattr__(self, "sensitivity", _require_whole("l1", self.sensitivity))
        object.__setattr__(self, "source", or_system(self.source))

    @classmethod
    def from_epsilon(
        cls, epsilon: float, sensitivity: Sensitivity | int, source: RandomSource | None = None
    ) -> DiscreteLaplaceMechanism:
        """Return the mechanism of the smallest scale that is ε-DP."""
        scale = Fraction(_require_whole("l1", sensitivity)) / Fraction(checks.positive(epsilon=epsilon))
        return cls(round_up(scale), sensitivity, source)

    @property
    def event(self) -> ev.Event:
        """The event of one call of add_noise."""
        sensitivity = in_norm("l1", self.sensitivity)
        if sensitivity.adjacency == ADD_REMOVE:
            return ev.DiscreteLaplace(self.scale, int(sensitivity))
        return ev.PureDP(round_up(Fraction(sensitivity) / Fraction(self.scale)), adjacency=sensitivity.adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    def add_noise(self, x: Any) -> Any:
        """Add integer noise to every number of x; integers stay integers (arrays of them become int64)."""
        scale = Fraction(self.scale)
        return _perturb(x, or_system(self.source), lambda coins: discrete_laplace(coins, scale))

    def __repr__(self) -> str:
        return _show(self, in_norm("l1", self.sensitivity))


def _check_scale(scale: float) -> float:
    scale = checks.positive(scale=scale)
    if scale > _LARGEST_SCALE:
        raise InvalidArgument("scale", f"scale must be at most 2⁵⁰, got {scale}: measure in larger units")
    return scale


def _require_whole(norm: str, sensitivity: Any) -> Sensitivity:
    checked = in_norm(norm, sensitivity)
    if not checked.is_integer():
        raise InvalidArgument(
            "sensitivity",
            f"sensitivity must be a whole number for an integer query, got {sensitivity!r}: round it up",
        )
    return checked


def _perturb(x: Any, source: RandomSource, draw: Callable[[Coins], int], dimension: int | None = None) -> Any:
    parts = arrays.leaves(x, "x")
    size = sum(part.size for part in parts)
    if dimension not in (None, size):
        raise InvalidArgument(
            "x",
            f"x must hold {dimension} numbers, which are charged, got {size}: give the mechanism dimension={size}",
        )
    if not all(np.array_equal(part, np.rint(part)) for part in parts):
        raise InvalidArgument("x", "x must hold whole numbers: round it, or use a mechanism for real numbers")
    if any(np.any(np.abs(part) >= _LARGEST_VALUE) for part in parts):
        raise InvalidArgument("x", "x must hold numbers below 2⁵³ in size: measure in larger units")
    coins = Coins(source)
    noisy = [part.astype(np.int64) + _draw_each(draw, coins, part) for part in parts]
    return arrays.rebuild_whole(x, noisy)


def _draw_each(draw: Callable[[Coins], int], coins: Coins, like: arrays.Floats) -> arrays.Whole:
    return np.array([draw(coins) for _ in range(like.size)], dtype=np.int64).reshape(like.shape)


def _show(
    mechanism: DiscreteGaussianMechanism | DiscreteLaplaceMechanism, sensitivity: Sensitivity, more: str = ""
) -> str:
    stamp = "" if mechanism.is_private else " [NOT PRIVATE]"
    return (
        f"{type(mechanism).__name__}(scale={mechanism.scale!r}, sensitivity={int(sensitivity)}{more}, "
        f"adjacency={sensitivity.adjacency!r}){stamp}"
    )
