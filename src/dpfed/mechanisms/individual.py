"""Noised sums in which each person takes part for as long as its own budget lasts: the individual Rényi filter.

Most people contribute far less to a sum than the clip norm, and lose far less privacy. Here each is charged what it
really contributes, ‖gᵢ‖²/(2σ²) of zCDP, and left out of a sum that would take it past the budget of all; it may come
back with a smaller contribution. So there can be many more sums than a fixed number of full ones would allow.

>>> from dpfed.randomness import SeededSource
>>> sums = IndividualSum(1.0, 1e-5, persons=3, clip_norm=1.0, noise_multiplier=20.0, source=SeededSource(1))
>>> round(sums.rho, 4), sums.full_sums  # so many, if all contributions were as long as the clip norm
(0.0306, 24)
>>> sums.release(np.array([[0.1, 0.0], [0.0, 0.2], [3.0, 4.0]])).shape
(2,)
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dpfed import checks
from dpfed import events as ev
from dpfed.accounting.conversions import epsilon_to_zcdp_cap, zcdp_to_epsilon
from dpfed.arrays import Floats
from dpfed.checks import ADD_REMOVE
from dpfed.clipping import clip_per_example, cut_examples
from dpfed.errors import InvalidArgument
from dpfed.mechanisms.gaussian import GaussianMechanism
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.randomness import RandomSource

MOST_NOISE = 128.0  # above that, noise is on a coarser grid than the sums, and rounding would be everybody's cost
MOST_NUMBERS = MOST_SUMS = 1 << 20
_UP = 1 + 2.0**-28  # more than is lost in adding up 2²⁰ squares, and 2²⁰ charges
_DOWN = 1 - 2.0**-40


class IndividualSum:
    """Sums of clipped contributions with Gaussian noise, in which a person is counted while its own budget lasts.

    Privacy: all sums together are (ε, δ)-DP for one person with all its contributions, added or removed, and
    `rho`-zCDP, which is `event`: charge it once, before the first sum, however many there will be (the individual Rényi
    filter of Feldman and Zrnic 2021, at every order at once: a Gaussian's divergence is proportional to it). It holds
    if a person's contribution to a sum follows from its own data, public constants and the sums released before, and
    from nobody else's data; what is asked may be chosen after seeing all earlier sums. It says nothing of replacing a
    person, for whom both budgets would count. Who is left out, and what is left of a budget, follow from private data:
    neither is released, and no report may have them. The noise is that of `mechanisms.additive`; sums are on its grid
    already.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        persons: int,
        clip_norm: float,
        noise_multiplier: float,
        source: RandomSource | None = None,
    ) -> None:
        self.epsilon, self.delta = checks.positive(epsilon=epsilon), checks.positive_probability(delta=delta)
        self.persons, self.clip_norm = checks.count(persons=persons), checks.positive(clip_norm=clip_norm)
        self.noise_multiplier = _read_noise(noise_multiplier)
        bound = Sensitivity(self.clip_norm, "l2", ADD_REMOVE)
        self._mechanism = GaussianMechanism.from_noise_multiplier(self.noise_multiplier, bound, source=source)
        self.rho = _find_rho(self.epsilon, self.delta)
        self._spent = np.zeros(self.persons)
        self._sums = 0

    @property
    def event(self) -> ev.Event:
        """The event of all sums together, however many there are."""
        return ev.ZeroConcentratedDP(self.rho, adjacency=ADD_REMOVE)

    @property
    def full_sums(self) -> int:
        """How many sums a person is counted in whose contributions are all as long as the clip norm."""
        return int(self.rho * 2 * self.noise_multiplier**2 / _UP)

    def release(self, contributions: ArrayLike) -> Floats:
        """Return the noised sum of one row for each person, clipped; a row that is not finite counts as zero."""
        rows = self._read_rows(contributions)
        self._sums += 1
        clipped = cut_examples(np.asarray(clip_per_example(rows, self.clip_norm)), self.clip_norm)
        costs = self._find_costs(clipped)
        is_counted = self._spent + costs <= self.rho
        self._spent = np.where(is_counted, self._spent + costs, self._spent)
        return np.asarray(self._mechanism.add_noise(np.where(is_counted[:, None], clipped, 0.0).sum(axis=0)))

    def find_private_budgets(self) -> Floats:
        """Return what is left of each person's budget, in zCDP: private, for the owner of the data alone."""
        return np.maximum(self.rho - self._spent, 0.0)

    def _find_costs(self, clipped: Floats) -> Floats:
        """Return what each person's contribution costs, rounded up: ‖gᵢ‖²/(2σ²), with both in clip norms."""
        squares = ((clipped / self.clip_norm) ** 2).sum(axis=1)
        return np.asarray(squares / (2 * self.noise_multiplier**2) * _UP)

    def _read_rows(self, contributions: ArrayLike) -> Floats:
        rows = np.asarray(contributions)
        if rows.ndim != 2 or len(rows) != self.persons or rows.dtype.kind not in "iuf" or not rows.size:
            message = f"contributions must be one row of numbers for each of {self.persons} persons, got {rows.shape}"
            raise InvalidArgument("contributions", f"{message}: give zeros for whoever has nothing to give")
        if rows.shape[1] > MOST_NUMBERS or self.persons > MOST_NUMBERS or self._sums >= MOST_SUMS:
            message = "contributions must be of at most 2²⁰ numbers and persons, in at most 2²⁰ sums"
            raise InvalidArgument("contributions", f"{message}: rounding is proved for these; release parts of them")
        values = rows.astype(np.float64)
        return np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)


def _read_noise(noise_multiplier: float) -> float:
    noise = checks.positive(noise_multiplier=noise_multiplier)
    if noise > MOST_NOISE:
        message = f"noise_multiplier must be at most {MOST_NOISE:g}, got {noise:g}: with more, rounding to the grid of"
        raise InvalidArgument("noise_multiplier", f"{message} the noise would move sums; give a larger clip norm")
    return noise


def _find_rho(epsilon: float, delta: float) -> float:
    """Return the largest ρ found, rounded down, at which ρ-zCDP is (ε, δ)-DP."""
    rho = epsilon_to_zcdp_cap(epsilon, delta) * _DOWN
    while rho > 0 and zcdp_to_epsilon(rho, delta) > epsilon:
        rho *= 1 - 2.0**-20
    if not rho > 0 or not math.isfinite(rho):
        message = f"epsilon = {epsilon:g} at delta = {delta:g} leaves no budget that can be counted"
        raise InvalidArgument("epsilon", f"{message}: give an epsilon between 1e-6 and 1e6")
    return rho
