"""How many updates a rule needs so that so many faulty ones cannot move it at will: checked on what came, each round.

Below its number a rule has no bound at all: Krum of three updates with one faulty may return the faulty one. So it is
refused, and never done with fewer neighbours than its proof has.

>>> require_enough("krum", arrived=6, max_faulty=2)
Traceback (most recent call last):
    ...
dpfed.errors.BreakdownError: krum needs 7 updates to bear 2 faulty ones, and 6 came: below that faulty updates can be \
the result; wait for more, lower max_faulty to 1, or choose a rule that needs fewer
>>> least_updates("bulyan", max_faulty=2)
11
"""

from __future__ import annotations

from dpfed import checks
from dpfed.errors import BreakdownError

MAJORITY, KRUM, BULYAN = (2, 1), (2, 3), (4, 3)
# n ≥ a·f + b. Krum: Blanchard et al. 2017. Bulyan: El Mhamdi et al. 2018. No rule bears half of the updates.
NEEDS = {
    "krum": KRUM,
    "multi_krum": KRUM,
    "bulyan": BULYAN,
    **dict.fromkeys(
        (
            "norm_bounded_mean",
            "coordinate_median",
            "trimmed_mean",
            "mean_around_median",
            "geometric_median",
            "minimum_diameter",
            "centered_clipping",
            "nnm",
        ),
        MAJORITY,
    ),
}


def least_updates(rule: str, max_faulty: int) -> int:
    """Return the fewest updates with which the rule bears so many faulty ones."""
    times, more = NEEDS[rule]
    return times * checks.whole(max_faulty=max_faulty) + more


def most_faulty(rule: str, arrived: int) -> int:
    """Return how many faulty ones among so many updates the rule bears; −1 if it needs more even for none."""
    times, more = NEEDS[rule]
    return (arrived - more) // times if arrived >= more else -1


def require_enough(rule: str, arrived: int, max_faulty: int, needed: int = 0) -> None:
    """Refuse to go on with fewer updates than the rule needs, or than are `needed` for what else it is to do."""
    least = max(least_updates(rule, max_faulty), needed)
    if arrived >= least:
        return
    message = f"{rule} needs {least} updates to bear {max_faulty} faulty ones, and {arrived} came"
    fewer = most_faulty(rule, arrived)
    lower = f"lower max_faulty to {fewer}, " if 0 <= fewer < max_faulty else ""
    remedy = f"wait for more, {lower}or choose a rule that needs fewer"
    raise BreakdownError(f"{message}: below that faulty updates can be the result; {remedy}", arrived, least)
