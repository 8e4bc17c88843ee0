"""Gaussian noise, calibrated by the exact condition and not by the textbook formula.

>>> mechanism = GaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=1.0)
>>> round(mechanism.scale, 4)
3.7306
>>> GaussianMechanism.from_noise_multiplier(1.5, sensitivity=2.0).event
Gaussian(noise_multiplier=1.5)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.closed_forms import gaussian_mu
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.additive import perturb
from dpfed.mechanisms.sensitivity import Sensitivity, in_norm
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_up

ANALYTIC = "analytic"
CLASSICAL = "classical"


@dataclass(frozen=True, repr=False)
class GaussianMechanism:
    """Noise N(0, scale²) on every coordinate of a query of L2 sensitivity `sensitivity`.

    Privacy: (ε, δ) for neighbours under the sensitivity's adjacency: add/remove for a bare number.
    calibration="analytic" is the smallest scale that is enough (Balle and Wang 2018, Theorem 8);
    "classical", the formula √(2 ln(1.25/δ)) Δ/ε of Dwork and Roth (2014, Theorem A.1), is proved for ε ≤ 1
    only and refused above. The event is Gaussian(scale/sensitivity); for a replace-one sensitivity, which
    says nothing about add/remove, it is ZeroConcentratedDP(Δ²/(2 scale²), adjacency="replace_one") (Bun and
    Steinke 2016, Proposition 1.6). The hardened path (the default) is described in
    :mod:`dpfed.mechanisms.additive`.
    """

    epsilon: float | None
    delta: float | None
    sensitivity: Sensitivity | float
    calibration: str = ANALYTIC
    hardened: bool = True
    source: RandomSource | None = None
    noise_multiplier: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sensitivity", in_norm("l2", self.sensitivity))
        object.__setattr__(self, "source", or_system(self.source))
        object.__setattr__(self, "noise_multiplier", self._calibrate())

    @classmethod
    def from_noise_multiplier(
        cls,
        noise_multiplier: float,
        sensitivity: Sensitivity | float,
        *,
        hardened: bool = True,
        source: RandomSource | None = None,
    ) -> GaussianMechanism:
        """Return the mechanism of scale noise_multiplier × sensitivity; ask an accountant for its ε."""
        multiplier = checks.positive(noise_multiplier=noise_multiplier)
        return cls(None, None, sensitivity, hardened=hardened, source=source, noise_multiplier=multiplier)

    @property
    def scale(self) -> float:
        """The standard deviation of the noise."""
        return checks.positive(scale=round_up(Fraction(self._multiplier) * Fraction(self.sensitivity)))

    @property
    def event(self) -> ev.Event:
        """The event of one call of add_noise."""
        if self._sensitivity.adjacency == ADD_REMOVE:
            return ev.Gaussian(noise_multiplier=self._multiplier)
        rho = round_up(1 / (2 * Fraction(self._multiplier) ** 2))
        return ev.ZeroConcentratedDP(rho=rho, adjacency=self._sensitivity.adjacency)

    @property
    def is_private(self) -> bool:
        """Whether the noise is unpredictable; a seeded source's is not."""
        return or_system(self.source).is_private

    def add_noise(self, x: Any) -> Any:
        """Add noise to every number of x, in the same structure and precision (integers become float64)."""
        return perturb(x, or_system(self.source).normal, self.scale, self._widening, self.hardened)

    def for_sensitivity(self, sensitivity: Sensitivity | float) -> GaussianMechanism:
        """Return the mechanism of the same guarantee for another sensitivity; a bare number keeps the adjacency."""
        return replace(self, sensitivity=in_norm("l2", sensitivity, self._sensitivity.adjacency))

    @property
    def _multiplier(self) -> float:
        return checks.positive(noise_multiplier=self.noise_multiplier)

    @property
    def _sensitivity(self) -> Sensitivity:
        return in_norm("l2", self.sensitivity)

    def _widening(self, step: float, dimension: int) -> float:
        return 1.0 + step * math.sqrt(dimension) / float(self.sensitivity)

    def _calibrate(self) -> float:
        if self.epsilon is None and self.delta is None:
            return self._multiplier
        multiplier = calibrated_multiplier(self.epsilon, self.delta, self.calibration)
        if self.noise_multiplier not in (None, multiplier):
            raise InvalidArgument(
                "noise_multiplier",
                f"(ε, δ) = ({self.epsilon}, {self.delta}) asks for noise_multiplier {multiplier}, got "
                f"{self.noise_multiplier} as well: give the one or the other",
            )
        return multiplier

    def __repr__(self) -> str:
        promise = "" if self.epsilon is None else f"epsilon={self.epsilon!r}, delta={self.delta!r}, "
        stamp = "" if self.is_private else " [NOT PRIVATE]"
        return (
            f"GaussianMechanism({promise}sensitivity={float(self.sensitivity)!r}, scale={self.scale!r}, "
            f"adjacency={self._sensitivity.adjacency!r}){stamp}"
        )


def calibrated_multiplier(epsilon: float | None, delta: float | None, calibration: str = ANALYTIC) -> float:
    """Return the noise multiplier σ/Δ that gives (ε, δ), rounded up."""
    target, failure = checks.positive(epsilon=epsilon), checks.positive_probability(delta=delta)
    if calibration == ANALYTIC:
        return round_up(1 / Fraction(gaussian_mu(target, failure)))
    if calibration != CLASSICAL:
        raise InvalidArgument("calibration", f"calibration must be 'analytic' or 'classical', got {calibration!r}")
    if target > 1:
        raise InvalidArgument(
            "epsilon",
            f"the classical formula is proved for ε ≤ 1 only, got {target}: use calibration='analytic'",
        )
    return math.sqrt(2 * math.log(1.25 / failure)) / target * (1 + 2.0**-50)


def add_noise(gradients: Any, noise_multiplier: float, clip_norm: float, source: RandomSource | None = None) -> Any:
    """Add N(0, (noise_multiplier × clip_norm)²) to every number of the gradients; keep structure and precision.

    Privacy: event Gaussian(noise_multiplier) when `gradients` is one clipped contribution or the *sum* of
    contributions clipped to clip_norm. A mean over a fixed public K has clip_norm/K as its sensitivity: pass
    that; a mean over the realised count has no fixed sensitivity.
    """
    clip_norm = checks.positive(clip_norm=clip_norm)
    return GaussianMechanism.from_noise_multiplier(noise_multiplier, clip_norm, source=source).add_noise(gradients)
