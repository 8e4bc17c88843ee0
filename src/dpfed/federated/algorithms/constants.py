"""Constants of a plan that stand in an algorithm's formulas: never a count of who came, which would tell of them.

>>> from dpfed.plan.plan import FixedCohort, LocalPlan, Plan
>>> local = dict.fromkeys("abcd", LocalPlan(size=9, batch_size=3, steps=5, learning_rate=0.1))
>>> plan = Plan("study", 2, local, style="none", weighting="equal", cohort=FixedCohort(2))
>>> share_of_clients(plan, "scaffold"), length_of_steps(plan, "scaffold")
(0.5, 0.5)
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

from dpfed.errors import InvalidArgument
from dpfed.plan.plan import Plan

Frozen = TypeVar("Frozen", bound=Any)


def with_constants(algorithm: Frozen, **constants: Any) -> Frozen:
    """Return a copy of a frozen algorithm in which fields that no user gives have these values."""
    made = copy(algorithm)
    for name, value in constants.items():
        object.__setattr__(made, name, value)
    return made


def share_of_clients(plan: Plan, name: str) -> float:
    """Return the share of all clients that is in a round, by the plan; refuse the algorithm where weights are unequal.

    With unequal weights the mean of what clients keep would not be what the server keeps.
    """
    if plan.weighting != "equal":
        message = f"{name} needs equal weights, else the mean of what clients keep is not what the server keeps"
        raise InvalidArgument("weighting", f"{message}: write weighting: equal")
    return float(plan.cohort.expected(len(plan.local)) / len(plan.local))


def length_of_steps(plan: Plan, name: str) -> float:
    """Return the steps of a client times their learning rate, which must be the same at all clients."""
    found = {(part.steps, part.learning_rate) for part in plan.kinds}
    if len(found) > 1:
        message = f"{name} needs the same steps and learning_rate at all clients, to know a mean gradient by them"
        raise InvalidArgument("local", f"{message}: declare steps, not epochs")
    ((steps, rate),) = found
    return float(steps * rate)
