"""Steps that are paid for before they are taken, a block at a time: how a loop charges a durable account.

A charge that survives a crash costs a write to disk, which for a small model is as dear as the step. So a block of
steps is committed at once and then taken one by one. Never are more steps taken than committed; a run that crashes or
is closed inside a block has paid for steps that it never took: too much, never too little.

`PaidSteps` are those of a fixed plan, asked for before each step. `ReportedSteps` are those of a loop that says "I took
a step" after its noise was drawn; a step that was not paid for by then is still written down, marked after the fact.

>>> from dpfed.events import Gaussian
>>> steps = PaidSteps(Gaussian(2.0), left=3)
>>> steps.take()
2
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import NoReturn

from dpfed import checks
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.events import Event
from dpfed.guarantee import Account, Held

WARN_AT = (50, 80, 95)  # percent of a budget


def find_mark(spent: float, total: float) -> int | None:
    """Return the last of 50, 80 and 95 percent of a budget that is reached; None before the first.

    >>> find_mark(7, 10), find_mark(8, 10), find_mark(1, 10)
    (50, 80, None)
    """
    return max((mark for mark in WARN_AT if 100 * spent >= mark * total), default=None)


class _OneProcessCount:
    """A count of paid steps that belongs to the process that made it.

    Privacy: a copy, or a forked child, could take a paid step a second time. So it refuses to be copied, pickled or
    used after a fork.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._process = os.getpid()
        self._lock = threading.Lock()

    def _require_own_process(self) -> None:
        """Refuse to take a step in a forked process."""
        if os.getpid() != self._process:
            raise BudgetExceeded(
                "a step was taken in a forked process, but what is paid for is counted in the process that made "
                f"{self._owner}: make {self._owner} in the process that adds the noise"
            )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            f"{self._owner} was to be copied or pickled, but its copy could take what is paid for a second time: "
            "share the one object, or give each part a run of its own"
        )


class PaidSteps(_OneProcessCount):
    """The `left` steps of a plan that may still be taken, each charged to what is `held`, if anything, before.

    With `is_whole` all steps are one event, committed before the first. `owner` is what the count belongs to and
    `refusal` what is said when all steps are taken.

    Privacy: `take` returns only when the event of this step is committed.
    """

    def __init__(
        self,
        event: Event,
        left: int,
        *,
        held: Held | None = None,
        ahead: int = 1,
        is_whole: bool = False,
        owner: str = "the run",
        refusal: str = "all steps of the plan were taken: plan a new run",
    ) -> None:
        super().__init__(owner)
        self._event = event
        self._held = held
        self._ahead = left if is_whole else checks.count(ahead=ahead)
        self._is_whole = is_whole
        self._unpaid = checks.whole(left=left)
        self._paid = 0
        self._refusal = refusal

    @property
    def left(self) -> int:
        """How many steps may still be taken, paid for or not."""
        return self._unpaid + self._paid

    def take(self) -> int:
        """Use up one paid step, after paying for the next block if there is none; return how many are left."""
        self._require_own_process()
        with self._lock:
            if not self._paid:
                self._pay()
            self._paid -= 1
            return self.left

    def release(self) -> None:
        """Return to the account what was never committed."""
        if self._held is not None and os.getpid() == self._process:
            self._held.release()

    def _pay(self) -> None:
        block = min(self._ahead, self._unpaid)
        if not block:
            raise BudgetExceeded(self._refusal)
        if self._held is not None:
            self._held.commit(self._event, 1 if self._is_whole else block)
        self._unpaid -= block
        self._paid = block


class ReportedSteps(_OneProcessCount):
    """Steps of one kind that are reported after they were taken, from blocks committed to an account ahead of time."""

    def __init__(self, account: Account, run: str, event: Event, block: int, adjacency: str) -> None:
        super().__init__("the accountant")
        require_fitting(account, adjacency)
        self._account = account
        self._event = event
        self._block = checks.count(block=block)
        self._chunk = 1
        self._held = account.reserve({event: self._next_block() or 1}, run=run, fixed_plan=False)
        self.paid = self._held.left(event)
        if self.paid:
            self._held.commit(event, self.paid)
        else:
            self._pay()

    @property
    def is_exhausted(self) -> bool:
        """Whether fewer steps are paid for than were last taken at once: the account has no room for more."""
        return self.paid < self._chunk

    def take(self, steps: int) -> None:
        """Use up paid steps and pay for the next block; record steps that were not paid for, and refuse them."""
        self._record_if_forked(steps)
        with self._lock:
            unpaid = max(0, steps - self.paid)
            self._chunk, self.paid = steps, max(0, self.paid - steps)
            if unpaid:
                self.record(self._event, unpaid, "steps taken before they were paid for")
            if self.is_exhausted:
                self._pay()
            is_too_much = unpaid > 0 and self.is_exhausted
        if is_too_much:
            raise BudgetExceeded(
                f"{unpaid} steps were taken that {self._account.name} has no room for; they are recorded after the "
                "fact: stop when is_budget_exceeded says so, or ask for a top-up"
            )

    def record(self, event: Event, count: int, reason: str) -> None:
        """Charge what has happened already."""
        self._account.record(event, count, run=self._held.run, reason=reason)

    def _record_if_forked(self, steps: int) -> None:
        try:
            self._require_own_process()
        except BudgetExceeded as refusal:
            self.record(self._event, steps, "steps taken in a forked process, which had paid for none")
            raise BudgetExceeded(f"{refusal}; what was taken is recorded after the fact") from None

    def _next_block(self) -> int:
        return min(max(self._block, self._chunk), self._account.affordable(self._event))

    def _pay(self) -> None:
        steps = self._next_block()
        if steps:
            self._held.extend(self._event, steps)
            self._held.commit(self._event, steps)
            self.paid += steps


def reserve(
    charges: Mapping[Event, int], account: Account | None, run: str | None, adjacency: str, unit: str | None = None
) -> Held | None:
    """Reserve the charges of a fixed plan on the account for the run; return None without an account.

    After a restart the same run gets what it has not committed yet.
    """
    if (account is None) != (run is None):
        raise InvalidArgument(
            "run", "account and run go together: give the account that is charged and the name of the run, or neither"
        )
    if account is None or run is None:
        return None
    require_fitting(account, adjacency, unit)
    return account.reserve(charges, run=run)


def require_fitting(account: Account, adjacency: str, unit: str | None = None) -> None:
    """Refuse an account for another unit or adjacency than the steps have."""
    if unit is not None and account.unit != unit:
        raise InvalidArgument(
            "account",
            f"these steps protect one {unit} and the account {account.name} one {account.unit}: "
            "promises for different units are never added up; charge an account of the same unit",
        )
    if account.adjacency != adjacency:
        raise AdjacencyMismatch(
            f"these steps are counted under {adjacency} and the account {account.name} under {account.adjacency}, "
            "whose costs differ: charge an account of the same adjacency"
        )
