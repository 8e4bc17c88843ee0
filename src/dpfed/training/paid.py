"""Steps of a plan that are charged a block at a time, before the first noise of the block is drawn.

A charge that survives a crash costs a write to disk, which for a small model is as dear as the step. So a block of
steps is committed at once and then taken one by one. Never are more steps taken than committed; a run that crashes or
is closed inside a block has paid for steps that it never took, at most ``ahead − 1`` of them.

>>> from dpfed.events import Gaussian
>>> steps = PaidSteps(Gaussian(2.0), left=3)
>>> steps.take()
>>> steps.left
2
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from dpfed import checks
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.events import Event
from dpfed.guarantee import Account, Held
from dpfed.plan import LocalPlan

# A commit takes about a third of a millisecond. A hundred of them are not seen in any run, nor is one in 32 steps.
MOST_AHEAD = 32
BLOCKS = 100


class PaidSteps:
    """The `left` steps that may still be taken, each charged to what is `held`, if anything, before it is taken.

    With `is_whole` all steps are one event, committed before the first.

    Privacy: `take` returns only when the event of this step is committed. What is paid for is counted in one
    process, so that no step is taken twice: it refuses to be copied, pickled or used after a fork.
    """

    def __init__(
        self, event: Event, left: int, *, held: Held | None = None, ahead: int = 1, is_whole: bool = False
    ) -> None:
        self._event = event
        self._held = held
        self._ahead = left if is_whole else checks.count(ahead=ahead)
        self._is_whole = is_whole
        self._unpaid = checks.count(left=left)
        self._paid = 0
        self._process = os.getpid()
        self._lock = threading.Lock()

    @property
    def left(self) -> int:
        """How many steps may still be taken, paid for or not."""
        return self._unpaid + self._paid

    def take(self) -> None:
        """Nothing; uses up one paid step, and pays for the next block before if there is none."""
        if os.getpid() != self._process:
            raise BudgetExceeded(
                "a step was asked for in a forked process, but what is paid for is counted in the process that made "
                "this run: call make_private in the process that trains"
            )
        with self._lock:
            if not self._paid:
                self._pay()
            self._paid -= 1

    def release(self) -> None:
        """Nothing; returns to the account what was never committed."""
        if self._held is not None and os.getpid() == self._process:
            self._held.release()

    def _pay(self) -> None:
        block = min(self._ahead, self._unpaid)
        if not block:
            raise BudgetExceeded("all steps of the plan were taken: plan a new run")
        if self._held is not None:
            self._held.commit(self._event, 1 if self._is_whole else block)
        self._unpaid -= block
        self._paid = block

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError("a run was to be copied or pickled, but its copy could take the steps that are paid for too")


def paid_steps(plan: LocalPlan, account: Account | None, run: str | None, ahead: int | None = None) -> PaidSteps:
    """The plan's steps, reserved on the account if there is one; after a restart those that were never charged.

    Without `ahead` a block is a hundredth of the plan, and at most 32 steps. A tree is one block: its noise ends with
    the program, so a run that began it cannot go on, and is all paid for.
    """
    ahead = min(MOST_AHEAD, max(1, plan.steps // BLOCKS)) if ahead is None else checks.count(ahead=ahead)
    if (account is None) != (run is None):
        raise InvalidArgument("run", "account and run go together: the account that is charged, and the run's name")
    event, times = plan.charge
    is_whole = plan.tree is not None
    if account is None or run is None:
        return PaidSteps(event, plan.steps, ahead=ahead, is_whole=is_whole)
    _require_fitting(account, plan)
    held = account.reserve({event: times}, run=run)
    left = held.left(event)
    if not left:
        raise BudgetExceeded(f"all {plan.steps} steps of run {run!r} are charged: plan a new run, or load its model")
    return PaidSteps(event, plan.steps if is_whole else left, held=held, ahead=ahead, is_whole=is_whole)


def _require_fitting(account: Account, plan: LocalPlan) -> None:
    if account.unit != plan.unit:
        raise InvalidArgument(
            "account", f"clipping each example protects one {plan.unit}, and {account.name} is for one {account.unit}"
        )
    if account.adjacency != plan.adjacency:
        raise AdjacencyMismatch(f"the plan is for {plan.adjacency}, and {account.name} for {account.adjacency}")
