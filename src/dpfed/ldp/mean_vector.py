"""The mean of vectors: each user reports on a few coordinates, drawn at random, and shares its ε among these only.

Sharing ε among all d of them would cost d² times the variance of one; with k of d drawn it is about d·k times, and
k = ⌊ε/2.5⌋, at least one, is near the best (Wang et al. 2019).

>>> mechanism = VectorMean(epsilon=5.0, dimensions=10)
>>> mechanism.coordinates, round(mechanism.variance(users=1000), 5)
(2, 0.00324)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpfed import checks
from dpfed import events as ev
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.ldp import packed
from dpfed.ldp.estimates import Floats, MeanEstimate
from dpfed.ldp.mean import DuchiMean, MeanMechanism, read_numbers, summarize
from dpfed.ldp.oracle import Reports, batches, refuse_reports, require_reports, require_users
from dpfed.ldp.piecewise import HybridMean, PiecewiseMean
from dpfed.ldp.subset import draw_subsets
from dpfed.randomness import RandomSource, or_system
from dpfed.rounding import round_down, round_up

METHODS: dict[str, type[MeanMechanism]] = {"duchi": DuchiMean, "piecewise": PiecewiseMean, "hybrid": HybridMean}
MOST_DIMENSIONS = 1 << 20
_WORTH = 2.5  # of ε, which a coordinate should have


@dataclass(frozen=True)
class VectorMean:
    """Send `coordinates` of a vector's numbers from −1 to 1, drawn without replacement, each by a one-number method.

    `coordinates` is ⌊ε/2.5⌋, from 1 to `dimensions`, unless it is given; `method` is "hybrid", "piecewise" or "duchi".

    Privacy: which coordinates are sent does not depend on the vector; each has ε divided by their number, rounded down,
    and all of them together add up to `epsilon`, never above the one asked for: any vector of one user against any
    other (replace-one, local model). The event is PureDP(ε, adjacency="replace_one").
    """

    epsilon: float
    dimensions: int
    method: str = "hybrid"
    coordinates: int = 0
    _part: MeanMechanism = field(init=False, repr=False)

    def __post_init__(self) -> None:
        asked = checks.positive(epsilon=self.epsilon)
        _require_dimensions(checks.count(dimensions=self.dimensions), self.method)
        object.__setattr__(self, "coordinates", self._read_coordinates(asked))
        part = METHODS[self.method](round_down(Fraction(asked) / self.coordinates))
        object.__setattr__(self, "_part", part)
        object.__setattr__(self, "epsilon", round_up(Fraction(part.epsilon) * self.coordinates))

    def _read_coordinates(self, asked: float) -> int:
        if self.coordinates == 0:
            return max(1, min(self.dimensions, int(min(asked / _WORTH, self.dimensions))))
        if checks.count(coordinates=self.coordinates) > self.dimensions:
            message = f"coordinates must be at most {self.dimensions}, which the vector has: leave it out for the best"
            raise InvalidArgument("coordinates", message)
        return self.coordinates

    @property
    def event(self) -> ev.Event:
        """The event of one report."""
        return ev.PureDP(self.epsilon, adjacency=REPLACE_ONE)

    @property
    def report_type(self) -> np.dtype[Any]:
        """The type of a report: the coordinates, in order, and a report on each."""
        shape = (self.coordinates,)
        return np.dtype([("coordinate", "<u4", shape), ("report", self._part.report_type, shape)])

    def randomize(self, values: ArrayLike, source: RandomSource | None = None) -> Reports:
        """Return one report for each user's row of numbers."""
        rows, coin = read_numbers(values, 2), or_system(source)
        if rows.shape[1] != self.dimensions:
            message = (
                f"values must have {self.dimensions} numbers for each user, the declared dimensions: give them all"
            )
            raise InvalidArgument("values", message)
        reports = np.empty(len(rows), dtype=self.report_type)
        for part in packed.chunks(len(rows), self.dimensions):
            reports[part] = self._draw(rows[part], coin)
        return reports

    def _draw(self, rows: Floats, source: RandomSource) -> Reports:
        reports = np.empty(len(rows), dtype=self.report_type)
        chosen = draw_subsets(source, self.dimensions, self.coordinates, len(rows))
        reports["coordinate"] = np.nonzero(chosen)[1].reshape(reports["coordinate"].shape)
        reports["report"] = self._part.draw(rows[chosen], source).reshape(reports["report"].shape)
        return reports

    def check_reports(self, reports: Any) -> Reports:
        """Return a batch of reports, if each is on different coordinates of the vector, in order."""
        array = require_reports(reports, self.report_type)
        places = array["coordinate"].astype(np.int64)
        if places.max(initial=0) >= self.dimensions or np.any(np.diff(places, axis=1) <= 0):
            raise refuse_reports("coordinates that are repeated or that the vector does not have")
        self._part.check_reports(array["report"].ravel())
        return array

    def estimate(self, reports: Reports | Iterable[Reports]) -> MeanEstimate:
        """Return the unbiased estimate of the mean of every coordinate.

        Standard errors are those of users who are a sample themselves.
        """
        sums, users = np.zeros((2, self.dimensions)), 0
        for batch in batches(reports):
            checked = self.check_reports(batch)
            sums += self._add_up(checked)
            users += len(checked)
        least = min(self.variance(1, 0.0), self.variance(1, 1.0))
        return summarize(sums[0], sums[1], require_users(users), least)

    def _add_up(self, reports: Reports) -> Floats:
        """Return sums of decoded reports and of their squares for each coordinate."""
        places = reports["coordinate"].ravel().astype(np.int64)
        decoded = self._part.decode(reports["report"].ravel()) * self._scale
        return np.array([np.bincount(places, each, self.dimensions) for each in (decoded, decoded**2)])

    def variance(self, users: int, value: ArrayLike = 0.0) -> Any:
        """Return the variance of a coordinate's estimate for so many users who all have that number there."""
        own = np.asarray(value, dtype=np.float64) ** 2 / checks.count(users=users)
        found = self._scale * (self._part.variance(users, value) + own) - own
        return found if np.ndim(found) else float(found)

    @property
    def _scale(self) -> float:
        return self.dimensions / self.coordinates


def _require_dimensions(dimensions: int, method: str) -> None:
    if dimensions > MOST_DIMENSIONS:
        raise InvalidArgument("dimensions", "dimensions must be at most 2²⁰: send a projection of longer vectors")
    if method not in METHODS:
        raise InvalidArgument("method", f"method must be one of {', '.join(METHODS)}: hybrid is never much worse")
