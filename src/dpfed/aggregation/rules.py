"""How the updates of a round become one: a frozen description, which a plan names and a round executes.

What noise protects depends on the rule. Under `Mean` each client is one bounded term of a sum, which is what the noise
of styles `user` and `hybrid` is proved for, and one step of `CenteredClipping` is such a sum too. Every other rule must
not be used there, unless it stands behind `FixedGroups`, whose sums are noised first.

>>> import numpy as np
>>> updates = {"north": np.array([3.0, 4.0]), "south": np.array([0.0, 0.5])}
>>> Mean().combined(updates, size=2, weights={"north": 0.5, "south": 0.5})
array([1.5 , 2.25])
>>> rule = choose_rule("sample", max_faulty=2)
>>> rule
TrimmedMean(max_faulty=2, before=NearestNeighbourMixing())
>>> from_plain(to_plain(rule)) == rule
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dpfed.aggregation.mean import ClippedMean
from dpfed.aggregation.robust_rules import (
    MIXINGS,
    Bulyan,
    CenteredClipping,
    CoordinateMedian,
    FixedGroups,
    GeometricMedian,
    Krum,
    MeanAroundMedian,
    MinimumDiameter,
    Mixing,
    MultiKrum,
    NearestNeighbourMixing,
    NormBoundedMean,
    RobustRule,
    TrimmedMean,
)
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument
from dpfed.randomness import RandomSource

SERVER_STYLES = ("user", "hybrid")  # in which noise is added to the aggregate


@dataclass(frozen=True)
class Mean:
    """The weighted mean over a denominator of the plan; who is missing counts as zero (`ClippedMean`)."""

    kind: ClassVar[str] = "mean"
    needs_centre: ClassVar[bool] = False

    def combined(
        self,
        updates: Mapping[str, Floats],
        size: int,
        weights: Mapping[str, float] | None = None,
        centre: Floats | None = None,
        source: RandomSource | None = None,
    ) -> Floats:
        """Return the mean of updates that are released already: post-processing."""
        del centre, source
        return ClippedMean(clip_norm=math.inf, denominator=1.0, weights=weights).of(updates, size)

    def total(
        self, updates: Mapping[str, Floats], size: int, weights: Mapping[str, float] | None, clip_norm: float
    ) -> Floats:
        """Return the sum of clipped updates by relative weight, which noise is added to; no weights are equal ones.

        Privacy: adding or removing one client moves it by at most the clip norm, to the last bit.
        """
        return ClippedMean(clip_norm=clip_norm, denominator=1.0, weights=weights).total(updates, size)


Rule = Mean | RobustRule
RULES: dict[str, type[Rule]] = {
    each.kind: each
    for each in (
        Mean,
        NormBoundedMean,
        CoordinateMedian,
        TrimmedMean,
        MeanAroundMedian,
        GeometricMedian,
        Krum,
        MultiKrum,
        Bulyan,
        MinimumDiameter,
        CenteredClipping,
    )
}


def choose_rule(style: str, max_faulty: int) -> RobustRule:
    """Return the rule for a plan that says how many clients may be faulty and names no rule.

    Where clients noise what they send, or nobody does: a trimmed mean behind nearest-neighbour mixing. Where the
    server noises the sum: one step of centred clipping, which has the mean's sensitivity.
    """
    if style in SERVER_STYLES:
        return CenteredClipping(max_faulty=max_faulty)
    return TrimmedMean(max_faulty=max_faulty, before=NearestNeighbourMixing())


def is_noisable(rule: Rule) -> bool:
    """Return whether the mean's noise is proved with the rule: a clipped sum, or any rule behind groups of them."""
    return is_clipped_sum(rule) or find_groups(rule) is not None


def find_groups(rule: Rule) -> FixedGroups | None:
    """Return the groups that are noised before the rule; None where it has none."""
    before = rule.before if isinstance(rule, RobustRule) else None
    return before if isinstance(before, FixedGroups) else None


def is_clipped_sum(rule: Rule) -> bool:
    """Return whether the rule is a clipped sum, around a point that is released."""
    if isinstance(rule, CenteredClipping):
        return rule.steps == 1 and rule.before is None and rule.clip_norm is None
    return isinstance(rule, Mean)


def require_unmasked(rule: Rule) -> None:
    """Refuse a rule that must see every update alone where updates are masked, and only their sum is known."""
    if not is_clipped_sum(rule):
        message = f"{rule.kind} compares updates with each other, and of masked updates nobody knows more than the sum"
        remedy = "choose centered_clipping, which is a sum, or leave masking out"
        raise InvalidArgument("aggregation", f"{message}: {remedy}")


def to_plain(rule: Rule) -> dict[str, Any]:
    """Return the rule as plain JSON values; what is not set is left out."""
    values = {name: value for name, value in asdict(rule).items() if value is not None}
    if isinstance(rule, RobustRule) and rule.before is not None:
        values["before"] = {"kind": rule.before.kind, **asdict(rule.before)}
    return {"kind": rule.kind, **values}


def from_plain(plain: Mapping[str, Any]) -> Rule:
    """Return the rule that `to_plain` described."""
    values = dict(plain)
    kind = RULES.get(str(values.pop("kind", None)))
    if kind is None:
        raise InvalidArgument("aggregation", f"aggregation must be of kind {', '.join(RULES)}, got {plain!r:.80}")
    if values.get("before") is not None:
        values["before"] = _read_mixing(values["before"])
    return kind(**values)


def _read_mixing(plain: Mapping[str, Any]) -> Mixing:
    values = dict(plain)
    kind = MIXINGS.get(str(values.pop("kind", None)))
    if kind is None:
        raise InvalidArgument("before", f"before must be of kind {', '.join(MIXINGS)}, got {plain!r:.80}")
    return kind(**values)
