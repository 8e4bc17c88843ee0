"""Robust rules as frozen descriptions: what a plan names, prints and stores, and what a round executes.

Each is one of the functions of `dpfed.aggregation.robust` with its numbers, and may have mixing `before` it.

>>> import numpy as np
>>> rule = TrimmedMean(max_faulty=1, before=NearestNeighbourMixing())
>>> updates = {name: np.array([value]) for name, value in zip("abcd", (1.0, 2.0, 3.0, 1e9))}
>>> rule.combined(updates, size=1)
array([2.])
>>> str(rule)
'trimmed_mean behind nnm, bearing 1 faulty client'
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpfed import checks
from dpfed.aggregation import coordinatewise, geometric, krum
from dpfed.aggregation.conditions import least_updates, require_enough
from dpfed.aggregation.mixing import effective_count, fill_buckets, mix_nearest
from dpfed.aggregation.rows import Rows
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """Each update becomes the mean of its nearest ones (`mixing.nnm`)."""

    kind: ClassVar[str] = "nnm"

    def mix(self, rows: Rows, max_faulty: int, source: RandomSource | None) -> Rows:
        """Return the mixed updates; it draws nothing."""
        del source
        return mix_nearest(rows, max_faulty)

    def least(self, needed: int) -> int:
        """Return how many updates must come so that a rule sees as many as it needs."""
        return needed


@dataclass(frozen=True)
class Bucketing:
    """Updates are averaged in random buckets (`mixing.bucketing`)."""

    bucket_size: int = 2
    kind: ClassVar[str] = "bucketing"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bucket_size", checks.count(bucket_size=self.bucket_size))

    def mix(self, rows: Rows, max_faulty: int, source: RandomSource | None) -> Rows:
        """Return the means of buckets that nobody can predict."""
        del max_faulty
        if source is None:
            raise InvalidArgument("source", "buckets must be drawn at random: give a source of dpfed.randomness")
        return fill_buckets(rows, self.bucket_size, source)

    def least(self, needed: int) -> int:
        """Return how many updates must come so that there are as many buckets as a rule needs."""
        return self.bucket_size * (needed - 1) + 1


@dataclass(frozen=True)
class FixedGroups:
    """Clients are added up in fixed groups, and the server noises each sum before a rule sees them.

    For styles `user` and `hybrid`; `plan.server.ServerRelease` executes it. A client's group follows from its place
    among the names of the plan: faulty clients spoil at most as many groups as there are of them.

    Privacy: a client is in one group, whoever takes part. The sums of all groups are one vector, of which a client
    moves its own part by at most a clip norm, so that noise, event and sampling are those of one clipped sum. What a
    rule makes of the noised sums is post-processing.
    """

    groups: int
    kind: ClassVar[str] = "groups"

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", checks.count(groups=self.groups))

    def mix(self, rows: Rows, max_faulty: int, source: RandomSource | None) -> Rows:
        """Refuse updates that are not noised in groups."""
        raise InvalidArgument("before", "groups are noised by a server: give this rule to a plan of style 'user'")

    def least(self, needed: int) -> int:
        """Return 0: there are as many sums as groups, whoever comes."""
        return 0

    def place(self, number: int) -> int:
        """Return the group of the client with that number among the names of the plan."""
        return number % self.groups

    def sizes(self, clients: int) -> list[int]:
        """Return how many of so many clients are in each group."""
        return [len(range(group, clients, self.groups)) for group in range(self.groups)]


Mixing = NearestNeighbourMixing | Bucketing | FixedGroups
MIXINGS: dict[str, type[Mixing]] = {each.kind: each for each in (NearestNeighbourMixing, Bucketing, FixedGroups)}


@dataclass(frozen=True, kw_only=True)
class RobustRule(ABC):
    """A rule that bears `max_faulty` arbitrary updates among those that come.

    Privacy: none of its own. It is post-processing of updates that their clients have noised (styles `sample` and
    `local`); behind it no noise is proved, except for one step of `CenteredClipping`.
    """

    max_faulty: int
    before: Mixing | None = None
    kind: ClassVar[str]
    needs_centre: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_faulty", checks.whole(max_faulty=self.max_faulty))
        if type(self.before) not in (type(None), *MIXINGS.values()):
            known = "NearestNeighbourMixing(), Bucketing(bucket_size), FixedGroups(groups) or None"
            message = f"before must be {known}, got {self.before!r:.60}"
            raise InvalidArgument("before", f"{message}: choose one of them")

    def __str__(self) -> str:
        behind = "" if self.before is None else f" behind {self.before.kind}"
        return f"{self.kind}{behind}, bearing {self.max_faulty} faulty client{'s' * (self.max_faulty != 1)}"

    @property
    def least(self) -> int:
        """The fewest updates with which it bears its faulty ones."""
        return self._needed if self.before is None else self.before.least(self._needed)

    @property
    def _needed(self) -> int:
        """The fewest rows that the rule itself must see, after mixing."""
        return least_updates(self.kind, self.max_faulty)

    def require(self, arrived: int) -> None:
        """Refuse fewer updates than the rule needs."""
        require_enough(self.kind, self._count_rows(arrived), self.max_faulty, self._needed)

    def _count_rows(self, arrived: int) -> int:
        """Return how many rows the rule itself sees, after mixing."""
        if isinstance(self.before, FixedGroups):
            return self.before.groups
        return effective_count(arrived, self.before.bucket_size) if isinstance(self.before, Bucketing) else arrived

    def combined(
        self,
        updates: Mapping[str, Floats],
        size: int,
        weights: Mapping[str, float] | None = None,
        centre: Floats | None = None,
        source: RandomSource | None = None,
    ) -> Floats:
        """Return the aggregate of updates that are released already; every client counts once, whatever its weight."""
        del weights
        self.require(len(updates))
        rows = Rows.read(np.stack(list(updates.values())))
        mixed = rows if self.before is None else self.before.mix(rows, self.max_faulty, source)
        return self.apply(mixed, np.zeros(size) if centre is None else centre)

    @abstractmethod
    def apply(self, rows: Rows, centre: Floats) -> Floats:
        """Return the aggregate of these rows."""


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(RobustRule):
    """The median of each coordinate."""

    kind: ClassVar[str] = "coordinate_median"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return coordinatewise.coordinate_median(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(RobustRule):
    """The mean of each coordinate without its lowest and highest values."""

    kind: ClassVar[str] = "trimmed_mean"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return coordinatewise.trimmed_mean(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class MeanAroundMedian(RobustRule):
    """The mean of each coordinate's values nearest its median."""

    kind: ClassVar[str] = "mean_around_median"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return coordinatewise.mean_around_median(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(RobustRule):
    """The point with the least sum of distances."""

    kind: ClassVar[str] = "geometric_median"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return geometric.geometric_median(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class Krum(RobustRule):
    """The update that is nearest its neighbours."""

    kind: ClassVar[str] = "krum"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return krum.krum(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(RobustRule):
    """The mean of the updates of least Krum score."""

    chosen: int | None = None
    kind: ClassVar[str] = "multi_krum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen is not None:
            object.__setattr__(self, "chosen", checks.count(chosen=self.chosen))

    @property
    def _needed(self) -> int:
        """Those of Krum's proof, and as many honest ones as are chosen."""
        return max(super()._needed, (self.chosen or 0) + self.max_faulty)

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return krum.multi_krum(rows, max_faulty=self.max_faulty, chosen=self.chosen)


@dataclass(frozen=True, kw_only=True)
class Bulyan(RobustRule):
    """The mean around the median of what Krum picks one by one."""

    kind: ClassVar[str] = "bulyan"

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return krum.bulyan(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class MinimumDiameter(RobustRule):
    """The mean of the subset of least diameter, for few clients."""

    kind: ClassVar[str] = "minimum_diameter"

    def require(self, arrived: int) -> None:
        """Refuse fewer updates than the rule needs, and more than all subsets can be tried of."""
        super().require(arrived)
        krum.require_few_subsets(self._count_rows(arrived), self.max_faulty)

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return krum.minimum_diameter(rows, max_faulty=self.max_faulty)


@dataclass(frozen=True, kw_only=True)
class NormBoundedMean(RobustRule):
    """The mean of updates scaled down to `clip_norm`."""

    clip_norm: float
    kind: ClassVar[str] = "norm_bounded_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))

    def apply(self, rows: Rows, _centre: Floats) -> Floats:
        """Return it."""
        return geometric.norm_bounded_mean(rows, max_faulty=self.max_faulty, clip_norm=self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(RobustRule):
    """The last round's aggregate, moved by the mean of updates' differences from it, each scaled down to a clip norm.

    In styles `user` and `hybrid` the clip norm is that of the plan's client (leave it out here), and there is one step.

    Privacy: one step around a point that is released already is a sum of differences clipped to the clip norm, over a
    public denominator. Adding or removing one client moves it by at most the clip norm, as with `Mean`, so that the
    same noise and the same event hold. A second step would be around a point that was not released.
    """

    clip_norm: float | None = None
    steps: int = 1
    kind: ClassVar[str] = "centered_clipping"
    needs_centre: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", checks.count(steps=self.steps))
        if self.clip_norm is not None:
            object.__setattr__(self, "clip_norm", checks.positive(clip_norm=self.clip_norm))

    def apply(self, rows: Rows, centre: Floats) -> Floats:
        """Return it; refused without a clip norm."""
        if self.clip_norm is None:
            raise InvalidArgument("clip_norm", "centered_clipping needs a clip_norm where the plan clips no update")
        options: dict[str, Any] = {"clip_norm": self.clip_norm, "centre": centre, "steps": self.steps}
        return geometric.centered_clipping(rows, max_faulty=self.max_faulty, **options)
