"""How the updates of a round become one: a frozen description, which a plan names and a round executes.

What noise protects depends on the rule. Under `Mean` each client is one bounded term of a sum, which is what the noise
of styles `user` and `hybrid` is proved for; a rule for which that does not hold must not be used there.

>>> import numpy as np
>>> updates = {"north": np.array([3.0, 4.0]), "south": np.array([0.0, 0.5])}
>>> Mean().combined(updates, size=2, weights={"north": 0.5, "south": 0.5})
array([1.5 , 2.25])
>>> from_plain(to_plain(Mean()))
Mean()
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dpfed.aggregation.mean import ClippedMean
from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument


@dataclass(frozen=True)
class Mean:
    """The weighted mean over a denominator of the plan; who is missing counts as zero (`ClippedMean`)."""

    kind: ClassVar[str] = "mean"

    def combined(self, updates: Mapping[str, Floats], size: int, weights: Mapping[str, float]) -> Floats:
        """Return the mean of updates that are released already: post-processing."""
        return ClippedMean(clip_norm=math.inf, denominator=1.0, weights=weights).of(updates, size)

    def total(
        self, updates: Mapping[str, Floats], size: int, weights: Mapping[str, float] | None, clip_norm: float
    ) -> Floats:
        """Return the sum of clipped updates by relative weight, which noise is added to; no weights are equal ones.

        Privacy: adding or removing one client moves it by at most the clip norm, to the last bit.
        """
        return ClippedMean(clip_norm=clip_norm, denominator=1.0, weights=weights).total(updates, size)


Rule = Mean
RULES: dict[str, type[Rule]] = {Mean.kind: Mean}


def to_plain(rule: Rule) -> dict[str, Any]:
    """Return the rule as plain JSON values."""
    return {"kind": rule.kind, **asdict(rule)}


def from_plain(plain: Mapping[str, Any]) -> Rule:
    """Return the rule that `to_plain` described."""
    values = dict(plain)
    kind = RULES.get(str(values.pop("kind", None)))
    if kind is None:
        raise InvalidArgument("aggregation", f"aggregation must be of kind {', '.join(RULES)}, got {plain!r:.80}")
    return kind(**values)
