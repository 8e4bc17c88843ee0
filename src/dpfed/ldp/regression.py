"""Least squares for counted Bloom filters: frequencies of candidates, their errors, and which of them are there at all.

In each cohort the share of reports with a bit, freed of its noise, is the sum of the frequencies of the candidates that
set it. That is a linear model whose errors are known: coins, and the chance by which a user is in a cohort.

>>> import numpy as np
>>> design = np.array([[[1.0, 0.0], [0.0, 1.0]]])
>>> fit = Fit(("a", "b"), design, np.array([[600, 300]]), np.array([1000]), own=0.75, other=0.25)
>>> fit.solve_all().frequencies.round(3).tolist(), fit.decode(0.05).significant
([0.7, 0.1], ('a', 'b'))
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpfed.errors import InvalidArgument
from dpfed.ldp.estimates import Estimate, Floats
from dpfed.ldp.oracle import Codes

NNLS, LASSO = "nnls", "lasso"
_MOST_ROUNDS = 1000
_STILL = 1e-9  # of a frequency, by which no coordinate moves any more


@dataclass(frozen=True, eq=False)
class Decoded:
    """Candidates with a non-negative estimate each, and the test whether the true frequency is above 0.

    A candidate that the selection leaves at 0 has the estimate 0 and the p-value 1. p-values are those of a fit of the
    chosen ones alone, as if they had been chosen beforehand: they are exact where no two candidates share a bit, and
    somewhat too small where they do, the more so the more candidates there are. `residual` is the fit's mean squared
    error over the one expected: far above 1, texts are missing among the candidates.
    """

    candidates: tuple[str, ...]
    frequencies: Floats
    standard_errors: Floats
    p_values: Floats
    significance: float
    residual: float
    users: int

    @property
    def significant(self) -> tuple[str, ...]:
        """The candidates that are there, all at once with an error of at most `significance`."""
        level = self.significance / len(self.candidates)
        return tuple(name for name, p in zip(self.candidates, self.p_values, strict=True) if p <= level)


@dataclass(frozen=True, eq=False)
class Fit:
    """Counted reports of all cohorts and the design of the candidates; cohorts without reports are left out.

    `design` has a matrix of bits by candidates for each cohort, `ones` how many reports have each bit, `users` how many
    there are; `own` and `other` are the chances that a report has a bit which its filter has, or has not.
    """

    candidates: tuple[str, ...]
    design: Floats = field(repr=False)
    ones: Codes = field(repr=False)
    users: Codes = field(repr=False)
    own: float
    other: float

    def __post_init__(self) -> None:
        is_there = self.users > 0
        for name in ("design", "ones", "users"):
            object.__setattr__(self, name, getattr(self, name)[is_there])

    @property
    def shares(self) -> Floats:
        """The unbiased estimate of the share of filters with each bit, by cohort."""
        return (self.ones / self.users[:, None] - self.other) / (self.own - self.other)

    def solve_all(self) -> Estimate:
        """Return the unbiased estimate for all candidates, if they can be told apart."""
        everything = np.arange(len(self.candidates))
        if np.linalg.matrix_rank(self._gram()) < len(everything):
            raise InvalidArgument(
                "candidates",
                "candidates must be fewer, or differ in more bits: their filters cannot be told apart, so no unbiased "
                "estimate exists; use more cohorts or bits, or `decode`, which leaves some at 0",
            )
        frequencies, errors = self._solve(everything)
        return Estimate(frequencies, errors, int(self.users.sum()))

    def decode(self, significance: float, select: str = NNLS) -> Decoded:
        """Return the non-negative fit: those it leaves above 0 are fitted again, without a bound, and tested.

        With "lasso" it has a penalty, so that most candidates that nobody has stay at 0.
        """
        from scipy.special import ndtr

        chosen = _SELECTIONS[select](self)
        frequencies, errors, p_values = np.zeros((3, len(self.candidates)))
        p_values += 1.0
        frequencies[chosen], errors[chosen] = self._solve(chosen)
        p_values[chosen] = ndtr(-frequencies[chosen] / errors[chosen])
        kept = np.maximum(frequencies, 0.0)
        total = int(self.users.sum())
        return Decoded(self.candidates, kept, errors, p_values, significance, self._residual(frequencies), total)

    @property
    def _weighted(self) -> Floats:
        """The design with one row for each bit of each cohort, times the cohort's users."""
        return (self.users[:, None, None] * self.design).reshape(-1, len(self.candidates))

    def _gram(self) -> Floats:
        return self._weighted.T @ self.design.reshape(-1, len(self.candidates))

    def _right(self) -> Floats:
        return self._weighted.T @ self.shares.ravel()

    def select_positive(self) -> NDArray[np.int64]:
        """Return the candidates above 0 in the non-negative least-squares fit; their filters can be told apart."""
        from scipy.optimize import nnls

        values, vectors = np.linalg.eigh(self._gram())
        is_large = values > values[-1] * 1e-10
        root = np.sqrt(values[is_large])
        # ‖Rx − R⁻ᵀr‖² with RᵀR = XᵀWX differs from the whole problem's by a constant: same solution, fewer rows.
        solution, _ = nnls(root[:, None] * vectors[:, is_large].T, (vectors[:, is_large].T @ self._right()) / root)
        return np.flatnonzero(solution > 0)

    def select_sparse(self) -> NDArray[np.int64]:
        """Return the candidates above 0 in the non-negative LASSO (Erlingsson, Pihur and Korolova 2014).

        The penalty of a candidate is √(2 ln M) standard deviations of what noise alone adds to its score, above which
        hardly any of M candidates comes by chance: no part of the reports is needed to choose it.
        """
        gram, right = self._gram(), self._right()
        is_set = np.diag(gram) > 0
        needed = right - np.sqrt(2 * np.log(max(len(right), 2)) * self._score_variances())
        found = np.zeros(len(right))
        for _ in range(_MOST_ROUNDS):
            before = found.copy()
            for place in np.flatnonzero(is_set):
                rest = needed[place] - gram[place] @ found + gram[place, place] * found[place]
                found[place] = max(rest / gram[place, place], 0.0)
            if np.abs(found - before).max(initial=0.0) < _STILL:
                break
        return np.flatnonzero(found > 0)

    def _score_variances(self) -> Floats:
        """Return the variance of each candidate's entry of the right side, by the coins alone."""
        noise = self._noise(np.clip(self.shares, 0.0, 1.0))
        return np.asarray(np.einsum("c,cb,cbm->m", self.users.astype(float), noise, self.design**2))

    def _solve(self, chosen: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the weighted least-squares solution for these candidates, and its standard errors."""
        inverse = np.asarray(np.linalg.pinv(self._gram()[np.ix_(chosen, chosen)], hermitian=True), dtype=np.float64)
        solution = inverse @ self._right()[chosen]
        return solution, np.sqrt(self._variances(inverse, chosen, np.clip(solution, 0.0, 1.0)))

    def _variances(self, inverse: Floats, chosen: NDArray[np.int64], frequencies: Floats) -> Floats:
        """Return the variance of each solution: the noise of each bit, and how bits of one filter go together."""
        shares, found = np.clip(self.shares, 0.0, 1.0), np.zeros(len(chosen))
        for design, share, noise, users in zip(self.design, shares, self._noise(shares), self.users, strict=True):
            weights = inverse @ design[:, chosen].T
            texts = (weights @ design[:, chosen]) ** 2 @ frequencies - (weights @ share) ** 2
            found += users * (weights**2 @ noise + np.maximum(texts, 0.0))
        return found

    def _noise(self, shares: Floats) -> Floats:
        """Return the variance that the coins give one user's bit, of filters that have it in that share."""
        noise = shares * self.own * (1 - self.own) + (1 - shares) * self.other * (1 - self.other)
        return noise / (self.own - self.other) ** 2

    def _residual(self, frequencies: Floats) -> float:
        shares = np.clip(self.shares, 0.0, 1.0)
        expected = (self._noise(shares) + shares * (1 - shares)) / self.users[:, None]
        squares = (self.shares - self.design @ frequencies) ** 2
        return float(np.mean(squares / expected))


_SELECTIONS = {NNLS: Fit.select_positive, LASSO: Fit.select_sparse}
