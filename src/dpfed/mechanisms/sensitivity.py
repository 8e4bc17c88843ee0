"""How far one record can move an output: a number that knows its norm and its adjacency.

Noise for the wrong norm, or charged under the other adjacency, is the oldest mistake of the field; a bare
number cannot show it, so bounds derived here carry both. The formulas bound the output over *all* data sets:
a maximum over the actual data is itself private. Each is rounded up.

>>> fedavg_step(clip_norm=1.0, learning_rate=0.1, records=500)
Sensitivity(0.0004, norm='l1', adjacency='replace_one')
>>> fedavg_step(clip_norm=1.0, learning_rate=0.1, records=500, adjacency="add_remove")
Sensitivity(0.0002, norm='l1', adjacency='add_remove')

What each formula needs to be public, and a pair of neighbours that attains it, is in `dpfed.mechanisms.formulas`;
`dpfed.mechanisms.claims` searches for a pair that breaks a bound of your own.

Clipping a whole update does not bound one record inside it by the clip norm: the record can turn the update around.

>>> clipped_update(clip_norm=1.0, unit="client", adjacency="add_remove")
Sensitivity(1, norm='l1', adjacency='add_remove')
>>> clipped_update(clip_norm=1.0, unit="record", adjacency="add_remove")
Sensitivity(2, norm='l1', adjacency='add_remove')
"""

from __future__ import annotations

from fractions import Fraction
from numbers import Rational
from typing import Any

from dpfed import checks
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.guarantee import UNITS
from dpfed.rounding import round_up

NORMS = ("l1", "l2", "linf")


class Sensitivity(float):
    """The largest change of an output, in `norm`, between neighbours under `adjacency`.

    It is a float, rounded up; times or divided by a number it keeps its norm and adjacency, any other arithmetic
    gives a bare number.
    """

    norm: str
    adjacency: str

    def __new__(cls, value: float, norm: str, adjacency: str = ADD_REMOVE) -> Sensitivity:
        """Return the sensitivity, if it is positive and finite."""
        self = super().__new__(cls, checks.positive(sensitivity=round_up(_fraction(sensitivity=value))))
        self.norm = _require_one_of("norm", norm, NORMS)
        self.adjacency = checks.adjacency(adjacency)
        return self

    def __mul__(self, other: float) -> Sensitivity:
        return _round_up(Fraction(self) * _fraction(factor=other), self.norm, self.adjacency)

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> Sensitivity:
        return _round_up(Fraction(self) / _fraction(divisor=other), self.norm, self.adjacency)

    def __repr__(self) -> str:
        return f"Sensitivity({float(self):.10g}, norm={self.norm!r}, adjacency={self.adjacency!r})"

    def __reduce__(self) -> tuple[type[Sensitivity], tuple[float, str, str]]:
        return Sensitivity, (float(self), self.norm, self.adjacency)


def in_norm(norm: str, sensitivity: Any, adjacency: str = ADD_REMOVE) -> Sensitivity:
    """Return the sensitivity in that norm; a bare number is taken to be in it, under that adjacency."""
    if not isinstance(sensitivity, Sensitivity):
        return Sensitivity(sensitivity, norm, adjacency)
    if sensitivity.norm != norm:
        raise InvalidArgument(
            "sensitivity",
            f"this mechanism needs an {norm.upper()} sensitivity, got {sensitivity!r}: "
            f"clip in {norm.upper()} or choose the mechanism of the other norm",
        )
    return sensitivity


def clipped_update(clip_norm: float, *, unit: str, adjacency: str = REPLACE_ONE, norm: str = "l1") -> Sensitivity:
    """Return the sensitivity of one release of a client's whole update, clipped to clip_norm = S.

    Privacy: a client that is added or removed moves it by S, because an absent client's update is zero; a client that
    is replaced, by 2S. A record or a person inside a client can turn the update from −S to +S however it came or went,
    so it is 2S under both adjacencies.
    """
    bound = _fraction(clip_norm=clip_norm)
    is_whole = _require_one_of("unit", unit, tuple(UNITS)) == "client"
    return _round_up(bound * (_count_moved(adjacency) if is_whole else 2), norm, adjacency)


