"""ε of shuffled reports: ours against the plain sum over every count, without buckets, and how it grows with n.

    python benchmarks/shuffle.py [--json] [--quick]

The plain method is a loop over all n counts of clones, two binomial tails of scipy for each, and a bisection over ε:
what a reader of the paper would write. (With a window of the likely counts alone the same loop took a fifteenth of
that, fourteen times as long as ours.) The goals: 50 times faster at n = 10⁴, and below 2 s at n = 10⁶. CPU time, from
nothing: no pair of distributions is kept from before.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import bench
from bench import Contestant, Row, Task

EPSILON, DELTA, USERS, MANY = 1.0, 1e-6, 10_000, 1_000_000
TIMES_FASTER, SECONDS = 50.0, 2.0
BISECTIONS = 20
OURS, PLAIN = "dpfed", "the plain sum"
ANY, TEN = "any randomizer, n = 10⁴", "ten values, n = 10⁴"
ANY_MANY, TEN_MANY = "any randomizer, n = 10⁶", "ten values, n = 10⁶"
TASKS = (ANY, TEN, ANY_MANY, TEN_MANY)


def load_dpfed() -> dict[str, Task]:
    """ε by `dpfed.accounting`."""
    from dpfed import events as ev
    from dpfed.accounting import epsilon
    from dpfed.accounting.exact import pairs

    def make(report: Callable[[float], ev.Event], users: int) -> Task:
        def find(nudge: float) -> float:
            pairs.pairs.cache_clear()
            return epsilon(ev.Shuffled(report(EPSILON + nudge), users), DELTA, adjacency="replace_one")

        return find

    def any_report(at: float) -> ev.Event:
        return ev.PureDP(at, adjacency="replace_one")

    def ten_values(at: float) -> ev.Event:
        return ev.RandomizedResponse(at, 10)

    return {
        ANY: make(any_report, USERS),
        TEN: make(ten_values, USERS),
        ANY_MANY: make(any_report, MANY),
        TEN_MANY: make(ten_values, MANY),
    }


def load_plain() -> dict[str, Task]:
    """ε by bisection of the plain sum."""
    from scipy.stats import binom

    def delta(local: float, at: float) -> float:
        """δ at ε: Σ over every count c of clones of P-tail − e^ε Q-tail, one count after the other."""
        rate, own = math.exp(-local), 1 / (1 + math.exp(-local))
        growth = math.exp(at)
        ratio = (growth * own - (1 - own)) / (own - growth * (1 - own))
        total = 0.0
        for count in range(USERS):
            first = math.floor(ratio * (count + 1) / (1 + ratio)) + 1
            one, other = binom.sf(first - 2, count, 0.5), binom.sf(first - 1, count, 0.5)
            p, q = own * one + (1 - own) * other, own * other + (1 - own) * one
            total += binom.pmf(count, USERS - 1, rate) * max(0.0, p - growth * q)
        return total

    def find(nudge: float) -> float:
        low, high = 0.0, EPSILON
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if delta(EPSILON + nudge, middle) > DELTA else (low, middle)
        return high

    return {ANY: find}


CONTESTANTS = (
    Contestant(OURS, load_dpfed, clock="cpu"),
    Contestant(PLAIN, load_plain, clock="cpu", slow=frozenset({ANY})),
)


def rows(quick: bool = False) -> list[Row]:
    """The plain sum against ours, and our seconds among more users."""
    found = bench.measure(Path(__file__), CONTESTANTS, TASKS, quick=quick, repeats=3)
    ours = {task: found.get((OURS, task)) for task in TASKS}
    plain = found.get((PLAIN, ANY))
    named = {task: f"{task}: seconds" for task in TASKS}
    return [
        bench.faster(f"{named[ANY]}, against {PLAIN}", ours[ANY], plain, TIMES_FASTER),
        bench.smaller(f"{ANY}: ε, against {PLAIN}", ours[ANY], plain, 1 - 1e-5),
        *(bench.within(named[task], ours[task], SECONDS) for task in TASKS[1:]),
    ]


if __name__ == "__main__":
    sys.exit(bench.run(__file__, CONTESTANTS, rows))
