"""Log-moments of the Poisson-sampled Gaussian, by a quadrature whose error is proved.

With Q = N(0, σ²) and u(x) = log(1 − q + q e^{(2x−1)/(2σ²)}) the moments E_P[e^{sL}] are integrals of N(x)·e^{A(x)},
where A is (s+1)u(x) when the unit is present, −s·u(x) when it is absent and (s+1)u(x) − s·u(−x) when it is replaced.

- *Step.* The integrand is analytic for |Im x| < πσ². On the line Im x = σ²φ it grows by at most e^{σ²φ²/2 + c|w|φ} and,
  for negative powers, cos(φ/2)^−θ, so the trapezoidal sum errs by a factor below 2e^{…}/(e^{2πσ²φ/h} − 1) (Trefethen
  and Weideman 2014, Theorem 5.1). The step h is chosen to make that 2⁻⁵⁶.
- *Range.* Pointwise Gaussian bounds on both tails, given in `_range`.
- *Decay.* decay.py bounds |M(θ+iw)/M(θ)| for every w ≥ Ω, given that log f/|l′| bends up by at most (θ+9)/(4σ⁴), f
  being the tilted density and l the loss. With p = σ²u′ = q e^t/(1 − q + q e^t), p′ = p(1−p)/σ²: its second derivative
  is −1/σ² + (θ+2)p(1−p)/σ⁴ when the unit is present and −1/σ² + (1−θ)p(1−p)/σ⁴ when it is absent. When it is replaced
  log f gives at most (θ+1)/(4σ⁴), and −log(p(x) + p(−x)) at most 2/σ⁴, since |p′|σ² and |p″|σ⁴ are at most p.

>>> pair = SampledGaussian(sigma=1.0, rate=0.01, side=Side.PRESENT)
>>> float(pair.cumulants(np.array([1.0]))[0])  # log(1 + q²(e^{1/σ²} − 1)) = 0.000171813422
0.00017181342...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from dpfed.accounting.exact.decay import Slabs
from dpfed.accounting.exact.privacy_loss import (
    AbsentLaw,
    Array,
    ComplexArray,
    GaussianLaw,
    Law,
    PresentLaw,
    ReplacedGaussianLaw,
)

_LOG_ACCURACY = 39.0
_UNIT = 2.0**-53
_MOST_NODES = 200_000
_MOST_WAVES = 4_000_000
_BLOCK = 32
_ANGLES = (1.0, 0.7, 0.45)


class TooManyNodes(ArithmeticError):
    """Raised when the quadrature is not worth its cost; the lattice takes over."""


class Side(Enum):
    """The role of P among the pair's two data sets."""

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

    @property
    def variance(self) -> float:
        """q²(e^{1/σ²} − 1) where that is small."""
        return min(self.rate**2 * math.expm1(min(1 / self.sigma**2, 100.0)), 1 / self.sigma**2)

    def steepness(self, count: int) -> float:
        """Estimate where count·qᵅ·e^{αθ/(2σ²)}, α = θ + 1, passes 1, or would if there were fewer steps."""
        if self.side is Side.ABSENT:
            return math.inf
        slope = -2 * self.sigma**2 * math.log(self.rate)
        square = (slope - 1) ** 2 + 4 * (slope - 2 * self.sigma**2 * math.log(count))
        return max((slope - 1 + math.sqrt(max(square, 0.0))) / 2, 0.5)

    def cumulants(self, tilts: Array) -> Array:
        """Return log E_P[e^{θL}] at each real tilt, rounded up."""
        tilt = float(tilts.max())
        nodes = self._nodes(tilt, 0.0)
        loss, base = self._loss_and_base(nodes)
        exponents = np.multiply.outer(tilts, loss)
        exponents += base
        peaks = exponents.max(axis=1)
        exponents -= peaks[:, None]
        sums = np.exp(exponents, out=exponents).sum(axis=1)
        return np.asarray(peaks + np.log(sums) + _UNIT * (64 + 4 * (tilt + 1) * nodes.largest))

    def line(self, tilt: float, step: float, count: int) -> tuple[ComplexArray, float]:
        """Return log E_P[e^{sL}] at s = θ + i·step·j for j < count, and a bound on their errors as shares of M(θ)."""
        omega = step * count
        nodes = self._nodes(tilt, omega)
        if count * len(nodes.loss) > _MOST_WAVES:
            raise TooManyNodes(f"{count} frequencies at {len(nodes.loss)} nodes for σ={self.sigma}, q={self.rate}")
        loss, base = self._loss_and_base(nodes)
        exponents = base + tilt * loss
        peak = float(exponents.max())
        weights = np.exp(exponents - peak)
        low, high = _waves(nodes, step, count)
        sums = _product(high, low * weights).ravel()[:count]
        if self.side is Side.ABSENT:
            sums = sums.conj()
        # A sum that cancels to nothing is some number below its rounding.
        if not sums.all():
            sums[sums == 0] = _UNIT**8
        # Each weight carries the rounding of its exponent's parts and of its phase: their mean is that of the sum.
        parts = ((tilt + 1 + omega) * np.abs(loss).dot(weights) - nodes.log_density.dot(weights)) / weights.sum()
        # Waves carry at most 12 roundings for each doubling, sums one for each term of a block and each block.
        doublings = (count - 1).bit_length() + 2
        rounding = 64 + 12 * doublings + _BLOCK + len(loss) / _BLOCK + 4 * float(parts)
        return np.asarray(np.log(sums) + peak, dtype=complex), _UNIT * rounding

    def decay(self, tilt: float, omega: float, top: float) -> float:
        """Bound log |M(θ+iw)/M(θ)| for every w ≥ Ω."""
        try:
            return _slabs(self, tilt, top).log_decay(omega)
        except TooManyNodes:
            return 0.0

    def _nodes(self, tilt: float, omega: float) -> _Nodes:
        return _nodes(self.sigma, self.rate, self.side is Side.REPLACED, tilt, omega)

    def _loss_and_base(self, nodes: _Nodes) -> tuple[Array, Array]:
        """Return the loss of each node, and the log of its P-weight."""
        if self.side is Side.ABSENT:
            return -nodes.loss, nodes.log_density
        return nodes.loss, nodes.log_density + nodes.log_ratio


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Nodes of the quadrature, shared by the directions: log-weight, log P/N and loss (P the side with the unit)."""

    x: Array
    step: float
    log_density: Array
    log_ratio: Array
    loss: Array

    @property
    def largest(self) -> float:
        """The largest loss and log-weight together; both are at an end of the range."""
        return float(max(abs(self.loss[0]), abs(self.loss[-1])) - min(self.log_density[0], self.log_density[-1]))


@lru_cache(maxsize=64)
def _slabs(pair: SampledGaussian, tilt: float, top: float) -> Slabs:
    """Return slabs below the law of the tilted loss, on the nodes that serve every tilt up to the top."""
    nodes = pair._nodes(top, 0.0)
    loss, base = pair._loss_and_base(nodes)
    exponents = base + tilt * loss
    mode = int(exponents.argmax())
    peak = float(exponents[mode])
    mass = float(np.exp(exponents - peak).sum())
    # The density of the loss at l(x) is that of x over |l′(x)|; a weight holds a whole step of it.
    exponents -= _log_slope(nodes, pair)
    exponents -= peak + math.log(mass * nodes.step / pair.sigma**2)
    # How far it bends: see Decay above.
    bend = (tilt + 9) * nodes.step**2 / (32 * pair.sigma**4)
    ends = abs(float(nodes.log_ratio[0])) + abs(float(nodes.log_ratio[-1]))
    return Slabs.below(nodes.loss, exponents, bend, mode, grain=2.0**-44 * (nodes.largest + ends))


def _log_slope(nodes: _Nodes, pair: SampledGaussian) -> Array:
    """Return log σ²|l′(x)|: of q e^t/(1 − q + q e^t), and of that plus its mirror image when a record is replaced."""
    shift = math.log(pair.rate) - 0.5 / pair.sigma**2
    t = nodes.x / pair.sigma**2
    if pair.side is not Side.REPLACED:
        return t + shift - nodes.log_ratio
    mirrored = nodes.log_ratio - nodes.loss
    return np.logaddexp(t + shift - nodes.log_ratio, shift - t - mirrored)


@lru_cache(maxsize=4096)
def _nodes(sigma: float, rate: float, is_replaced: bool, tilt: float, omega: float) -> _Nodes:
    """Return nodes for every tilt and frequency up to the given ones; without frequencies also to prove decay."""
    low, high = _range(sigma, rate, is_replaced, tilt)
    step = min(_step(sigma, is_replaced, tilt, omega), math.inf if omega else sigma / 4)
    count = int((high - low) / step) + 2
    if omega:
        count += -count % _BLOCK
    if count > _MOST_NODES:
        raise TooManyNodes(f"{count} nodes for σ={sigma}, q={rate} at tilt {tilt}")
    x = low + step * np.arange(count)
    ratio = _log_mixture(x, sigma, rate)
    loss = ratio - _log_mixture(-x, sigma, rate) if is_replaced else ratio
    log_density = x * x * (-0.5 / sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    return _Nodes(x, step, log_density, ratio, loss)


@lru_cache(maxsize=4)
def _waves(nodes: _Nodes, step: float, count: int) -> tuple[ComplexArray, ComplexArray]:
    """Return waves a_j, b_k of which every e^{i·step·n·loss} with n = rows·k + j < count is a product a_j·b_k."""
    rows = 1 << ((count - 1).bit_length() + 1) // 2
    return _powers(nodes.loss, step, rows), _powers(nodes.loss, step * rows, -(-count // rows))


def _powers(loss: Array, step: float, count: int) -> ComplexArray:
    """Return e^{i·step·j·loss} for j < count, built by doubling.

    A square has twice the rounding of its root, so every third power is computed afresh.
    """
    waves = np.empty((count, len(loss)), dtype=complex)
    waves[0] = 1
    power = waves[0]
    for doubling in range((count - 1).bit_length()):
        done = 1 << doubling
        power = np.exp((1j * (step * done)) * loss) if doubling % 3 == 0 else power * power
        more = min(done, count - done)
        np.multiply(waves[:more], power, out=waves[done : done + more])
    return waves


def _product(left: ComplexArray, right: ComplexArray) -> ComplexArray:
    """Return Σ_n left[k, n]·right[j, n], added up block by block so that few roundings follow one another."""
    blocks = left.shape[1] // _BLOCK
    lefts, rights = (part.reshape(len(part), blocks, _BLOCK) for part in (left, right))
    products = np.matmul(lefts.transpose(1, 0, 2), rights.transpose(1, 2, 0))
    return np.asarray(products.sum(axis=0))


def _step(sigma: float, is_replaced: bool, tilt: float, omega: float) -> float:
    """Return the largest step with a proved relative error of 2⁻⁵⁶ at every frequency up to Ω."""
    sigma2 = sigma**2
    turning = 2.0 if is_replaced else 1.0
    widest = min(math.sqrt(2 * _LOG_ACCURACY) / sigma, 3.0)
    best = 0.0
    for share in _ANGLES:
        angle = share * widest
        growth = sigma2 * angle**2 / 2 + turning * omega * angle - tilt * math.log(math.cos(angle / 2))
        best = max(best, 2 * math.pi * sigma2 * angle / (_LOG_ACCURACY + math.log(4) + growth))
    return best


def _range(sigma: float, rate: float, is_replaced: bool, tilt: float) -> tuple[float, float]:
    """Return the outputs beyond which the tilted density has less than e^{−39} of its mass, in every direction.

    M(θ) ≥ 1. Where the mixture is a factor it is at most e^{t} for t ≥ 0 and at most 1 below; where it divides it is at
    least 1 − q and at least q e^t. Each gives a shifted Gaussian as a pointwise bound, and the tighter one is used.
    """
    absent, present = -math.log1p(-rate), -math.log(rate)
    grown = tilt * (tilt + 1) / (2 * sigma**2)
    if is_replaced:
        floor = tilt + 1 + _reach(sigma, grown + tilt * absent)
        slope = 2 * tilt + 1 + _reach(sigma, ((2 * tilt + 1) ** 2 - 1) / (2 * sigma**2) + tilt * present)
        return -1 - _reach(sigma, 0.0), min(floor, slope)
    low = min(_reach(sigma, tilt * absent), tilt + _reach(sigma, grown + tilt * present))
    return -low, tilt + 1 + _reach(sigma, min(grown, (tilt + 1) * present))


def _reach(sigma: float, growth: float) -> float:
    return sigma * math.sqrt(2 * (_LOG_ACCURACY + growth))


def _log_mixture(x: Array, sigma: float, rate: float) -> Array:
    """Return log(1 − q + q e^t) at t = (2x − 1)/(2σ²), accurate for small q and safe for large t."""
    t = (x - 0.5) * (1 / sigma**2)
    is_large = max(t[0], t[-1]) > 500
    mixture = np.log1p(rate * np.expm1(np.minimum(t, 500.0) if is_large else t))
    if rate > 0.5:
        # Far below 1 the mixture is added up from its two positive parts, which do not cancel.
        mixture = np.where(t < -1, np.log((1 - rate) + rate * np.exp(np.minimum(t, 0.0))), mixture)
    return np.where(t > 500, t + math.log(rate), mixture) if is_large else mixture
