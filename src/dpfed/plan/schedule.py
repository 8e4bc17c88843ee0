"""Noise by round: a public factor for each round, and which rounds are reserved where nobody knows who takes part when.

Round t has noise_multiplier × f_t, wherever noise is added. The factors are constants of the plan, fixed before its
first release; nothing of the data decides them.

A client that takes part in at most m + s rounds, at most s of them again after a crash, is reserved the m rounds of
least noise, and s times the least noise of all. That costs at least as much as whatever happens: let r_1 ≤ r_2 ≤ … be
the factors of all rounds in order. Among the i least of a client's history at least i − s are different rounds, so the
largest of them is at least r_(i−s), and never below r_1; the i-th least reserved is r_1 for i ≤ s + 1 and r_(i−s)
beyond. Whoever has a sum with less noise can add the rest, so a round with more noise is post-processing of one with
less (same data, clip and sample; Gaussian and Laplace alike), and so is a whole history of the reserved one.

A round is paid with its own event where that is reserved and left, else with the reserved event of next less noise:
no payment is below its round, whatever happens. Nor does that choice leave a history of this kind unpaid. A round of
factor f is unpaid if every event up to f has gone to others. Let g ≥ f be the largest factor of a round that took an
event up to f; all events up to g were taken when it did so, and so on until g no longer grows. Then all events up to g
went to rounds up to g, which with the unpaid one are more than the events, while the history has no more of them.

>>> reserve_rounds((2.0, 0.5, 1.0), rounds=2, spare=1)
{0.5: 2, 1.0: 1}
>>> make_geometric(1.0, 0.25, rounds=3)
(1.0, 0.5, 0.25)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dpfed import checks
from dpfed.errors import InvalidArgument

Factors = Mapping[float, int]  # how many rounds there are of each factor


def make_geometric(first: float, last: float, rounds: int) -> tuple[float, ...]:
    """Return factors from the first round's to the last's, each by the same ratio from the one before."""
    start, end = checks.positive(first=first), checks.positive(last=last)
    between = max(checks.count(rounds=rounds) - 1, 1)
    inner = [start * (end / start) ** (place / between) for place in range(1, rounds - 1)]
    return (start, *inner, end)[:rounds]


def read_factors(given: object) -> tuple[float, ...]:
    """Return the factors as a tuple of positive numbers; refuse anything else."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        message = f"noise_schedule must be a factor for each round, got {given!r:.60}"
        raise InvalidArgument("noise_schedule", f"{message}: give a list such as [2.0, 1.0, 0.5]")
    return tuple(checks.positive(noise_schedule=factor) for factor in given)


def find_factor(factors: Sequence[float] | None, number: int) -> float:
    """Return the factor of that round, counted from 1; refuse a round that the schedule has not."""
    if factors is None:
        return 1.0
    if not 1 <= number <= len(factors):
        raise InvalidArgument("number", f"number must be that of a round, from 1 to {len(factors)}, got {number}")
    return factors[number - 1]


def reserve_rounds(factors: Sequence[float] | None, rounds: int, spare: int) -> dict[float, int]:
    """Return how many rounds of each factor to reserve: those of least noise, and the least noise for each spare one.

    Without factors all rounds are alike.
    """
    if factors is None:
        return {1.0: rounds + spare}
    ordered = sorted(factors)
    return dict(sorted(Counter([*ordered[:rounds], *ordered[:1] * spare]).items()))


def list_covering(reserved: Iterable[float], factor: float) -> list[float]:
    """Return the reserved factors that cover a round of this one: its own, then less and less noise."""
    return sorted((each for each in reserved if each <= factor), reverse=True)


def take_costliest(factors: Factors, times: int) -> dict[float, int]:
    """Return so many of the rounds, those of least noise first."""
    taken: dict[float, int] = {}
    for factor in sorted(factors):
        if (part := min(factors[factor], times - sum(taken.values()))) > 0:
            taken[factor] = part
    return taken


def multiply(rounds: int | Factors, times: int = 1) -> dict[float, int]:
    """Return so many times the rounds, by factor; a number of rounds is of rounds that are alike."""
    counts = rounds if isinstance(rounds, Mapping) else {1.0: checks.count(rounds=rounds)}
    return {factor: count * times for factor, count in counts.items()}
