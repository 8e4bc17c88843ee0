"""What an audit says beside the accountant: accounted ε ≤ U, audited ε ≥ L, on what, how, and how surely.

The two are compared only where they speak of one unit, one neighbouring relation and one δ. A bound above the accounted
ε at significance 1e-3 is a fault of plan or code; at 5 % it is a warning, for one audit in twenty may say so by chance.
A bound below it proves nothing: beside it stands what a perfect attacker could have shown.

>>> bound = Bound(1.25, 1e-5, "one_run", 0.05, 1000, 4.9, 250, 230, 8)
>>> gate = Bound(0.9, 1e-5, "one_run", 1e-3, 1000, 4.2, 250, 230, 8)
>>> print(Verdict(Guarantee(4.0, 1e-5), bound, gate, 3.8, "gradient", GENERATED).line)
accounted ε ≤ 4 | audited ε ≥ 1.25 (on: a generated stand-in, which audits plan and code; one run, 95 %, 1,000 \
gradient canaries, ceiling 4.9)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpfed.audit.bounds import ONE_RUN, ONE_RUN_FDP, Bound, from_scores
from dpfed.audit.canaries import CanaryScores
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.rounding import decimal_down, decimal_up

WARNING, FAULT = 0.05, 1e-3  # significances
GENERATED = "a generated stand-in, which audits plan and code"
PUBLIC = "a public stand-in, which audits plan and code"
PRIVATE = "this run's data"
METHODS = {ONE_RUN: "one run", ONE_RUN_FDP: "one run against a Gaussian curve"}


@dataclass(frozen=True)
class Verdict:
    """An audit's result: the accounted guarantee, the bound, the same at the significance of a fault, an estimate.

    `estimate` is what two Gaussians would say that are as far apart as the scores: a number to look at, and no bound.
    One that is not `is_shareable` was made of exact private values, and is for the owner alone.
    """

    accounted: Guarantee
    bound: Bound
    gate: Bound
    estimate: float
    canaries: str
    data: str
    is_shareable: bool = True

    @property
    def is_refuted(self) -> bool:
        """Whether the audit shows a fault: its bound at significance 1e-3 is above the accounted ε."""
        return self.gate.epsilon > self.accounted.epsilon

    @property
    def is_doubtful(self) -> bool:
        """Whether the bound at 95 % is above the accounted ε."""
        return self.bound.epsilon > self.accounted.epsilon

    @property
    def line(self) -> str:
        """The line of a report."""
        how = f"{METHODS[self.bound.method]}, {100 * self.bound.confidence:.4g} %"
        what = f"{self.bound.canaries:,} {self.canaries} canaries, ceiling {self.bound.ceiling:.2g}"
        upper, lower = decimal_up(self.accounted.epsilon, 4), decimal_down(self.bound.epsilon, 3)
        found = f"accounted ε ≤ {upper} | audited ε ≥ {lower}"
        return f"{found} (on: {self.data}; {how}, {what})"

    @property
    def remark(self) -> str:
        """What the comparison means, in one sentence."""
        if self.is_refuted:
            return "REFUTED: the run leaks more than was accounted for; plan or code is at fault, or the canaries are."
        if self.is_doubtful:
            return "DOUBTFUL: the bound is above the accounted ε; one audit in twenty is so by chance: repeat it."
        return "No evidence against the accounted ε. That is no evidence for it beyond the bound."

    def to_plain(self) -> dict[str, Any]:
        """Return the verdict as plain values, with its line."""
        judged = {"is_refuted": self.is_refuted, "is_doubtful": self.is_doubtful}
        return {"line": self.line, "remark": self.remark} | judged | asdict(self)


def judge(
    scores: CanaryScores,
    accounted: Guarantee,
    *,
    unit: str,
    adjacency: str,
    is_gaussian: bool,
    canaries: str,
    data: str,
    is_shareable: bool = True,
) -> Verdict:
    """Return what the scores of canaries of that unit and adjacency say about a guarantee; refuse another kind.

    Where the whole run `is_gaussian`, known from the plan, its trade-off curve is tested, which shows more.
    """
    if (accounted.unit, accounted.adjacency) != (unit, adjacency):
        message = f"canaries were {unit}s under {adjacency}, and the statement is for one {accounted.unit} under"
        raise InvalidArgument("accounted", f"{message} {accounted.adjacency}: audit the unit that is promised")
    method = ONE_RUN_FDP if is_gaussian and accounted.delta > 0 else ONE_RUN
    bounds = [
        from_scores(scores.of_members, scores.of_others, accounted.delta, significance, method=method)
        for significance in (WARNING, FAULT)
    ]
    estimate = scores.estimate(accounted.delta)
    return Verdict(accounted, bounds[0], bounds[1], estimate, canaries, data, is_shareable)
