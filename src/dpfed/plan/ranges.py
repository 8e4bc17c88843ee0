"""Ranges of columns that a plan releases before its first round: with which noise, and which accounts pay.

Every client counts its records in public cells, its account is charged, it adds noise, and the sum of all gives a range
of each column (`analytics.scaling`): a released value, by which features may be scaled. It is composed with training
and with figures on the same accounts, and noise in training is calibrated to the rest of the promise.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> ward = LocalPlan(size=900, batch_size=90, steps=5, clip_norm=1.0, noise_multiplier=2.0)
>>> ranges = Ranges(("age",), ((0.0, 50.0, 100.0),), epsilon=0.5, delta=1e-5)
>>> plan = Plan("study", rounds=2, local={"ward": ward}, ranges=ranges)
>>> list_range_charges(plan)
{Gaussian(noise_multiplier=7.03...): 1}
>>> len(plan.local_charges("ward"))
2
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpfed import checks
from dpfed import events as ev
from dpfed.analytics.queries import Histogram
from dpfed.analytics.releases import ColumnRelease
from dpfed.analytics.scaling import find_least_count
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.population import Population

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan


@dataclass(frozen=True)
class Ranges:
    """The `columns` whose ranges are released, the public `edges` of their cells, and what it may cost one unit.

    `epsilon` and `delta` are of all columns, sites of a person and spare releases together: part of the promise.
    """

    columns: tuple[str, ...]
    edges: tuple[tuple[float, ...], ...]
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "edges", Histogram(self.edges).edges)
        object.__setattr__(self, "epsilon", checks.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", checks.positive_probability(delta=self.delta))
        if len(self.columns) != len(self.edges) or len(set(self.columns)) < len(self.columns):
            message = f"columns must be different ones, with edges for each, got {len(self.columns)} of them"
            raise InvalidArgument("columns", f"{message} and {len(self.edges)}: give both for each column")

    @property
    def query(self) -> Histogram:
        """What is counted."""
        return Histogram(self.edges)

    def to_plain(self) -> dict[str, Any]:
        """Return the ranges as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Ranges:
        """Return the ranges that `to_plain` described."""
        return cls(**{**plain, "columns": tuple(plain["columns"]), "edges": tuple(map(tuple, plain["edges"]))})


def require_releasable(plan: Plan) -> None:
    """Refuse ranges in a style in which clients do not noise records of their own, or that could not be told apart."""
    if plan.ranges is None:
        return
    if not isinstance(plan.ranges, Ranges):
        raise InvalidArgument("ranges", f"ranges must be Ranges or None, got {plan.ranges!r:.60}")
    if plan.style != "sample" or isinstance(plan.local, Population):
        message = (
            f"a run releases ranges in style 'sample', where each client noises its own, and not in {plan.style!r}"
        )
        raise InvalidArgument("ranges", f"{message}: declare ranges that anybody may know (data.feature_bounds)")
    noised = [part.event for part in plan.kinds if part.noise_multiplier is not None and part.tree is None]
    if any(event in list_range_charges(plan) for event in noised):
        message = "ranges and a round have the very same noise, so that the ledger could not tell them apart"
        raise InvalidArgument("ranges", f"{message}: change the epsilon of the ranges a little")


def count_range_releases(plan: Plan) -> int:
    """Return how often ranges may be charged: once, and once more for each spare round, if a crash lost them."""
    return 1 + plan.spare_rounds


def find_range_release(plan: Plan) -> ColumnRelease | None:
    """Return the noise that each client adds to its own counts, and the event; None where no ranges are released.

    Privacy: for a record or person in the worst `max_sites_per_person` sites together, all releases, spare ones
    included, cost at most ``ranges.epsilon`` at ``ranges.delta``.
    """
    if plan.ranges is None:
        return None
    share = Guarantee(plan.ranges.epsilon, plan.ranges.delta, plan.local_unit, plan.record_adjacency)
    return ColumnRelease(plan.ranges.query, share, plan.max_sites_per_person * count_range_releases(plan))


def list_range_charges(plan: Plan) -> dict[ev.Event, int]:
    """Return what the release of ranges takes from each client's account at most."""
    release = find_range_release(plan)
    return {} if release is None else {release.event: count_range_releases(plan)}


def find_sum_deviation(plan: Plan) -> float:
    """Return the standard deviation of the noise of one count in the sum over all clients."""
    release = find_range_release(plan)
    return 0.0 if release is None else release.noise * math.sqrt(len(plan.local))


def require_enough(plan: Plan, held_out: float) -> None:
    """Refuse ranges of which noise would leave nothing, by declared sizes alone, before anything is paid for them."""
    if plan.ranges is None:
        return
    query, noise = plan.ranges.query, find_sum_deviation(plan)
    # Noise on the count of all is a part of what decides: three deviations more, and it rarely decides.
    least = find_least_count(query, noise) + math.ceil(3 * noise * math.sqrt(max(query.sizes)))
    declared = sum(part.size for part in plan.local.values()) / (1 - held_out)
    if declared < least:
        known = f"some {declared:,.0f} are declared, those held out included"
        message = f"ranges at ε = {plan.ranges.epsilon:g} need about {least:,} records, and {known}"
        ways = "release fewer columns, give bounds.grid with fewer cells, or more ε; or declare data.feature_bounds"
        raise InvalidArgument("bounds", f"{message}, so that noise would leave nothing: {ways}")
