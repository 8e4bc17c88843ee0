"""How far a private unit vector leans towards its user's: the cap around it, how often it is hit, and what that costs.

PrivUnit draws a vector from the cap {v : ⟨v, u⟩ ≥ γ} around the user's u with chance p, and from the rest of the sphere
otherwise (Bhowmick et al. 2018). With the cap's exact mass q it is ε-DP for ε = ln(p/(1 − p)) + ln((1 − q)/q), where
the paper has bounds; the error is then up to 1.4 times smaller. PrivUnitG is the same for a normal vector (Asi, Feldman
and Talwar 2022).

>>> cap = choose_cap(Sphere(100), 4.0)
>>> round(cap.mean_squared_error, 1), round(cap.epsilon, 4)
(42.8, 4.0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.ldp import coins
from dpfed.ldp.coins import ONE
from dpfed.randomness import RandomSource

SLACK = 2.0**-20  # of a chance: far above the error of its formula, and of how normal our normal numbers are
ROUND = 2.0**-23  # of a vector's length: rounding to float32, and of all products
_FAR = 12.0  # normal vectors are longer than √d + 12 once in e⁷² draws


class Shape(Protocol):
    """A distribution of vectors that looks the same from every side; the values are of one coordinate."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""

    @property
    def error(self) -> float:
        """By how much a coordinate in floating point may be off."""

    def draw(self, source: RandomSource, count: int) -> Floats:
        """Return so many vectors, rounded to float32."""

    def tail(self, edge: float) -> float:
        """Return the chance that the coordinate is at least that."""

    def edge(self, chance: float) -> float:
        """Return from where on the coordinate has that chance."""

    def lean(self, edge: float) -> float:
        """Return the mean of the coordinate times whether it is at least that."""

    def squares(self, edge: float, odds: float) -> float:
        """Return the mean squared length of a vector whose cap is that many times denser than the rest."""


@dataclass(frozen=True)
class Sphere:
    """The uniform distribution on the unit sphere."""

    dimensions: int

    @property
    def error(self) -> float:
        """By how much a coordinate in floating point may be off."""
        return ROUND

    def draw(self, source: RandomSource, count: int) -> Floats:
        """Return so many unit vectors."""
        rows = source.normal((count, self.dimensions))
        return np.asarray((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))

    def tail(self, edge: float) -> float:
        """Return the mass of a cap, ½ I_{1−γ²}((d − 1)/2, ½)."""
        from scipy.special import betainc

        half = 0.5 * float(betainc((self.dimensions - 1) / 2, 0.5, max(1 - edge**2, 0.0)))
        return half if edge >= 0 else 1 - half

    def edge(self, chance: float) -> float:
        """Return the γ of a cap of that mass, of at most a half."""
        from scipy.special import betaincinv

        return math.sqrt(max(1 - float(betaincinv((self.dimensions - 1) / 2, 0.5, 2 * chance)), 0.0))

    def lean(self, edge: float) -> float:
        """Return (1 − γ²)^((d−1)/2) / ((d − 1)·B(½, (d − 1)/2))."""
        from scipy.special import betaln

        power = (self.dimensions - 1) / 2
        return math.exp(power * math.log1p(-(edge**2)) - float(betaln(0.5, power))) / (self.dimensions - 1)

    def squares(self, edge: float, odds: float) -> float:
        """Return 1: a vector of the sphere has length 1."""
        return 1.0


@dataclass(frozen=True)
class Normal:
    """Independent normal numbers."""

    dimensions: int

    @property
    def error(self) -> float:
        """By how much a coordinate in floating point may be off, for all vectors that are ever drawn."""
        return ROUND * (math.sqrt(self.dimensions) + _FAR)

    def draw(self, source: RandomSource, count: int) -> Floats:
        """Return so many normal vectors."""
        return np.asarray(source.normal((count, self.dimensions)).astype(np.float32))

    def tail(self, edge: float) -> float:
        """Return the chance that a normal number is at least that."""
        from scipy.special import ndtr

        return float(ndtr(-edge))

    def edge(self, chance: float) -> float:
        """Return the quantile of a normal number from above."""
        from scipy.special import ndtri

        return float(-ndtri(chance))

    def lean(self, edge: float) -> float:
        """Return the density of a normal number there."""
        return math.exp(-(edge**2) / 2) / math.sqrt(2 * math.pi)

    def squares(self, edge: float, odds: float) -> float:
        """Return d + γ·φ(γ)·(p/q − (1 − p)/(1 − q))."""
        return self.dimensions + edge * self.lean(edge) * odds


@dataclass(frozen=True)
class Cap:
    """A cap from `edge` on, which is hit with chance `keep`/2⁵³.

    Privacy: vectors come from one distribution, whoever sends them; a coin says on which side of the edge the one that
    is sent must lie, and others are thrown away. So no rounding of a vector tells of the user's, and what does is the
    mass of the cap alone: of any user's cap, as it is computed, it is at least `least_mass`. Then no report is more
    than p/(1 − p)·(1 − q)/q times as likely for one vector as for another.
    """

    shape: Shape
    keep: int
    edge: float

    @property
    def least_mass(self) -> float:
        """The least mass that the cap of any vector may have in floating point."""
        return self.shape.tail(self.edge + self.shape.error) * (1 - SLACK)

    @property
    def epsilon(self) -> float:
        """The ε of a report, rounded up."""
        mass = Fraction(self.least_mass)
        return coins.log_up(Fraction(self.keep, ONE - self.keep) * (1 - mass) / mass)

    @property
    def tries(self) -> float:
        """How many vectors are drawn for one report, on average: until both sides have one."""
        mass = self.shape.tail(self.edge)
        return 1 / mass + 1 / (1 - mass)

    @property
    def scale(self) -> float:
        """The factor by which a vector is an unbiased estimate of the user's."""
        return 1 / (self.shape.lean(self.edge) * self._odds)

    @property
    def mean_squared_error(self) -> float:
        """The expected squared distance of a decoded report from the user's vector."""
        return self.scale**2 * self.shape.squares(self.edge, self._odds) - 1

    @property
    def _odds(self) -> float:
        chance, mass = self.keep / ONE, self.shape.tail(self.edge)
        return chance / mass - (1 - chance) / (1 - mass)


def choose_cap(shape: Shape, epsilon: float) -> Cap:
    """Return the cap of least error whose ε is at most that, over all chances p from ½ to e^ε/(1 + e^ε)."""
    from scipy.optimize import minimize_scalar

    def measure(share: float) -> float:
        cap = _make_cap(shape, epsilon, share)
        return math.inf if cap is None else math.log(cap.mean_squared_error)

    found = minimize_scalar(measure, bounds=(0.01, 0.99), method="bounded", options={"xatol": 1e-6})
    cap = _make_cap(shape, epsilon, float(found.x))
    if cap is None:
        message = "epsilon must be larger: with so little no cap can be told from the rest in floating point"
        raise InvalidArgument("epsilon", f"{message}; give at least 0.01, or use VectorMean")
    return cap


def _make_cap(shape: Shape, epsilon: float, share: float) -> Cap | None:
    """Return the cap whose coin has that share of ε; None if nothing is left of it."""
    logit = epsilon * share
    keep = math.floor(ONE / (1 + math.exp(-logit)))
    mass = 1 / (1 + math.exp(epsilon - logit)) / (1 - 2 * SLACK)
    edge = shape.edge(min(mass, 0.5)) - shape.error
    if keep <= ONE // 2 or keep >= ONE or edge <= 0:
        return None
    cap = Cap(shape, keep, edge)
    return cap if cap.epsilon <= epsilon else None
