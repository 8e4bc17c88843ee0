"""How long an update may be before it is refused as nonsense: public constants of the plan, and no clip norm.

>>> from dpfed.plan.plan import LocalPlan, Plan
>>> plan = Plan("study", rounds=2, local={"a": LocalPlan(size=9, batch_size=3, steps=1, clip_norm=2.0)})
>>> find_largest_norm(plan, size=62), find_largest_mean(plan)
(2000000.0, None)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfed.plan.plan import Plan

CLIPPED_TIMES = 1e6  # an update that many clip norms long is nonsense
UNCLIPPED_MEAN = 1e3  # as is one whose numbers have that root mean square, where nothing is clipped
MOST_NOISE = 50.0  # scales that noise may be from zero: more than any draw can (see `mechanisms.additive`)
MOST_NORM = 1e30  # of an update: a million of them add up to what float32 still holds


def find_largest_norm(plan: Plan, size: int) -> float:
    """Return the norm above which an update of a model of that size is refused.

    It is declared, or a public multiple of what clip norm and steps allow; where nothing is clipped, that of
    numbers which no ordinary model has. It takes the place of no clip norm. In style `local` noise comes on top of it.
    """
    mean = find_largest_mean(plan)
    if mean is not None:
        return min(mean * math.sqrt(size), MOST_NORM)
    longest = plan.max_update_norm
    if longest is None:
        longest = CLIPPED_TIMES * max(1.0, _find_clip(plan)) * _find_reach(plan)
    return min(longest + _find_noise(plan) * math.sqrt(size), MOST_NORM)


def find_largest_mean(plan: Plan) -> float | None:
    """Return the root mean square above which an update is refused; None where a norm is known."""
    is_known = plan.max_update_norm is not None or _find_clip(plan) < math.inf
    return None if is_known else UNCLIPPED_MEAN * _find_reach(plan)


def _find_clip(plan: Plan) -> float:
    return plan.client.clip_norm if plan.client else max(part.clip_norm for part in plan.kinds)


def _find_noise(plan: Plan) -> float:
    """Return the most that noise adds to a number of an update before the server sees it, in style `local`."""
    if plan.client is None or not plan.noises_updates:
        return 0.0
    most = max(plan.noise_schedule or (1.0,))
    return MOST_NOISE * (plan.client.noise_multiplier or 0.0) * most * plan.client.clip_norm


def _find_reach(plan: Plan) -> float:
    """Return how far steps of length 1 can lead, at least 1."""
    return max(max(1.0, part.learning_rate * part.steps) for part in plan.kinds)
