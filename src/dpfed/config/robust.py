"""The blocks ``aggregation:`` and ``quarantine:``: how updates become one where some clients may be faulty.

>>> AggregationBlock(max_faulty=2).make_rule("sample")
TrimmedMean(max_faulty=2, before=NearestNeighbourMixing())
>>> AggregationBlock(max_faulty=2).make_rule("user")
CenteredClipping(max_faulty=2, before=None, clip_norm=None, steps=1)
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from dpfed.aggregation.quarantine import Quarantine
from dpfed.aggregation.rules import Mean, Rule, choose_rule, from_plain
from dpfed.config.fields import Block, Number, SettingError, Whole, setting

Kind = Literal[
    "mean",
    "norm_bounded_mean",
    "coordinate_median",
    "trimmed_mean",
    "mean_around_median",
    "geometric_median",
    "krum",
    "multi_krum",
    "bulyan",
    "minimum_diameter",
    "centered_clipping",
]
ONLY_WITH = {
    "chosen": ("multi_krum",),
    "clip_norm": ("norm_bounded_mean", "centered_clipping"),
    "steps": ("centered_clipping",),
}


class AggregationBlock(Block):
    """The rule by which the updates of a round become one."""

    kind: Kind | None = setting(
        None,
        effect=(
            "the rule; without it trimmed_mean behind nnm, or in styles user and hybrid centered_clipping, which has "
            "the mean's sensitivity"
        ),
    )
    max_faulty: Whole | None = setting(
        None, symbol="f", effect="how many clients of a round may send anything at all", ge=0
    )
    before: Literal["nnm", "bucketing", "groups"] | None = setting(
        None,
        effect=(
            "mix updates with their nearest, average them in random buckets, or noise the sums of fixed groups of "
            "clients (groups; styles user and hybrid) before the rule"
        ),
    )
    groups: Whole | None = setting(None, symbol="G", effect="how many fixed groups clients are in (groups)", ge=1)
    bucket_size: Whole | None = setting(None, symbol="s", effect="updates in a bucket (bucketing)", ge=1)
    chosen: Whole | None = setting(None, symbol="m", effect="how many updates multi_krum averages", ge=1)
    clip_norm: Number | None = setting(
        None, symbol="τ", effect="how far an update may pull (norm_bounded_mean, centered_clipping)", gt=0
    )
    steps: Whole | None = setting(None, effect="steps of centered_clipping; one in styles user and hybrid", ge=1)

    @model_validator(mode="after")
    def _require_fitting(self) -> Self:
        self._require_faulty()
        for key, kinds in ONLY_WITH.items():
            if getattr(self, key) is not None and self.kind not in kinds:
                raise SettingError(key, f"goes with kind: {' or '.join(kinds)} only")
        if self.kind == "norm_bounded_mean" and self.clip_norm is None:
            raise SettingError("clip_norm", "is missing: norm_bounded_mean scales updates down to it")
        if self.bucket_size is not None and self.before != "bucketing":
            raise SettingError("bucket_size", "goes with before: bucketing only")
        if (self.groups is not None) != (self.before == "groups"):
            raise SettingError("groups", "goes with before: groups, and must be said there: how many groups")
        if self.before is not None and self.kind in (None, "mean"):
            raise SettingError("before", "goes with a robust kind only: name the rule that it is before")
        return self

    def _require_faulty(self) -> None:
        if self.kind == "mean" and self.max_faulty:
            raise SettingError("max_faulty", "must be left out: the mean bears no faulty client; name a robust kind")
        if self.kind != "mean" and self.max_faulty is None:
            raise SettingError("max_faulty", "is missing: how many clients of a round may be faulty")

    def make_rule(self, style: str) -> Rule:
        """Return the rule for a plan of that style."""
        if self.kind is None:
            return choose_rule(style, self.max_faulty or 0)
        if self.kind == "mean":
            return Mean()
        said = self.model_dump(exclude={"before", "bucket_size", "groups"}, exclude_none=True)
        return from_plain(said | self._plain_mixing())

    def _plain_mixing(self) -> dict[str, Any]:
        if self.before is None:
            return {}
        sizes = {"bucket_size": self.bucket_size, "groups": self.groups}
        return {"before": {"kind": self.before} | {name: size for name, size in sizes.items() if size is not None}}


class QuarantineBlock(Block):
    """When clients that send what nobody else would no longer count."""

    strikes: Whole = setting(3, effect="rounds with an unusual update until a client is put aside", ge=1)
    clean_rounds: Whole = setting(10, effect="rounds with usual updates until it counts again", ge=1)
    high: Number = setting(9.0, effect="robust deviations from which on an update is a strike", gt=0)
    low: Number = setting(5.0, effect="robust deviations below which it is clean", gt=0)

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.low > self.high:
            raise SettingError("low", f"must be at most high ({self.high:g}), got {self.low:g}")
        return self

    def make(self) -> Quarantine:
        """Return it as a part of a plan."""
        return Quarantine(**self.model_dump())
