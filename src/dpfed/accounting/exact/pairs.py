"""What each event does to the privacy loss: an ordered pair of distributions, or only an RDP curve.

`pairs(atom, adjacency)` gives the worst-case pairs (P, Q): one where the pair is its own mirror image, else the two
directions (unit present, unit absent), which are kept apart to the end. `curve(atom, adjacency)` bounds the Rényi
divergence and exists for every event. An event that has no pair puts the whole composition on RDP.

>>> from dpfed.events import Gaussian
>>> pairs(Gaussian(noise_multiplier=2.0), "add_remove")
(GaussianPair(mu=0.5),)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, TypeGuard

import numpy as np

from dpfed import events as ev
from dpfed.accounting import curves
from dpfed.accounting.atoms import atoms
from dpfed.accounting.exact import privacy_loss, shuffled
from dpfed.accounting.exact.lattice import compose_law
from dpfed.accounting.exact.privacy_loss import Array, ComplexArray, DiscreteLaw, GaussianLaw, LaplaceLaw, Law
from dpfed.accounting.exact.sampled_gaussian import SampledGaussian, Side, TooManyNodes
from dpfed.accounting.tree_sensitivity import sensitivity
from dpfed.checks import REPLACE_ONE
from dpfed.errors import AdjacencyMismatch, UnsupportedEvent

Line = tuple[ComplexArray, float]
Curve = Callable[[Array], Array]

_UNIT = 2.0**-52
# Mass that a discrete law or an inner composition may move to infinity.
_TAIL = 1e-32
_MOST_OF_ONE_DRAW = 100


class Pair(Hashable, Protocol):
    """An ordered pair (P, Q), described by the moments of its privacy loss."""

    @property
    def law(self) -> Law:
        """The distribution of the privacy loss."""

    @property
    def variance(self) -> float:
        """Roughly the variance of the loss: where a search starts."""

    def steepness(self, count: int) -> float:
        """Estimate the tilt beyond which the cumulant of so many explodes: where a search stops."""

    def cumulants(self, tilts: Array) -> Array:
        """Return upper bounds on log E_P[e^{θL}; L < ∞] at real θ ≥ 0."""


class Analytic(Pair, Protocol):
    """A pair whose moments are known for complex arguments as well, as contour inversion needs."""

    def line(self, tilt: float, step: float, count: int) -> Line:
        """Return log E_P[e^{sL}; L < ∞] at s = θ + i·step·j, j < count, and a bound on the errors as shares of M(θ)."""

    def decay(self, tilt: float, omega: float, top: float) -> float:
        """Bound log |M(θ+iw)/M(θ)| for every w ≥ Ω; 0 where nothing is proved.

        `top` is a tilt at or above θ, best one whose cumulant was asked before: its quadrature is then at hand.
        """


@dataclass(frozen=True)
class GaussianPair:
    """N(μ, 1) against N(0, 1): log-moment μ²s(s+1)/2."""

    mu: float

    @property
    def law(self) -> Law:
        """The distribution of the privacy loss: normal."""
        return GaussianLaw(self.mu)

    @property
    def variance(self) -> float:
        """μ²."""
        return self.mu**2

    def steepness(self, count: int) -> float:
        """Return ∞: the cumulant explodes nowhere."""
        return math.inf

    def cumulants(self, tilts: Array) -> Array:
        """Return μ²θ(θ+1)/2."""
        return self.mu**2 * tilts * (tilts + 1) / 2 * (1 + 4 * _UNIT)

    def line(self, tilt: float, step: float, count: int) -> Line:
        """Evaluate the closed form."""
        s = _points(tilt, step, count)
        values = self.mu**2 * s * (s + 1) / 2
        return values, 8 * _UNIT * (1 + float(np.abs(values).max()))

    def decay(self, tilt: float, omega: float, top: float) -> float:
        """Return −μ²Ω²/2, which is exact."""
        return -((self.mu * omega) ** 2) / 2


class _NoDecay:
    """A pair of bounded loss with atoms, which keep |φ| near 1 again and again: no decay is proved."""

    def steepness(self, count: int) -> float:
        """Return ∞: the cumulant explodes nowhere."""
        return math.inf

    def decay(self, tilt: float, omega: float, top: float) -> float:
        """Return 0: no decay is proved."""
        return 0.0


@dataclass(frozen=True)
class LaplacePair(_NoDecay):
    """Laplace noise of scale 1 shifted by `shift` (Mironov 2017, Table II)."""

    shift: float

    @property
    def law(self) -> Law:
        """The distribution of the privacy loss of the Laplace mechanism."""
        return LaplaceLaw(self.shift)

    @property
    def variance(self) -> float:
        """At most that of the two ends."""
        return self.shift**2

    def cumulants(self, tilts: Array) -> Array:
        """Evaluate the closed form at real arguments."""
        return self._moment(tilts).real + 8 * _UNIT * (1 + tilts * self.shift)

    def line(self, tilt: float, step: float, count: int) -> Line:
        """Evaluate the closed form."""
        s = _points(tilt, step, count)
        return self._moment(s), 16 * _UNIT * (1 + abs(s[-1]) * self.shift)

    def _moment(self, s: ComplexArray | Array) -> ComplexArray:
        share = s / (2 * s + 1) * np.exp(-(2 * s + 1) * self.shift)
        return np.asarray(s * self.shift + np.log((s + 1) / (2 * s + 1) + share), dtype=complex)


@dataclass(frozen=True)
class DiscretePair(_NoDecay):
    """Losses with probabilities, and mass at infinity."""

    losses: tuple[float, ...]
    probabilities: tuple[float, ...]
    at_infinity: float = 0.0
    unit: float = 0.0

    @cached_property
    def law(self) -> Law:
        """The distribution of the privacy loss: atoms and their masses."""
        return DiscreteLaw(np.array(self.losses), np.array(self.probabilities), self.at_infinity, self.unit)

    @property
    def variance(self) -> float:
        """The second moment."""
        return math.fsum(p * loss**2 for loss, p in zip(self.losses, self.probabilities, strict=True))

    def cumulants(self, tilts: Array) -> Array:
        """Evaluate the finite sum at real arguments."""
        size = max(map(abs, self.losses))
        return self._moment(tilts).real + 8 * _UNIT * (1 + tilts * size)

    def line(self, tilt: float, step: float, count: int) -> Line:
        """Evaluate the finite sum."""
        s = _points(tilt, step, count)
        return self._moment(s), 16 * _UNIT * (1 + abs(s[-1]) * max(map(abs, self.losses)))

    def _moment(self, s: ComplexArray | Array) -> ComplexArray:
        peak = s.real * max(self.losses)
        terms = [p * np.exp(s * loss - peak) for loss, p in zip(self.losses, self.probabilities, strict=True)]
        return np.asarray(peak + np.log(sum(terms)), dtype=complex)


@dataclass(frozen=True)
class LawPair:
    """A pair known only through its law: the lattice composes it, its cumulants are bounded cell by cell."""

    law: Law

    @property
    def variance(self) -> float:
        """About twice the cumulant at a small tilt."""
        return 2 * max(0.0, float(privacy_loss.cumulants(self.law, np.array([1.0]), _TAIL)[0]))

    def steepness(self, count: int) -> float:
        """Return ∞: the cumulant explodes nowhere."""
        return math.inf

    def cumulants(self, tilts: Array) -> Array:
        """Return upper bounds from cells that keep both masses; ∞ where mass was cut off."""
        values = privacy_loss.cumulants(self.law, tilts, 0.0 if self.law.maximum < math.inf else _TAIL)
        return values if self.law.maximum < math.inf else np.full_like(tilts, np.inf)


def is_analytic(pair: Pair) -> TypeGuard[Analytic]:
    """Return whether the moments of the pair are known for complex arguments, as contour inversion needs."""
    return hasattr(pair, "line")


@lru_cache(maxsize=4096)
def pairs(atom: ev.Event, adjacency: str) -> tuple[Pair, ...]:
    """Return the worst-case pairs of an atom, one or two; none where only an RDP curve is proved.

    Privacy: each pair dominates every neighbouring pair of the mechanism, so composing pairs dominates the adaptive
    composition of mechanisms (Zhu, Dong and Wang 2022, Theorem 10).
    """
    require_adjacency(atom, adjacency)
    shift = 2 if adjacency == REPLACE_ONE else 1
    match atom:
        case ev.Gaussian():
            return (GaussianPair(shift / atom.noise_multiplier),)
        case ev.TreeAggregation():
            return (GaussianPair(_tree_shift(atom, shift)),)
        case ev.Laplace():
            return (LaplacePair(shift / atom.noise_multiplier),)
        case ev.DiscreteLaplace():
            return (_discrete_laplace(atom.scale, shift * atom.sensitivity),)
        case ev.DiscreteGaussian(dimension=1):
            return (_discrete_gaussian(atom.scale, shift * atom.sensitivity),)
        case ev.RandomizedResponse():
            return (_randomized_response(atom.epsilon, atom.num_buckets),)
        case ev.PureDP() | ev.Exponential():
            return (_randomized_response(atom.epsilon, 2),)
        case ev.ApproximateDP():
            return (_randomized_response(atom.epsilon, 2, atom.delta),)
        case ev.PoissonSampled():
            return _poisson(atom, adjacency)
        case ev.Shuffled():
            return (LawPair(shuffled.make_law(atom)),)
        case ev.SampledWithoutReplacement(event=ev.Shuffled() as inner):
            return (LawPair(shuffled.sampled(shuffled.make_law(inner), atom.sample_size / atom.population)),)
        case ev.SampledWithoutReplacement():
            curve(atom, adjacency)  # so that what it holds is refused now, not at the first question
            return ()
        case _:
            return ()


@lru_cache(maxsize=4096)
def curve(atom: ev.Event, adjacency: str) -> tuple[Curve, ...]:
    """Return functions from orders α > 1 to upper bounds on the Rényi divergence, one per direction."""
    require_adjacency(atom, adjacency)
    shift = 2 if adjacency == REPLACE_ONE else 1
    match atom:
        case ev.ZeroConcentratedDP():
            return (_zcdp_curve(atom.rho),)
        case ev.Exponential():
            # ε-bounded range implies ε²/8-zCDP (Cesar and Rogers 2021); the divergence is at most ε at any order.
            return (lambda orders: np.minimum(atom.epsilon**2 / 8 * orders, atom.epsilon),)
        case ev.RenyiDP():
            return (lambda orders: curves.between(orders, np.array(atom.orders), np.array(atom.epsilons)),)
        case ev.DiscreteGaussian():
            # In one dimension too: the pair's tails are cut off, and large orders live on them. At whole orders this
            # is the divergence itself (Canonne, Kamath and Steinke 2020, Proposition 5).
            return (_zcdp_curve((shift * atom.sensitivity / atom.scale) ** 2 / 2),)
        case ev.ApproximateDP() if atom.delta > 0:
            return (lambda orders: np.full_like(orders, np.inf),)
        case ev.SampledWithoutReplacement() if not isinstance(atom.event, ev.Shuffled):
            inner = [(curve(part, adjacency), count) for part, count in atoms(atom.event).items()]
            gaussian = shift / atom.event.noise_multiplier if isinstance(atom.event, ev.Gaussian) else 0.0
            return (curves.without_replacement(inner, atom.sample_size / atom.population, gaussian),)
        case ev.Unprotected():
            return (lambda orders: np.full_like(orders, np.inf),)
        case ev.PoissonSampled() if not isinstance(atom.event, ev.Gaussian):
            present, absent = pairs(atom, adjacency)
            parts = [(curve(part, adjacency)[0], count) for part, count in atoms(atom.event).items()]
            return _add_tail(present, parts, atom.sample_rate), _divergence(absent)
        case _:
            return tuple(_divergence(pair) for pair in pairs(atom, adjacency))


def require_adjacency(atom: ev.Event, adjacency: str) -> None:
    """Refuse an event that is stated for the other neighbouring relation."""
    if isinstance(atom, ev.SampledWithoutReplacement) and adjacency != REPLACE_ONE:
        raise AdjacencyMismatch(
            "sampling without replacement is analysed under replace_one only, where the population's size is public; "
            "ask with adjacency='replace_one' or sample by PoissonSampled"
        )
    if isinstance(atom, ev.Shuffled) and adjacency != REPLACE_ONE:
        message = "a shuffler hides which value a user reported, not whether the user reported"
        raise AdjacencyMismatch(f"{message}: ask with adjacency='replace_one'")
    stated = getattr(atom, "adjacency", adjacency)
    if stated != adjacency:
        raise AdjacencyMismatch(
            f"{atom!r} is stated under {stated}, asked under {adjacency}; "
            f"ask with adjacency={stated!r}{_group_hint(atom)}"
        )


def _group_hint(atom: ev.Event) -> str:
    if isinstance(atom, ev.PureDP) and atom.adjacency != REPLACE_ONE:
        return f", or state what group privacy of two gives: PureDP({2 * atom.epsilon!r}, adjacency='replace_one')"
    return ""


def _poisson(atom: ev.PoissonSampled, adjacency: str) -> tuple[Pair, ...]:
    rate, inner = atom.sample_rate, atom.event
    if isinstance(inner, ev.Gaussian):
        sides = (Side.REPLACED,) if adjacency == REPLACE_ONE else (Side.PRESENT, Side.ABSENT)
        return tuple(SampledGaussian(inner.noise_multiplier, rate, side) for side in sides)
    if adjacency == REPLACE_ONE:
        raise UnsupportedEvent(
            f"under replace_one Poisson sampling is proved for Gaussian noise only, got {inner!r}; "
            "ask with adjacency='add_remove'"
        )
    present, absent = _inner_laws(inner, adjacency)
    return LawPair(privacy_loss.PresentLaw(present, rate)), LawPair(privacy_loss.AbsentLaw(absent, rate))


def _inner_laws(inner: ev.Event, adjacency: str) -> tuple[Law, Law]:
    parts = [(pairs(part, adjacency), count) for part, count in atoms(inner).items()]
    if sum(count for _, count in parts) > _MOST_OF_ONE_DRAW:
        raise UnsupportedEvent(
            f"at most {_MOST_OF_ONE_DRAW} releases of one draw are composed, Gaussians apart, got {inner!r}; draw again"
        )
    if not all(found for found, _ in parts):
        raise UnsupportedEvent(f"sampling is proved only for events with a known worst-case pair, got {inner!r}")
    sides = [[(found[side % len(found)].law, count) for found, count in parts] for side in (0, 1)]
    present, absent = (side[0][0] if len(side) == 1 and side[0][1] == 1 else compose_law(side, _TAIL) for side in sides)
    return present, absent


def _tree_shift(atom: ev.TreeAggregation, shift: int) -> float:
    """Return the sensitivity of all nodes over their noise, rounded up.

    The nodes are released one after the other, as they are completed, and later contributions may follow from earlier
    releases. Whatever these were, the squares of all shifts add up to the squared sensitivity at most, and then the
    whole is as private as one Gaussian (Denisov, McMahan, Rush, Smith and Thakurta 2022, Theorem 2.1; Smith and
    Thakurta 2022 for shifts chosen on the way). Partial sums are computed from the nodes.
    """
    return math.nextafter(shift * sensitivity(atom) / atom.noise_multiplier, math.inf)


def _randomized_response(epsilon: float, buckets: int, delta: float = 0.0) -> DiscretePair:
    """Return the pair of losses over the true bucket, one given other, and the rest; δ of the mass is at infinity."""
    other = (1 - delta) / (math.exp(min(epsilon, 700.0)) + buckets - 1)
    truth = (1 - delta) / (1 + (buckets - 1) * math.exp(-epsilon))
    if buckets == 2:
        return DiscretePair((-epsilon, epsilon), (other, truth), delta, epsilon)
    return DiscretePair((-epsilon, 0.0, epsilon), (other, (buckets - 2) * other, truth), delta, epsilon)


def _discrete_laplace(scale: float, shift: int) -> DiscretePair:
    ratio = math.exp(-1 / scale)
    between = np.arange(1, shift)
    masses = (1 - ratio) / (1 + ratio) * np.exp(-between / scale)
    # Whole multiples of the unit, to the last bit: the lattice then holds them exactly.
    losses = np.array([shift, *(shift - 2 * between), -shift]) * (1 / scale)
    ends = 1 / (1 + ratio), math.exp(-shift / scale) / (1 + ratio)
    return DiscretePair(tuple(map(float, losses)), (ends[0], *map(float, masses), ends[1]), 0.0, 1 / scale)


def _discrete_gaussian(scale: float, shift: int) -> DiscretePair:
    reach = math.ceil(12.2 * scale) + 1
    if reach > 1_000_000:
        raise UnsupportedEvent(
            f"a discrete Gaussian of scale {scale} is too wide for exact accounting; use dimension=2"
        )
    k = np.arange(-reach, reach + 1)
    masses = np.exp(-(k**2) / (2 * scale**2))
    unit = shift / (2 * scale**2)
    losses = (shift - 2 * k) * unit
    return DiscretePair(tuple(map(float, losses)), tuple(map(float, masses / masses.sum())), _TAIL, unit)


def _zcdp_curve(rho: float) -> Curve:
    return lambda orders: rho * orders


def _add_tail(pair: Pair, inner: list[tuple[Curve, int]], rate: float) -> Curve:
    """Return the divergence of a sampled pair whose inner law had the mass a of its upper tail A moved to infinity.

    The sampled moment over A is at most that of the unsampled pair, plus a; and by Hölder's inequality
    E_P[e^{θL}; A] ≤ a^{1 − 1/p} E_P[e^{pθL}]^{1/p} for every p > 1.
    """
    moved = pair.law.at_infinity / rate
    if not moved:
        return _divergence(pair)

    def at(orders: Array) -> Array:
        tilts = orders - 1
        tails = [
            (1 - 1 / p) * math.log(moved) + tilts * sum(count * curve(p * tilts + 1) for curve, count in inner)
            for p in (1.1, 1.3, 2.0, 4.0, 10.0)
        ]
        tail = np.logaddexp(np.min(tails, axis=0), math.log(moved))
        return np.asarray(np.logaddexp(_cumulants_by_octave(pair, tilts), tail) / tilts)

    return at


def _divergence(pair: Pair) -> Curve:
    return lambda orders: _cumulants_by_octave(pair, orders - 1) / (orders - 1)


def _cumulants_by_octave(pair: Pair, tilts: Array) -> Array:
    """Return the cumulants, computed for tilts of one size at a time: small ones need fewer nodes."""
    values = np.empty_like(tilts)
    octaves = np.floor(np.log2(tilts + 1))
    for octave in np.unique(octaves):
        try:
            values[octaves == octave] = pair.cumulants(tilts[octaves == octave])
        except TooManyNodes:
            values[octaves == octave] = np.inf
    return values


def _points(tilt: float, step: float, count: int) -> ComplexArray:
    return tilt + 1j * step * np.arange(count)
