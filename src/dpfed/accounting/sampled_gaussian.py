"""Log-moments of the Poisson-sampled Gaussian, by a quadrature whose error is proved.

With Q = N(0, σ²) and u(x) = log(1 − q + q e^{(2x−1)/(2σ²)}) the moments E_P[e^{sL}] are integrals of N(x)·e^{A(x)}, where A
is (s+1)u(x) when the unit is present, −s·u(x) when it is absent and (s+1)u(x) − s·u(−x) when it is replaced.

- *Step.* The integrand is analytic for |Im x| < πσ². On the line Im x = σ²φ it grows by at most e^{σ²φ²/2 + c|w|φ} and, for
  negative powers, cos(φ/2)^−θ, so the trapezoidal sum errs by a factor below 2e^{…}/(e^{2πσ²φ/h} − 1) (Trefethen and
  Weideman 2014, Theorem 5.1). The step h is chosen to make that 2⁻⁵⁶.
- *Range.* Pointwise Gaussian bounds on both tails, given in `_range`.
- *Decay.* `decay` bounds |M(θ+iw)/M(θ)| for every w beyond Ω (see decay.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpfed.accounting.decay import POINTS_PER_SIGMA, log_decay
from dpfed.accounting.laws import AbsentLaw, Array, GaussianLaw, Law, PresentLaw, ReplacedGaussianLaw

_LOG_ACCURACY = 39.0
_UNIT = 2.0**-53
_MOST_NODES = 200_000
_ANGLES = (1.0, 0.8, 0.6, 0.45, 0.3)


class TooManyNodes(ArithmeticError):
    """The quadrature is not worth its cost; the lattice takes over."""


class Side(Enum):
    """Which of the pair's two data sets is P."""

    PRESENT = "present"
    ABSENT = "absent"
    REPLACED = "replaced"


@dataclass(frozen=True)
class SampledGaussian:
    """One ordered pair of the Poisson-sampled Gaussian as a function of the tilt."""

    sigma: float
    rate: float
    side: Side

    @property
    def law(self) -> Law:
        """The same pair as a law of losses."""
        gaussian = GaussianLaw(1 / self.sigma)
        match self.side:
            case Side.PRESENT:
                return PresentLaw(gaussian, self.rate)
            case Side.ABSENT:
                return AbsentLaw(gaussian, self.rate)
            case Side.REPLACED:
                return ReplacedGaussianLaw(self.sigma, self.rate)

    def cumulants(self, tilts: Array) -> Array:
        """log E_P[e^{θL}] at each real tilt, rounded up."""
        x, step = self._nodes(float(tilts.max()), 0.0)
        up, down = self._powers(x)
        exponents = self._density(x, step) + up + np.multiply.outer(tilts, up - down)
        peaks = exponents.max(axis=1)
        sums = np.exp(exponents - peaks[:, None]).sum(axis=1)
        return np.asarray(peaks + np.log(sums) + self._rounding(float(tilts.max()), x))

    def line(self, tilt: float, step: float, count: int) -> tuple[NDArray[np.complex128], float]:
        """log E_P[e^{sL}] at s = θ + i·step·j for j < count, and a bound on their errors as shares of M(θ)."""
        weights, loss, peak, rounding = self._weights(tilt, step * count)
        return np.log(_power_sums(weights, loss, step, count)) + peak, rounding

    def decay(self, tilt: float, omega: float, enough: float) -> float:
        """A bound on log |M(θ+iw)/M(θ)| for every w ≥ Ω: below `enough`, or 0 where so much cannot be proved."""
        low, high = _range(self, tilt)
        step = self.sigma / POINTS_PER_SIGMA
        x = np.arange(low, high, step)
        if len(x) > _MOST_NODES:
            return 0.0
        exponents, loss = self._tilted(x, step, tilt)
        mass = np.exp(exponents - exponents.max())
        keep = mass > 1e-5
        if np.count_nonzero(keep) < 4:
            return 0.0
        return log_decay(mass[keep] / mass.sum(), loss[keep], omega, enough)

    def _weights(self, tilt: float, omega: float) -> tuple[Array, Array, float, float]:
        x, step = self._nodes(tilt, omega)
        exponents, loss = self._tilted(x, step, tilt)
        peak = float(exponents.max())
        keep = exponents > peak - _LOG_ACCURACY - math.log(len(x))
        rounding = self._rounding(tilt, x[keep]) + 4 * _UNIT * omega * float(np.abs(loss[keep]).max())
        return np.exp(exponents[keep] - peak), loss[keep], peak, rounding

    def _tilted(self, x: Array, step: float, tilt: float) -> tuple[Array, Array]:
        """The log of the tilted weight of each node, and its loss."""
        up, down = self._powers(x)
        loss = up - down
        return self._density(x, step) + tilt * loss + up, loss

    def _powers(self, x: Array) -> tuple[Array, Array]:
        """The two logs whose difference is the loss: those of P/N and Q/N, N the noise of an empty sample."""
        if self.side is Side.PRESENT:
            return _log_mixture(x, self.sigma, self.rate), np.zeros_like(x)
        if self.side is Side.ABSENT:
            return np.zeros_like(x), _log_mixture(x, self.sigma, self.rate)
        return _log_mixture(x, self.sigma, self.rate), _log_mixture(-x, self.sigma, self.rate)

    def _density(self, x: Array, step: float) -> Array:
        return np.asarray(-(x**2) / (2 * self.sigma**2) + math.log(step / (self.sigma * math.sqrt(2 * math.pi))))

    def _rounding(self, tilt: float, x: Array) -> float:
        largest = max(abs(float(x[0])), abs(float(x[-1])))
        log_ratio = (2 * largest + 1) / (2 * self.sigma**2) - min(0.0, math.log1p(-self.rate))
        size = largest**2 / (2 * self.sigma**2) + (2 * tilt + 1) * log_ratio
        return _UNIT * (32 + 4 * min(size, 4 * _LOG_ACCURACY + (2 * tilt + 1) * log_ratio))

    def _nodes(self, tilt: float, omega: float) -> tuple[Array, float]:
        low, high = _range(self, tilt)
        step = _step(self, tilt, omega)
        count = int((high - low) / step) + 2
        if count > _MOST_NODES:
            raise TooManyNodes(f"{self} at tilt {tilt} would need {count} nodes")
        return low + step * np.arange(count), step


