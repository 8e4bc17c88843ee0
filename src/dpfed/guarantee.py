"""What is promised: (ε, δ) for one unit under one neighbouring relation, and what that means to a person.

>>> promise = Guarantee(epsilon=1.0, delta=1e-5, unit="record")
>>> print(promise.sentence())
Whoever sees everything released and knows all other data can tell whether one record took part hardly \
better than by guessing: at 1 % false alarms an attacker catches at most 2.8 %.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from dpfed import checks
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.rounding import round_up

if TYPE_CHECKING:
    from dpfed.events import Event

RECORD, PERSON, CLIENT = "record", "person", "client"
LOCAL = "local"  # the style in which each client noises its own update
# Whose data a promise is about, in words.
UNITS = {RECORD: "one record", PERSON: "one person, with all rows", CLIENT: "one client, with all its records"}
# Whom each style of a run protects. A person takes the place of the record where clients clip all rows of a person.
UNITS_OF_STYLE: dict[str, tuple[str, ...]] = {
    "none": (),
    "sample": (RECORD,),
    "user": (CLIENT,),
    "hybrid": (RECORD, CLIENT),
    LOCAL: (CLIENT,),
}


@dataclass(frozen=True)
class Guarantee:
    """An (ε, δ) promise for one unit under one adjacency.

    Privacy: for all data sets that are neighbours under ``adjacency`` with respect to one ``unit`` and every
    set S of outputs, P[M(D) ∈ S] ≤ e^ε P[M(D′) ∈ S] + δ. Promises for different units or adjacencies are not
    comparable and are never added up.
    """

    epsilon: float
    delta: float
    unit: str = "record"
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        epsilon = math.inf if self.epsilon == math.inf else checks.non_negative(epsilon=self.epsilon)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", checks.probability(delta=self.delta))
        if self.unit not in UNITS:
            raise InvalidArgument("unit", f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        checks.adjacency(self.adjacency)

    def for_group(self, size: int) -> Guarantee:
        """Return the promise that follows for any `size` units together (Vadhan 2017, Lemma 2.2)."""
        size = checks.count(size=size)
        if size == 1 or self.epsilon == math.inf:
            return self
        epsilon = round_up(size * Fraction(self.epsilon))
        if self.delta == 0:
            return replace(self, epsilon=epsilon)
        delta = self.delta * _growth(self.epsilon, size) * (1 + 2.0**-48)
        return replace(self, epsilon=epsilon, delta=delta) if delta < 1 else replace(self, epsilon=math.inf, delta=0.0)

    def detection_rate(self, false_alarm_rate: float = 0.01) -> float:
        """Return the largest share of members any attacker can catch at that false-alarm rate."""
        alpha = checks.rate(false_alarm_rate=false_alarm_rate)
        if self.epsilon == math.inf:
            return 1.0
        missed = max(
            0.0,
            1 - self.delta - _exp(self.epsilon) * alpha,
            math.exp(-self.epsilon) * (1 - self.delta - alpha),
        )
        return 1 - missed

    def sentence(self, caught: float | None = None) -> str:
        """Return the promise in one sentence for a person who does not know what ε is.

        `caught` is the detection rate at 1 % false alarms where more is known than ε and δ: that of the run's
        whole curve, from `dpfed.accounting.tradeoff`.
        """
        caught = min(self.detection_rate(0.01), 1.0 if caught is None else checks.rate(caught=caught))
        did = "took part" if self.adjacency == ADD_REMOVE else "was swapped for another"
        what = f"one {self.unit} {did}"
        if caught > 0.999:
            return f"This promises next to nothing: an attacker may be all but certain whether {what}."
        how = "hardly better than by guessing" if caught < 0.05 else "only so well"
        return (
            f"Whoever sees everything released and knows all other data can tell whether {what} {how}: "
            f"at 1 % false alarms an attacker catches at most {_percent(caught)} %."
        )

    def is_met_by(self, other: Guarantee) -> bool:
        """Return whether `other` promises at least as much as this one."""
        self._require_comparable(other)
        return other.epsilon <= self.epsilon and other.delta <= self.delta

    def __le__(self, other: Guarantee) -> bool:
        return other.is_met_by(self)

    def __ge__(self, other: Guarantee) -> bool:
        return self.is_met_by(other)

    def __lt__(self, other: Guarantee) -> bool:
        return self <= other and self != other

    def __gt__(self, other: Guarantee) -> bool:
        return other < self

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.6g}, δ = {self.delta:.6g} per {self.unit} ({self.adjacency})"

    def _repr_html_(self) -> str:
        return (
            f"<p><b>ε = {self.epsilon:.4g}</b>, δ = {self.delta:.3g} per {html.escape(self.unit)} "
            f"({html.escape(self.adjacency)})<br>{html.escape(self.sentence())}</p>"
        )

    def _require_comparable(self, other: Guarantee) -> None:
        if not isinstance(other, Guarantee) or (self.unit, self.adjacency) != (other.unit, other.adjacency):
            message = f"only promises of one unit and adjacency compare: {self} is not of a kind with {other}"
            raise InvalidArgument("other", message)


class Held(Protocol):
    """A run's hold on an account: what may be committed, one event before each draw of noise."""

    @property
    def run(self) -> str:
        """The name of the run."""

    def commit(self, event: Event, count: int = 1) -> None:
        """Charge the event; durable when it returns, and only then may its noise be drawn."""

    def extend(self, event: Event, count: int) -> None:
        """Reserve more of the event for the same run."""

    def left(self, event: Event) -> int:
        """Return how often the event may still be committed."""

    def release(self) -> None:
        """Return what was never committed."""


class Account(Protocol):
    """A budget of data and unit that outlives the run: what a manager or an accountant is charged to.

    `dpfed.ledger` keeps such accounts; anything with these verbs will do.
    """

    @property
    def name(self) -> str:
        """The account's name."""

    @property
    def unit(self) -> str:
        """The unit that the account protects."""

    @property
    def adjacency(self) -> str:
        """The neighbouring relation of its promise."""

    def reserve(self, events: Mapping[Event, int], *, run: str, fixed_plan: bool = True) -> Held:
        """Reserve the events for the run, or resume the run if it was reserved before."""

    def record(self, event: Event, count: int = 1, *, run: str, reason: str) -> None:
        """Charge what has happened already, marked after the fact."""

    def affordable(self, event: Event) -> int:
        """Return how many more such events the account would admit now."""


def _percent(share: float) -> str:
    """Return the share in percent, rounded up; 1e-9 forgives the arithmetic."""
    return f"{math.ceil(1000 * share - 1e-9) / 10:.1f}"


def _growth(epsilon: float, size: int) -> float:
    """Return 1 + e^ε + e^2ε + … up to `size` terms, the factor of δ in a group."""
    if size * Fraction(epsilon) > 700:
        return math.inf
    return math.expm1(size * epsilon) / math.expm1(epsilon) if epsilon > 0 else round_up(Fraction(size))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