def fedavg_step(
    clip_norm: float,
    learning_rate: float,
    records: int,
    steps: int = 1,
    *,
    pull: float = 0.0,
    adjacency: str = REPLACE_ONE,
    norm: str = "l1",
    clipping: str = "example",
    normaliser: str = "public",
    optimizer: str = "sgd",
    over: str = "all",
) -> Sensitivity:
    """Return the sensitivity of a client's model after `steps` full-batch gradient steps.

    Each record's gradient is clipped to C in `norm`, summed, divided by the public constant `records` = I and
    multiplied by the learning rate η. One step moves by 2Cη/I under replace-one and Cη/I under add/remove.
    From the second step on every gradient may change with the weights, so E steps move by 2Cη(1/I + E − 1).
    With clipping="batch" (each step's whole gradient clipped to C) it is 2CηE.

    A `pull` μ (FedProx, FedDyn) adds μ(w − anchor) to each gradient, after the clip. For two neighbours the distance d
    of the weights then follows d ← abs(1 − ημ)·d + η·‖g − g′‖, from d = 0, where ‖g − g′‖ is at most 2C/I in the first
    step and 2C in later ones. With r = abs(1 − ημ) that is 2Cη(rᴱ⁻¹/I + 1 + r + … + rᴱ⁻²), no more than without
    a pull as long as 0 ≤ ημ ≤ 2; beyond, the steps overshoot the anchor by more each time, and are refused.

    Privacy: for one record; replace-one, or add/remove with a fixed public normaliser; the start weights and the anchor
    must be public or already released. Several steps need I to be no less than the number of records, so that no step's
    gradient is longer than C. A mean over the true count, several steps under add/remove (the number of records, hence
    the later steps, has no bound there) and optimisers with state are refused; so is over="data", the largest change
    over the actual records, which is itself private.
    """
    _require_sgd(optimizer)
    _require_all_data_sets(over)
    _require_one_of("clipping", clipping, ("example", "batch"))
    _require_public_normaliser(normaliser, adjacency)
    bound = _fraction(clip_norm=clip_norm) * _fraction(learning_rate=learning_rate)
    records, steps = checks.count(records=records), checks.count(steps=steps)
    ratio = _contraction(learning_rate, pull, steps)
    if clipping == "batch":
        return _round_up(2 * bound * _geometric(ratio, steps)[0], norm, adjacency)
    _require_bounded_steps(steps, adjacency)
    later, first = _geometric(ratio, steps - 1)
    return _round_up(bound * (first * Fraction(_count_moved(adjacency), records) + 2 * later), norm, adjacency)


def scaffold_step(
    clip_norm: float,
    learning_rate: float,
    records: int,
    steps: int = 1,
    *,
    adjacency: str = REPLACE_ONE,
    norm: str = "l1",
    state: str = "released",
) -> Sensitivity:
    """Return the sensitivity of the change of a client's model in SCAFFOLD, which is that of FedAvg.

    Every step's gradient is shifted by c − cᵢ after the clip. The same shift for both neighbours drops out of their
    difference.

    Privacy: as `fedavg_step`; c and cᵢ must be made of noisy *released* changes. An exact cᵢ is the mean gradient of
    earlier records, and moves the next release by as much again.
    """
    _require_released(state, "control variate")
    return fedavg_step(clip_norm, learning_rate, records, steps, adjacency=adjacency, norm=norm)


def feddyn_step(
    clip_norm: float,
    learning_rate: float,
    records: int,
    alpha: float,
    steps: int = 1,
    *,
    adjacency: str = REPLACE_ONE,
    norm: str = "l1",
    state: str = "released",
) -> Sensitivity:
    """Return the sensitivity of the change of a client's model in FedDyn: FedAvg's with a pull of α.

    The shift by −gᵢ drops out of the difference of two neighbours; the pull towards the model that was sent does not
    act on the first step, which starts there.

    Privacy: as `fedavg_step`, with ηα ≤ 2 for several steps; gᵢ must be made of noisy *released* changes.
    """
    _require_released(state, "gradient of earlier rounds")
    pull = checks.positive(alpha=alpha)
    return fedavg_step(clip_norm, learning_rate, records, steps, pull=pull, adjacency=adjacency, norm=norm)


def iadmm_step(
    clip_norm: float,
    penalty: float,
    total_records: int,
    proximity: float = 0.0,
    *,
    adjacency: str = REPLACE_ONE,
    norm: str = "l1",
    steps: int = 1,
    state: str = "released",
    optimizer: str = "sgd",
    penalty_rule: str = "public",
    next_penalty: float | None = None,
) -> Sensitivity:
    """Return the sensitivity of the primal z = (ρw + λ + ζz_prev − g)/(ρ + ζ) of one inexact ADMM step.

    g is the sum of per-record gradients clipped to C in `norm`, over the public total I; ρ is the penalty and
    ζ the proximity: 2C/(I(ρ + ζ)) under replace-one, C/(I(ρ + ζ)) under add/remove. IADMM, ICEADMM and IIADMM take this
    step; they differ in who computes the dual λ from the released z.

    With a `next_penalty` ρ′ the release is primal and dual in one vector, z − λ′/ρ′ with λ′ = λ + ρ(w − z), as ICEADMM
    sends it. That is (1 + ρ/ρ′)z and public terms, and moves by so much more: twice, at a constant ρ.

    Privacy: λ and z_prev must be computed from noisy *released* values, ρ and ζ fixed in advance (a ρ
    balanced on residuals depends on the data), and the exact dual never leaves: it gives the primal away.
    """
    _require_sgd(optimizer)
    _require_one_step(steps)
    _require_released(state, "dual or previous iterate")
    _require_public_penalty(penalty_rule)
    divisor = _fraction(penalty=penalty) + Fraction(checks.non_negative(proximity=proximity))
    divisor *= checks.count(total_records=total_records)
    bound = _fraction(clip_norm=clip_norm) * _combine(penalty, next_penalty)
    return _round_up(_count_moved(adjacency) * bound / divisor, norm, adjacency)