@lru_cache(maxsize=4096)
def _step(pair: SampledGaussian, tilt: float, omega: float) -> float:
    """The largest step with a proved relative error of 2⁻⁵⁶ at every frequency up to Ω."""
    sigma2 = pair.sigma**2
    turning = 2.0 if pair.side is Side.REPLACED else 1.0
    negative = 0.0 if pair.side is Side.PRESENT else tilt
    widest = min(math.sqrt(2 * _LOG_ACCURACY) / pair.sigma, 3.0)
    best = 0.0
    for share in _ANGLES:
        angle = share * widest
        growth = sigma2 * angle**2 / 2 + turning * omega * angle - negative * math.log(math.cos(angle / 2))
        best = max(best, 2 * math.pi * sigma2 * angle / (_LOG_ACCURACY + math.log(4) + growth))
    return best


def _range(pair: SampledGaussian, tilt: float) -> tuple[float, float]:
    """Outputs beyond which the tilted density has less than e^{−39} of its mass.

    M(θ) ≥ 1. Where the mixture is a factor it is at most e^{t} for t ≥ 0 and at most 1 below; where it divides it is at
    least 1 − q and at least q e^t. Each gives a shifted Gaussian as a pointwise bound, and the tighter one is used.
    """
    sigma, rate = pair.sigma, pair.rate
    plain = _reach(sigma, 0.0)
    absent, present = -math.log1p(-rate), -math.log(rate)
    if pair.side is Side.PRESENT:
        growth = min(tilt * (tilt + 1) / (2 * sigma**2), (tilt + 1) * present)
        return -plain, tilt + 1 + _reach(sigma, growth)
    if pair.side is Side.ABSENT:
        floor = _reach(sigma, tilt * absent)
        slope = tilt + _reach(sigma, tilt * present + tilt * (tilt + 1) / (2 * sigma**2))
        return -min(floor, slope), 1 + plain
    floor = tilt + 1 + _reach(sigma, tilt * (tilt + 1) / (2 * sigma**2) + tilt * absent)
    slope = 2 * tilt + 1 + _reach(sigma, ((2 * tilt + 1) ** 2 - 1) / (2 * sigma**2) + tilt * present)
    return -1 - plain, min(floor, slope)


def _reach(sigma: float, growth: float) -> float:
    return sigma * math.sqrt(2 * (_LOG_ACCURACY + growth))


def _log_mixture(x: Array, sigma: float, rate: float) -> Array:
    """log(1 − q + q e^t) at t = (2x − 1)/(2σ²), accurate for small q and safe for large t."""
    t = (2 * x - 1) / (2 * sigma**2)
    if max(t[0], t[-1]) < 500:
        return np.asarray(np.log1p(rate * np.expm1(t)))
    return np.where(t > 500, t + math.log(rate), np.log1p(rate * np.expm1(np.minimum(t, 500.0))))


def _power_sums(weights: Array, loss: Array, step: float, count: int) -> NDArray[np.complex128]:
    """Σ weights·e^{i·step·j·loss} for j < count, the powers built by doubling."""
    waves = np.empty((count, len(loss)), dtype=complex)
    waves[0] = weights
    power, done = np.exp(1j * step * loss), 1
    while done < count:
        more = min(done, count - done)
        np.multiply(waves[:more], power, out=waves[done : done + more])
        done += more
        power = power * power
    return waves.sum(axis=1)
