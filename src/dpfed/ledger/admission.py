"""Whether a reservation fits an account, and what would fit if it does not.

>>> from dpfed.events import Gaussian
>>> from dpfed.ledger.rules import AccountState, Terms
>>> terms = Terms("icu", epsilon=8.0, delta=1e-5, orders=(4.4,))
>>> judge(terms, AccountState.new(terms), {Gaussian(4.0): 10}, fixed_plan=True).is_admitted
True
>>> print(judge(terms, AccountState.new(terms), {Gaussian(4.0): 100}, fixed_plan=True).refusal())
reserving 100 × Gaussian(noise_multiplier=4.0) would take icu to ε = 16.4426 of 8; 8 remains: 44 of 100 would fit, or \
noise multiplier 6.005, or ask the owner for a top-up
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dpfed.accounting.atoms import as_event
from dpfed.accounting.queries import epsilon as exact_epsilon
from dpfed.errors import UnsupportedEvent
from dpfed.events import Event
from dpfed.ledger import amounts
from dpfed.ledger.amounts import Amount, Amounts
from dpfed.ledger.inputs import MOST_EVENTS
from dpfed.ledger.rules import AccountState, Terms
from dpfed.rounding import decimal_down, decimal_up

MOST_NOISE_FACTOR = 2.0**20


@dataclass(frozen=True)
class Verdict:
    """The decision of an account on a plan; ``plan`` is its exact ε when that alone admits it."""

    terms: Terms
    state: AccountState
    events: Mapping[Event, int]
    is_admitted: bool
    plan: float | None = None
    fixed_plan: bool = True

    def shortfall(self) -> str:
        """Return by how much the plan is too large, as one clause."""
        cap = f"{self.state.cap:g}"
        after = _epsilon(self.terms, amounts.plus(self.state.total, 1, _cost(self.terms, self.events)))
        remains = max(0.0, self.state.cap - _epsilon(self.terms, self.state.total))
        left = f"{decimal_down(remains)} remains" if remains else "nothing remains"
        name, plan = self.terms.name, _describe(self.events)
        return f"reserving {plan} would take {name} to ε = {decimal_up(after)} of {cap}; {left}"

    def refusal(self) -> str:
        """Return the shortfall, and the nearest plans that would fit."""
        nearest = [offer for offer in (self._offer_fewer(), self._offer_more_noise()) if offer]
        offers = ", or ".join(nearest) if nearest else "no part of this plan fits"
        return f"{self.shortfall()}: {offers}, or ask the owner for a top-up"

    def _fits(self, events: Mapping[Event, int]) -> bool:
        return judge(self.terms, self.state, events, fixed_plan=self.fixed_plan).is_admitted

    def _offer_fewer(self) -> str:
        """Return how many rounds of the plan would fit; a round is the smallest whole part of it."""
        rounds = math.gcd(*self.events.values())
        one = {event: count // rounds for event, count in self.events.items()}
        most = _find_most(lambda count: self._fits(_multiply(one, count)), rounds)
        return f"{most} of {rounds} would fit" if most else ""

    def _offer_more_noise(self) -> str:
        """Return the noise multiplier with which the whole plan would fit, to three digits."""
        noise = {value for event in self.events for value in _find_noise(event)}
        if len(noise) != 1:
            return ""
        (least,) = noise
        factor = _find_smallest(lambda factor: self._fits(_scale_noise(self.events, factor * least)))
        return "" if factor is None else f"noise multiplier {_round_noise(self, factor * least)}"


def judge(terms: Terms, state: AccountState, events: Mapping[Event, int], *, fixed_plan: bool) -> Verdict:
    """Decide on a plan: by the filter, or on a fresh account by the exact ε of a fixed plan.

    Privacy: the filter's theorem (Feldman and Zrnic 2021) covers any adaptive choice of plans. The exact ε is
    that of the whole plan, fixed before its first release; within it any order and any early stop only
    withhold or permute independent draws from the same dominating pairs.
    """
    verdict = Verdict(terms, state, events, is_admitted=True, fixed_plan=fixed_plan)
    total = amounts.plus(state.total, 1, _cost(terms, events))
    if state.plan is None and not state.closed and amounts.fits(total, terms.caps(state.cap)):
        return verdict
    if fixed_plan and state.is_fresh and not state.closed:
        plan = plan_or_infinity(as_event(events), terms)
        if plan <= state.cap:
            return replace(verdict, plan=plan)
    return replace(verdict, is_admitted=False)


def affordable(terms: Terms, state: AccountState, event: Event) -> int:
    """Return how many more such events the filter admits; 0 for an account that takes no more."""
    if state.plan is not None or state.closed:
        return 0
    rooms = [limit - total for limit, total in zip(terms.caps(state.cap), state.total, strict=True)]
    return max(_count_fitting(room, each) for room, each in zip(rooms, terms.cost(event), strict=True))


def _count_fitting(room: Amount, each: Amount) -> int:
    if room < 0 or each == math.inf:
        return 0
    return MOST_EVENTS if each == 0 else min(MOST_EVENTS, int(room // each))


@lru_cache(maxsize=1024)
def plan_epsilon(plan: Event, delta: float, adjacency: str) -> float:
    """Return the exact ε of a plan at δ, an upper bound."""
    return exact_epsilon(plan, delta, adjacency=adjacency)


def plan_or_infinity(plan: Event, terms: Terms) -> float:
    """Return the exact ε of a plan; ∞ where the accountant has no answer, because that admits nothing."""
    try:
        return plan_epsilon(plan, terms.delta, terms.adjacency)
    except (UnsupportedEvent, ArithmeticError, ValueError):
        return math.inf


def _cost(terms: Terms, events: Mapping[Event, int]) -> Amounts:
    total: Amounts = (0,) * len(terms.orders)
    for event, count in events.items():
        total = amounts.plus(total, count, terms.cost(event))
    return total


def _epsilon(terms: Terms, spent: Amounts) -> float:
    return amounts.epsilon_of(spent, terms.delta, terms.orders)


def _multiply(events: Mapping[Event, int], count: int) -> dict[Event, int]:
    return {event: count * each for event, each in events.items()}


def _describe(events: Mapping[Event, int]) -> str:
    return " and ".join(f"{count} × {event}" if count > 1 else str(event) for event, count in events.items())


def _find_noise(event: Event) -> set[float]:
    inner = [getattr(event, "event", None), *getattr(event, "events", ())]
    found = {noise for part in inner if isinstance(part, Event) for noise in _find_noise(part)}
    return found | ({event.noise_multiplier} if hasattr(event, "noise_multiplier") else set())


def _scale_noise(events: Mapping[Event, int], noise: float) -> dict[Event, int]:
    return {_replace_noise(event, noise): count for event, count in events.items()}


def _replace_noise(event: Event, noise: float) -> Event:
    changes: dict[str, Any] = {}
    if hasattr(event, "noise_multiplier"):
        changes["noise_multiplier"] = noise
    if hasattr(event, "event"):
        changes["event"] = _replace_noise(event.event, noise)
    if hasattr(event, "events"):
        changes["events"] = tuple(_replace_noise(part, noise) for part in event.events)
    return replace(event, **changes) if changes else event


def _find_most(fits: Callable[[int], bool], below: int) -> int:
    """Return the largest count under `below` that fits, where `below` does not; 0 if none does."""
    low = 0
    while below - low > 1:
        middle = (low + below) // 2
        low, below = (middle, below) if fits(middle) else (low, middle)
    return low


def _find_smallest(is_enough: Callable[[float], bool]) -> float | None:
    """Return the smallest factor above 1, to one part in a thousand, that is enough."""
    low, high = 1.0, 2.0
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MOST_NOISE_FACTOR:
            return None
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _round_noise(verdict: Verdict, noise: float) -> str:
    shown = decimal_up(noise, 4)
    return shown if verdict._fits(_scale_noise(verdict.events, float(shown))) else decimal_up(noise)
