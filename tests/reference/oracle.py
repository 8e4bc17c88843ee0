"""Slow and plain truths about compositions, in double precision; shares no code with dpfed.

A release is a list of atoms (probability under Q, log P/Q): quadrature nodes for continuous noise. From there

- `contour_delta` inverts F(t) = E_Q[(P/Q)^t] along a line with thousands of frequencies,
- `two_fold_delta` integrates the known hockey stick of one release against the loss of the other,
- `discrete_delta` convolves finitely many losses, in exact rational arithmetic where they are given so.

>>> round(contour_delta([(gaussian(50.0), 10_000)], 9.997256146), 10)
1e-05
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Release:
    """Log-probabilities under Q and losses log P/Q of one release."""

    log_q: Array
    loss: Array

    def mirrored(self) -> Release:
        """The pair the other way round."""
        return Release(self.log_q + self.loss, -self.loss)

    def sampled(self, rate: float) -> Release:
        """(1 − q)Q + qP against Q; mirror it for the unit that is absent."""
        return Release(self.log_q, np.logaddexp(math.log1p(-rate), math.log(rate) + self.loss))

    def beside(self, other: Release) -> Release:
        """Both releases at once, from one draw."""
        return Release(np.add.outer(self.log_q, other.log_q).ravel(), np.add.outer(self.loss, other.loss).ravel())

    def walk(self, theta: float, step: float) -> Iterator[complex]:
        """log of M(θ + ij·step)/M(θ) for j = 0, 1, …"""
        exponents = self.log_q + (theta + 1) * self.loss
        kept = exponents > exponents.max() - 45
        weights = np.exp(exponents[kept] - exponents.max())
        weights, loss = (weights / weights.sum()).astype(complex), self.loss[kept]
        for j in count():
            if j % 64 == 0:
                turned = weights * np.exp(1j * (step * j) * loss)
                turn = np.exp(1j * step * loss)
            yield complex(np.log(turned.sum()))
            turned = turned * turn

    def log_moment(self, s: NDArray[np.complex128] | Array) -> NDArray[np.complex128]:
        """log E_P[e^{sL}]."""
        log_p = self.log_q + self.loss
        return np.array([_log_sum(log_p + t * self.loss) for t in np.atleast_1d(s)])


def gaussian(sigma: float, top: float | None = None, fineness: float = 2.0) -> Release:
    """N(1, σ²) against N(0, σ²), good for moments whose tilted mean is at most `top` (forty σ)."""
    step = min(0.1 * sigma, 0.1 * sigma**2) / fineness
    reach = 12 * sigma + (40 * sigma if top is None else top)
    x = np.arange(-reach, 1 + reach, step)
    return Release(-(x**2) / (2 * sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi))), _shift(x, sigma))


def replaced_gaussian(sigma: float, rate: float, top: float | None = None) -> Release:
    """(1 − q)N(0) + qN(1) against (1 − q)N(0) + qN(−1)."""
    plain = gaussian(sigma, top)
    x = (plain.loss * 2 * sigma**2 + 1) / 2
    up, down = (np.logaddexp(math.log1p(-rate), math.log(rate) + _shift(v, sigma)) for v in (x, -x))
    return Release(plain.log_q + down, up - down)


def laplace(scale: float, nodes: int = 80) -> Release:
    """Laplace noise moved by one: two atoms and Gauss–Legendre nodes between the peaks."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    x = (places + 1) / 2
    log_q = np.concatenate(([-math.log(2)], np.log(weights / (4 * scale)) - x / scale, [-math.log(2) - 1 / scale]))
    return Release(log_q, np.concatenate(([-1 / scale], (2 * x - 1) / scale, [1 / scale])))


def contour_delta(parts: list[tuple[Release, int]], epsilon: float) -> float:
    """δ(ε) of the composition by inverting its moments."""
    return contour(parts, epsilon)(epsilon)


def contour(
    parts: list[tuple[Release, int]], near: float, *, frequencies: int = 1 << 14, digits: float = 28.0
) -> Callable[[float], float]:
    """δ(·) of the composition around ε = `near`; for compositions whose moments die out in time."""
    theta = _best_tilt(parts, near)
    log_delta = _cumulant(parts, theta) - theta * near
    # Aliases δ(ε ± W)e^{±θW}: the left one is at most e^{−θW}, the right one is bounded by a steeper moment.
    right = (_cumulant(parts, 1.3 * theta) - 1.3 * theta * near - log_delta + digits) / (0.3 * theta)
    step = 2 * math.pi / max((digits - log_delta) / theta, right)
    terms = _terms(parts, theta, step, near, frequencies) * math.exp(log_delta) * step / math.pi
    turns = 1j * step * np.arange(len(terms))
    return lambda epsilon: float((terms * np.exp((near - epsilon) * (theta + turns))).real.sum())


def _terms(
    parts: list[tuple[Release, int]], theta: float, step: float, near: float, frequencies: int
) -> NDArray[np.complex128]:
    """e^{−sε}M(s)/(s(s+1)), relative to M(θ)e^{−θε}, until they have died out."""
    walkers = [part.walk(theta, step) for part, _ in parts]
    found: list[complex] = []
    quiet = 0
    while quiet < 30:
        if len(found) > frequencies:
            raise ArithmeticError("the moments do not die out; use more frequencies or another oracle")
        s = theta + 1j * step * len(found)
        value = np.exp(sum(number * next(walker) for walker, (_, number) in zip(walkers, parts, strict=True)))
        found.append(complex(value * np.exp(-1j * s.imag * near) / (s * (s + 1))))
        quiet = quiet + 1 if abs(found[-1]) < 1e-15 * abs(found[0]) else 0
    found[0] /= 2
    return np.array(found)


