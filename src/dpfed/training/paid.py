"""The steps of a plan, reserved on an account and charged a block at a time before their noise is drawn.

>>> plan = LocalPlan(size=20, batch_size=10, steps=3, clip_norm=1.0, noise_multiplier=4.0)
>>> reserve_steps(plan, account=None, run=None).left
3
"""

from __future__ import annotations

from dpfed import checks
from dpfed.errors import BudgetExceeded
from dpfed.guarantee import Account
from dpfed.plan.plan import LocalPlan
from dpfed.prepaid import PaidSteps, reserve

# A commit takes about a third of a millisecond. A hundred of them are not seen in any run, nor is one in 32 steps.
MOST_AHEAD = 32
BLOCKS = 100


def reserve_steps(plan: LocalPlan, account: Account | None, run: str | None, ahead: int | None = None) -> PaidSteps:
    """Reserve the plan's steps on the account, if there is one; after a restart those that were never charged.

    Without `ahead` a block is a hundredth of the plan, and at most 32 steps. A tree is one block: its noise ends with
    the program, so a run that began it cannot go on, and is all paid for.
    """
    ahead = min(MOST_AHEAD, max(1, plan.steps // BLOCKS)) if ahead is None else checks.count(ahead=ahead)
    event, times = plan.charge
    held = reserve({event: times}, account, run, plan.adjacency, plan.unit)
    left = plan.steps if held is None else held.left(event)
    if not left:
        raise BudgetExceeded(
            f"all {plan.steps} steps of run {run!r} are charged: load its model, or choose a new name for a new run"
        )
    is_whole = plan.tree is not None
    return PaidSteps(event, plan.steps if is_whole else left, held=held, ahead=ahead, is_whole=is_whole)
