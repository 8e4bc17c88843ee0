"""The ledger's money: whole numbers of 10⁻¹⁸ nats of Rényi divergence, one for each declared order.

Sums of whole numbers do not depend on their order or grouping, and anyone can add them up again in any
language. A cost is rounded up and a cap down, so what is lost to rounding is lost on the safe side.

>>> from dpfed.events import Gaussian
>>> (amount,) = cost(Gaussian(noise_multiplier=2.0), orders=(8.0,), adjacency="add_remove")
>>> 1.0 <= nats(amount) < 1.000001
True
>>> nats(1_500_000_000_000_000_000)
1.5
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from operator import add, le, sub

from dpfed.accounting.filter import Divergence, divergences, filter_epsilon, order_caps
from dpfed.events import Event
from dpfed.rounding import round_up

ATTO = 10**18
# Beyond this a cost counts as ∞ and a cap ends: sums stay far below the largest float, so ∞ can be added to them.
MOST = 10**220

# A float is only ever ∞: the cost of a release without protection.
Amount = int | float
Amounts = tuple[Amount, ...]


@lru_cache(maxsize=4096)
def cost(event: Event, orders: tuple[float, ...], adjacency: str) -> Amounts:
    """Return what one such event costs at each order, rounded up."""
    return tuple(_round_up(value) for value in divergences(event, orders, adjacency))


@lru_cache(maxsize=4096)
def caps(epsilon: float, delta: float, orders: tuple[float, ...]) -> tuple[int, ...]:
    """Return what may be spent at each order under a promise of (ε, δ), rounded down."""
    return tuple(min(MOST, math.floor(Fraction(cap) * ATTO)) for cap in order_caps(epsilon, delta, orders))


def fits(total: Amounts, limits: Amounts) -> bool:
    """Return whether the total is within its limit at some order; `dpfed.accounting.filter` says why one is enough."""
    if len(total) != len(limits):
        raise _explain_unequal(total, limits)
    return any(map(le, total, limits))


def plus(amounts: Amounts, count: int, each: Amounts) -> Amounts:
    """Add `count` times the cost to the amounts."""
    if len(amounts) != len(each):
        raise _explain_unequal(amounts, each)
    return tuple(map(add, amounts, each if count == 1 else [count * one for one in each]))


def minus(amounts: Amounts, count: int, each: Amounts) -> Amounts:
    """Subtract `count` times the cost from the amounts; what is infinite stays so."""
    if len(amounts) != len(each):
        raise _explain_unequal(amounts, each)
    if count != 1 or math.inf in each:
        each = tuple([0 if one == math.inf else count * one for one in each])
    return tuple(map(sub, amounts, each))


def epsilon_of(spent: Amounts, delta: float, orders: tuple[float, ...]) -> float:
    """Convert amounts at the declared orders to the ε at δ; 0 for none."""
    return filter_epsilon([nats(amount) for amount in spent], delta, orders) if any(spent) else 0.0


def nats(amount: Amount) -> float:
    """Convert an amount to nats as a float, rounded up."""
    return round_up(Fraction(amount) / ATTO) if isinstance(amount, int) else amount


def texts(values: Amounts) -> list[str]:
    """Write the amounts as decimal texts, which every JSON reader keeps exactly; "inf" for ∞."""
    return [str(value) for value in values]


def from_texts(values: list[str]) -> Amounts:
    """Read the amounts that `texts` wrote."""
    return tuple(math.inf if value == "inf" else int(value) for value in values)


def _explain_unequal(amounts: Amounts, others: Amounts) -> ValueError:
    # `zip` would say it too, in several times the time, and every commit asks.
    return ValueError(f"there are {len(amounts)} amounts and {len(others)} to go with them")


def _round_up(value: Divergence) -> Amount:
    if not isinstance(value, Fraction):
        return value
    amount = math.ceil(value * ATTO)
    return amount if amount <= MOST else math.inf