def gaussian_hockey_stick(sigma: float, rate: float = 1.0) -> Callable[[Array], Array]:
    """δ(ε) of one release at any real ε, the unit present (and sampled)."""

    def at(epsilon: Array) -> Array:
        inner, scale = _below_sampling(epsilon, rate)
        kept, lost = log_ndtr(0.5 / sigma - inner * sigma), log_ndtr(-0.5 / sigma - inner * sigma) + inner
        return np.where(scale > 0, rate * -np.exp(kept) * np.expm1(np.minimum(lost - kept, 0)), -np.expm1(epsilon))

    return at


def absent_gaussian_hockey_stick(sigma: float, rate: float) -> Callable[[Array], Array]:
    """The same with the unit absent: N(0) against (1 − q)N(0) + qN(1), the outputs below a threshold."""

    def at(epsilon: Array) -> Array:
        share = np.expm1(-epsilon) + rate
        with np.errstate(divide="ignore", invalid="ignore"):
            threshold = np.where(share > 0, np.log(np.maximum(share, 1e-300) / rate), -700.0) * sigma**2 + 0.5
        apart = share * ndtr(threshold / sigma) - rate * ndtr((threshold - 1) / sigma)
        return np.where(share > 0, np.exp(epsilon) * apart, 0.0)

    return at


def laplace_hockey_stick(scale: float, rate: float = 1.0) -> Callable[[Array], Array]:
    """The same for Laplace noise."""

    def at(epsilon: Array) -> Array:
        inner, share = _below_sampling(epsilon, rate)
        middle = -np.expm1((inner - 1 / scale) / 2)
        plain = np.where(inner >= 1 / scale, 0.0, np.where(inner <= -1 / scale, -np.expm1(inner), middle))
        return np.where(share > 0, rate * plain, -np.expm1(epsilon))

    return at


def two_fold_delta(first: Release, second: Callable[[Array], Array], epsilon: float) -> float:
    """δ(ε) of two releases: the hockey stick of the second, averaged over the loss of the first."""
    return float((np.exp(first.log_q + first.loss) * second(epsilon - first.loss)).sum())


def discrete_delta(parts: list[tuple[Mapping[object, object], int]], exp: Callable, epsilon: object) -> object:
    """δ(ε) of finitely many losses with their P-masses, in the arithmetic of the numbers that are given."""
    walk: dict = {0: 1}
    for step, number in parts:
        for _ in range(number):
            longer: dict = {}
            for place, mass in walk.items():
                for move, chance in step.items():
                    longer[place + move] = longer.get(place + move, 0) + mass * chance
            walk = longer
    return sum(mass * (1 - exp(epsilon - loss)) for loss, mass in walk.items() if loss > epsilon)


def smallest_epsilon(delta_at: Callable[[float], float], delta: float, high: float = 1.0) -> float:
    """The root of δ(ε) = δ by bisection; 0 where even δ(0) is at most δ."""
    if delta_at(0.0) <= delta:
        return 0.0
    while delta_at(high) > delta:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


def replaced_delta_in_the_plane(sigma: float, rate: float, angle: float, epsilon: float, cells: int = 900) -> float:
    """δ(ε) of one sampled Gaussian whose record moves the sum to u before and to v after, `angle` apart.

    A plain sum over a fine grid of the plane, so good to about five digits.
    """
    axis = np.linspace(-1 - 8 * sigma, 1 + 8 * sigma, cells)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2 / (2 * math.pi * sigma**2)

    def bell(a: float, b: float) -> Array:
        return cell * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2))

    p = (1 - rate) * bell(0, 0) + rate * bell(1, 0)
    q = (1 - rate) * bell(0, 0) + rate * bell(math.cos(angle), math.sin(angle))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang's curve."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def _shift(x: Array, sigma: float) -> Array:
    return (2 * x - 1) / (2 * sigma**2)


def _log_sum(exponents: NDArray[np.complex128]) -> complex:
    peak = float(exponents.real.max())
    return peak + np.log(np.exp(exponents - peak).sum())


def _below_sampling(epsilon: Array, rate: float) -> tuple[Array, Array]:
    """log(1 + (e^ε − 1)/q), and the share whose sign says whether there is one."""
    share = rate + np.expm1(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, np.log(np.maximum(share, 1e-300)) - math.log(rate), -700.0), share


def _cumulant(parts: list[tuple[Release, int]], theta: float) -> float:
    return float(sum(number * logsumexp(part.log_q + (theta + 1) * part.loss) for part, number in parts))


def _best_tilt(parts: list[tuple[Release, int]], epsilon: float) -> float:
    grid = np.geomspace(1e-2, 3e3, 60)
    values = [_cumulant(parts, theta) - theta * epsilon - math.log(theta * (theta + 1)) for theta in grid]
    return float(grid[int(np.argmin(values))])
