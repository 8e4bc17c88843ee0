"""The fast path: δ(ε) by inverting the moments of the loss along a line, with every error on the safe side.

For any θ > 0, with s = θ + iw and M(s) = E_P[e^{sL}],

    δ(ε) = (1/2π) ∫ M(s) e^{−sε} / (s(s+1)) dw.

A sum with step 2π/W instead of the integral equals Σ_k δ(ε + kW) e^{θkW}: the extra terms are all positive, so the step
errs on the safe side only. Frequencies beyond Ω are bounded by `decay`, quadrature and rounding by `error`. Same family
as Zhu, Dong and Wang (2022) and Alghamdi et al. (2023).

>>> from dpfed.accounting.closed_forms import gaussian_delta
>>> s = 4.0 + 1j * 0.3 * np.arange(64)
>>> gaussian = Inversion(4.0, 0.3, s * (s + 1) / 2, error=1e-14, decay=-170.0, others=[(6.0, 21.0)])
>>> gaussian.lower(4.0) <= gaussian_delta(1.0, 4.0) <= gaussian.upper(4.0)
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfed.accounting.exact.privacy_loss import Array, ComplexArray
from dpfed.accounting.search import log_excess

_UNIT = 2.0**-52


@dataclass(frozen=True)
class Inversion:
    """An inversion of one line of log-moments, which bounds δ at any ε.

    `others` holds further tilts and their cumulants: Chernoff bounds from them limit what the step's copies may add.
    """

    tilt: float
    step: float
    moments: ComplexArray
    error: float
    decay: float
    others: Sequence[tuple[float, float]]
    at_infinity: float = 0.0

    @cached_property
    def _frequencies(self) -> Array:
        return self.step * np.arange(len(self.moments))

    @cached_property
    def _kernel(self) -> ComplexArray:
        """step/(πs(s+1)) at every frequency, half of it at the first."""
        s = self.tilt + 1j * self._frequencies
        kernel = np.asarray((self.step / math.pi) / (s * (s + 1)), dtype=complex)
        kernel[0] /= 2
        return kernel

    @cached_property
    def _terms(self) -> ComplexArray:
        """The terms of the sum at ε = 0."""
        return np.asarray(np.exp(self.moments - self.log_mass) * self._kernel)

    @cached_property
    def _slack(self) -> float:
        """The error of truncation, quadrature and rounding, as a share of e^{K − θε}."""
        left_out = math.exp(self.decay) / (math.pi * self._last)
        return left_out + float(np.abs(self._kernel).sum()) * (math.expm1(self.error) + 32 * _UNIT)

    @property
    def _last(self) -> float:
        return self.step * (len(self.moments) - 1)

    @property
    def log_mass(self) -> float:
        """K(θ) = log M(θ)."""
        return float(self.moments[0].real)

    def upper(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε)."""
        return self._bound(epsilon, self._value_and_slope(epsilon)[0])

    def upper_and_slope(self, epsilon: float) -> tuple[float, float]:
        """Return an upper bound on δ(ε), and about the slope of its log."""
        value, slope = self._value_and_slope(epsilon)
        slope = -self.tilt + slope / max(value, 1e-300)
        # Near the root the slope is about −θ; far from it rounding may say anything.
        return self._bound(epsilon, value), min(max(slope, -20 * self.tilt), -0.5 * self.tilt)

    def guess(self, delta: float) -> float:
        """Estimate the ε at δ as if the tilted loss were a wide Gaussian of its mean and variance."""
        moment = complex(self.moments[1])
        mean, variance = moment.imag / self.step, 2 * (self.log_mass - moment.real) / self.step**2
        if not variance > 0:
            return 0.0
        scale = self.tilt * (self.tilt + 1) * math.sqrt(2 * math.pi * variance)
        square = self.tilt**2 + 2 * (self.log_mass - self.tilt * mean - math.log(scale * delta)) / variance
        return max(0.0, mean + variance * (math.sqrt(max(square, 0.0)) - self.tilt))

    def lower(self, epsilon: float) -> float:
        """Return a lower bound on δ(ε)."""
        scale, (value, _) = self._scale(epsilon), self._value_and_slope(epsilon)
        return scale * (value - self._rounding(epsilon)) - self._copies(epsilon) + self.at_infinity

    def width(self, epsilon: float) -> float:
        """Return how far apart the two bounds on δ(ε) are."""
        return 2 * self._scale(epsilon) * self._rounding(epsilon) + self._copies(epsilon)

    def _copies(self, epsilon: float) -> float:
        return copies(epsilon, self.tilt, self.step, self.others)

    def _bound(self, epsilon: float, value: float) -> float:
        return self._scale(epsilon) * (value + self._rounding(epsilon)) + self.at_infinity

    def _value_and_slope(self, epsilon: float) -> tuple[float, float]:
        """Return Re Σ terms·e^{−iwε} and its derivative in ε."""
        turned = self._terms * np.exp((-1j * epsilon) * self._frequencies)
        return float(turned.real.sum()), float(self._frequencies.dot(turned.imag))

    def _rounding(self, epsilon: float) -> float:
        return self._slack * (1 + 2 * _UNIT * self._last * abs(epsilon) / max(self.error, _UNIT))

    def _scale(self, epsilon: float) -> float:
        return math.exp(min(700.0, self.log_mass - self.tilt * epsilon))


def copies(epsilon: float, tilt: float, step: float, others: Sequence[tuple[float, float]]) -> float:
    """Bound Σ_{k≠0} δ(ε + kW) e^{θkW} from above, W = 2π/step: δ ≤ 1 on the left, Chernoff's bound on the right."""
    period = 2 * math.pi / step
    right = math.inf
    for other, cumulant in others:
        log_ratio = -(other - tilt) * period
        right = min(right, math.exp(min(700.0, cumulant - other * epsilon + log_ratio)) / -math.expm1(log_ratio))
    return math.exp(-tilt * period) / -math.expm1(-tilt * period) + right


def smallest_epsilon(inversion: Inversion, delta: float, start: float) -> float:
    """Return the smallest ε found at which the upper bound is at most δ; ∞ where there is none.

    Newton's steps inside a bracket find it. Only points at which the bound was evaluated and passed are returned, so
    the search can cost tightness but never soundness.
    """
    low, high, epsilon, lean = 0.0, math.inf, min(start, inversion.guess(delta)), 0.0
    for _ in range(100):
        bound, slope = inversion.upper_and_slope(epsilon)
        excess = log_excess(bound, delta)
        low, high = (epsilon, high) if excess > 0 else (low, epsilon)
        if -1e-9 < excess <= 0 or high - low <= 1e-13 * low or high == 0:
            break
        # Close to the root steps lean upwards by more than they err, so that one of them passes.
        lean = max(2 * lean, 2e-10) if abs(excess) < 1e-5 else 0.0
        epsilon -= (excess + lean) / slope
        if not low < epsilon < high:
            epsilon = (low + high) / 2 if high < math.inf else 2 * low + 1
    return high