def _count_moved(adjacency: str) -> int:
    """Return how many clipped contributions differ between neighbours."""
    return 2 if checks.adjacency(adjacency) == REPLACE_ONE else 1


def _combine(penalty: float, next_penalty: float | None) -> Fraction:
    """Return by how much more than the primal a vector moves that holds the dual over ρ′ as well."""
    return (
        Fraction(1) if next_penalty is None else 1 + _fraction(penalty=penalty) / _fraction(next_penalty=next_penalty)
    )


def _contraction(learning_rate: float, pull: float, steps: int) -> Fraction:
    """Return abs(1 − ημ), by which a step with a pull of μ shortens the distance of two models."""
    product = _fraction(learning_rate=learning_rate) * Fraction(checks.non_negative(pull=pull))
    if steps > 1 and float(product) > 2:  # 0.1 · 20 is above 2 by less than a float can tell: the formula holds there
        raise InvalidArgument(
            "pull",
            f"learning_rate · pull is {float(product):.10g}, and above 2 every step overshoots the anchor by more than "
            "the last, without a useful bound: lower one of them, or take one step",
        )
    return abs(1 - product)


def _geometric(ratio: Fraction, terms: int) -> tuple[Fraction, Fraction]:
    """Return 1 + r + … + rⁿ⁻¹ and rⁿ, rounded up at 2⁻²⁵⁶: every operation here grows with its operands."""
    if terms == 0:
        return Fraction(0), Fraction(1)
    total, power = _geometric(ratio, terms // 2)
    total, power = total * (1 + power), power * power
    if terms % 2:
        total, power = 1 + ratio * total, ratio * power
    return _coarsen(total), _coarsen(power)


def _coarsen(value: Fraction) -> Fraction:
    return Fraction(-(-(value.numerator << 256) // value.denominator), 1 << 256)


def _require_bounded_steps(steps: int, adjacency: str) -> None:
    if checks.adjacency(adjacency) == ADD_REMOVE and steps > 1:
        raise InvalidArgument(
            "steps",
            f"{steps} local steps have no add/remove bound, because the number of records has none: ask for "
            "replace_one, take one step, or clip the whole update and use clipped_update(..., unit='record')",
        )


def _require_one_step(steps: int) -> None:
    if checks.count(steps=steps) > 1:
        raise InvalidArgument(
            "steps",
            f"iadmm_step bounds one local step, got steps={steps}: take one, or clip the whole update and "
            "use clipped_update(..., unit='record')",
        )


def _require_released(state: str, what: str) -> None:
    if _require_one_of("state", state, ("released", "exact")) == "exact":
        raise InvalidArgument(
            "state",
            f"an exact {what} carries the private data of earlier rounds, which moves the release once more: compute "
            "it from the noisy released values (state='released')",
        )


def _require_public_penalty(rule: str) -> None:
    if _require_one_of("penalty_rule", rule, ("public", "residual")) == "residual":
        raise InvalidArgument(
            "penalty_rule",
            "a penalty that is balanced on residuals depends on the data, and so would the noise: fix it, or a "
            "schedule of it, in advance (penalty_rule='public')",
        )


def _require_all_data_sets(over: str) -> None:
    if _require_one_of("over", over, ("all", "data")) == "data":
        raise InvalidArgument(
            "over",
            "the largest change over the actual records depends on them, so noise scaled by it protects nobody and its "
            "scale tells of them: clip each gradient and take the bound over all data sets (over='all')",
        )


def _require_public_normaliser(normaliser: str, adjacency: str) -> None:
    if _require_one_of("normaliser", normaliser, ("public", "realised")) == "realised" and adjacency == ADD_REMOVE:
        raise InvalidArgument(
            "normaliser",
            "a mean over the true count changes with every record under add/remove: divide by a public "
            "constant (normaliser='public') or ask for replace_one, where the count is public",
        )


def _require_sgd(optimizer: str) -> None:
    if optimizer != "sgd":
        raise InvalidArgument(
            "optimizer",
            f"no sensitivity is known for optimizer={optimizer!r}, whose state multiplies gradients: "
            "use 'sgd', or clip the whole update and use clipped_update(..., unit='record')",
        )


def _fraction(**value: Any) -> Fraction:
    """Return the positive number as an exact fraction: a float of it may be less."""
    nearest = checks.positive(**value)
    (number,) = value.values()
    if not isinstance(number, Rational):
        return Fraction(nearest)
    return Fraction(int(number.numerator), int(number.denominator))


def _require_one_of(argument: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidArgument(argument, f"{argument} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def _round_up(value: Fraction, norm: str, adjacency: str) -> Sensitivity:
    return Sensitivity(round_up(value), norm, adjacency)
