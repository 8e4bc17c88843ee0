"""ε of shuffled reports: ours against the plain sum over every count, without buckets, and how it grows with n.

    python benchmarks/shuffle.py [--json] [--quick]

The plain method is a loop over all n counts of clones, two binomial tails of scipy for each, and a bisection over ε:
what a reader of the paper would write. (With a window of the likely counts alone the same loop took a fifteenth of
that, fourteen times as long as ours.) The goals: 50 times faster at n = 10⁴, and below 2 s at n = 10⁶. Ours is the
least processor time of three.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from time import process_time

from dpfed import events as ev
from dpfed.accounting import epsilon
from dpfed.accounting.exact import pairs

EPSILON, DELTA, USERS, MANY = 1.0, 1e-6, 10_000, 1_000_000
TIMES_FASTER, SECONDS = 50.0, 2.0
BISECTIONS = 20


def ours(users: int = USERS) -> float:
    """ε of any randomizer at ε₀ = 1, from nothing: no pair is kept from before."""
    pairs.pairs.cache_clear()
    event = ev.Shuffled(ev.PureDP(EPSILON, adjacency="replace_one"), users)
    return epsilon(event, DELTA, adjacency="replace_one")


def k_ary(users: int = USERS) -> float:
    """ε of randomized response among ten values."""
    pairs.pairs.cache_clear()
    return epsilon(ev.Shuffled(ev.RandomizedResponse(EPSILON, 10), users), DELTA, adjacency="replace_one")


def plain_delta(users: int, at: float) -> float:
    """δ at ε: Σ over every count c of clones of P-tail − e^ε Q-tail, one count after the other."""
    from scipy.stats import binom

    rate, own = math.exp(-EPSILON), 1 / (1 + math.exp(-EPSILON))
    growth = math.exp(at)
    ratio = (growth * own - (1 - own)) / (own - growth * (1 - own))
    total = 0.0
    for count in range(users):
        first = math.floor(ratio * (count + 1) / (1 + ratio)) + 1
        one, other = binom.sf(first - 2, count, 0.5), binom.sf(first - 1, count, 0.5)
        p, q = own * one + (1 - own) * other, own * other + (1 - own) * one
        total += binom.pmf(count, users - 1, rate) * max(0.0, p - growth * q)
    return total


def plain(users: int = USERS, bisections: int = BISECTIONS) -> float:
    """ε by bisection of the plain sum."""
    low, high = 0.0, EPSILON
    for _ in range(bisections):
        middle = (low + high) / 2
        low, high = (middle, high) if plain_delta(users, middle) > DELTA else (low, middle)
    return high


def timed(work: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Return the result and the least processor time."""
    best, found = math.inf, math.nan
    for _ in range(repeats):
        start = process_time()
        found = work()
        best = min(best, process_time() - start)
    return found, best


def measure(*, quick: bool = False) -> dict[str, dict[str, float]]:
    """Return ε and seconds of each contestant."""
    repeats = 1 if quick else 3
    bisections = 2 if quick else BISECTIONS
    found = {
        "ours, n = 10⁴": timed(ours, repeats),
        "plain, n = 10⁴": timed(lambda: plain(bisections=bisections), 1),
        "ours, ten values, n = 10⁴": timed(k_ary, repeats),
        "ours, n = 10⁶": timed(lambda: ours(MANY), repeats),
        "ours, ten values, n = 10⁶": timed(lambda: k_ary(MANY), repeats),
    }
    return {name: {"epsilon": value, "seconds": seconds} for name, (value, seconds) in found.items()}


def main() -> None:
    """Print the figures and whether the goals are met."""
    rows = measure(quick="--quick" in sys.argv)
    if "--json" in sys.argv:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for name, row in rows.items():
        print(f"{name:28} ε = {row['epsilon']:.6f}  {row['seconds']:8.3f} s")
    faster = rows["plain, n = 10⁴"]["seconds"] / rows["ours, n = 10⁴"]["seconds"]
    print(f"{faster:.0f} times the plain method at n = 10⁴ (goal {TIMES_FASTER:g})")
    print(f"{rows['ours, n = 10⁶']['seconds']:.2f} s at n = 10⁶ (goal {SECONDS:g})")


if __name__ == "__main__":
    main()
