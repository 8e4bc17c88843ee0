"""The fast path: δ(ε) by inverting the moments of the loss along a line, with every error on the safe side.

For any θ > 0, with s = θ + iw and M(s) = E_P[e^{sL}],

    δ(ε) = (1/2π) ∫ M(s) e^{−sε} / (s(s+1)) dw.

A sum with step 2π/W instead of the integral equals Σ_k δ(ε + kW) e^{θkW}: the extra terms are all positive, so the step
errs on the safe side only. Frequencies beyond Ω are bounded by `decay`, quadrature and rounding by `error`. Same family
as Zhu, Dong and Wang (2022) and Alghamdi et al. (2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpfed.accounting.laws import Array

_UNIT = 2.0**-52


@dataclass(frozen=True)
class Inversion:
    """One line of log-moments, ready to be asked for δ at any ε.

    `others` holds further tilts and their cumulants: Chernoff bounds from them limit what the step's copies may add.
    """

    tilt: float
    step: float
    moments: NDArray[np.complex128]
    error: float
    decay: float
    others: Sequence[tuple[float, float]]
    at_infinity: float = 0.0

    @cached_property
    def _frequencies(self) -> Array:
        return self.step * np.arange(len(self.moments))

    @cached_property
    def _terms(self) -> NDArray[np.complex128]:
        s = self.tilt + 1j * self._frequencies
        terms = np.exp(self.moments - self.log_mass) / (s * (s + 1))
        terms[0] /= 2
        return terms * (self.step / math.pi)

    @cached_property
    def _slack(self) -> float:
        """What truncation, quadrature and rounding may hide, as a share of e^{K − θε}."""
        s = self.tilt + 1j * self._frequencies
        kernel = float((self.step / np.abs(s * (s + 1))).sum())
        left_out = math.exp(self.decay) / (self.step * (len(self.moments) - 1))
        return (left_out + kernel * (math.expm1(self.error) + 16 * _UNIT)) / math.pi

    @property
    def log_mass(self) -> float:
        """K(θ) = log M(θ)."""
        return float(self.moments[0].real)

    def upper(self, epsilon: float) -> float:
        """An upper bound on δ(ε)."""
        scale = self._scale(epsilon)
        return scale * (self._sum(epsilon) + self._rounding(epsilon)) + self.at_infinity

    def lower(self, epsilon: float) -> float:
        """A lower bound on δ(ε)."""
        scale = self._scale(epsilon)
        return scale * (self._sum(epsilon) - self._rounding(epsilon)) - self._copies(epsilon) + self.at_infinity

    def width(self, epsilon: float) -> float:
        """How far apart the two bounds on δ(ε) are."""
        return 2 * self._scale(epsilon) * self._rounding(epsilon) + self._copies(epsilon)

    def _copies(self, epsilon: float) -> float:
        return copies(epsilon, self.tilt, self.step, self.others)

    def log_upper(self, epsilon: float) -> tuple[float, float]:
        """The log of the upper bound and its slope, to find roots with."""
        waves = self._waves(epsilon)
        value = float(waves.real.sum())
        slope = -self.tilt + float((waves.imag * self._frequencies).sum()) / max(value, 1e-300)
        bound = self.upper(epsilon)
        # The slope is near −θ at the root; far from it rounding may say anything.
        slope = min(max(slope, -20 * self.tilt), -0.5 * self.tilt)
        return (math.log(bound) if bound > 0 else -1e3), slope

    def _sum(self, epsilon: float) -> float:
        return float(self._waves(epsilon).real.sum())

    def _waves(self, epsilon: float) -> NDArray[np.complex128]:
        return self._terms * np.exp(-1j * epsilon * self._frequencies)

    def _rounding(self, epsilon: float) -> float:
        return self._slack * (1 + 2 * _UNIT * float(self._frequencies[-1]) * abs(epsilon) / max(self.error, _UNIT))

    def _scale(self, epsilon: float) -> float:
        return math.exp(min(700.0, self.log_mass - self.tilt * epsilon))


def copies(epsilon: float, tilt: float, step: float, others: Sequence[tuple[float, float]]) -> float:
    """An upper bound on Σ_{k≠0} δ(ε + kW) e^{θkW}, W = 2π/step: by 1 on the left, by Chernoff at a larger tilt on the right."""
    period = 2 * math.pi / step
    right = math.inf
    for other, cumulant in others:
        log_ratio = -(other - tilt) * period
        right = min(right, math.exp(min(700.0, cumulant - other * epsilon + log_ratio)) / -math.expm1(log_ratio))
    return math.exp(-tilt * period) / -math.expm1(-tilt * period) + right


def smallest_epsilon(inversion: Inversion, delta: float, start: float) -> float:
    """The ε near `start` at which the upper bound has come down to δ; ∞ where none was found.

    Newton's steps find it, but the answer stands on its own: the bound was evaluated there and is at most δ.
    """
    guess = _root(inversion, math.log(delta), start)
    for nudge in (0.0, 1e-12, 1e-10, 1e-8, 1e-6):
        epsilon = guess + nudge * max(1.0, guess)
        if inversion.upper(epsilon) <= delta:
            return epsilon
    return math.inf


def _root(inversion: Inversion, target: float, epsilon: float) -> float:
    """About where log δ(ε) meets the target."""
    for _ in range(40):
        value, slope = inversion.log_upper(epsilon)
        moved = max(0.0, epsilon + (target - value) / slope)
        if abs(moved - epsilon) <= 1e-9 * max(1.0, epsilon):
            return moved
        epsilon = moved
    return epsilon
