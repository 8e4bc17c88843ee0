"""Steps that are paid for before they are taken: how a running account charges a durable one.

A loop that says "I took a step" says so after its noise was drawn, when a crash would lose the charge. So
blocks of steps are committed ahead: each step that is reported was paid for earlier, and the next block is
paid as soon as the last one is used up. Steps that nobody paid for are still written down, marked after the
fact. A run that ends inside a block has paid for steps it never took: too much, never too little.

>>> attach(account=None, run=None, event=None, block=100, adjacency="add_remove") is None
True
"""

from __future__ import annotations

import os
import threading
from typing import NoReturn

from dpfed import checks
from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument, PrivacyError
from dpfed.events import Event
from dpfed.guarantee import Account


class PrepaidSteps:
    """Blocks of steps of one kind, committed to an account ahead of time.

    What is paid for is counted in one process, so that a step is taken once: it refuses to be copied, pickled or
    used after a fork.
    """

    def __init__(self, account: Account, run: str, event: Event, block: int, adjacency: str) -> None:
        if account.adjacency != adjacency:
            raise AdjacencyMismatch(
                f"the accountant counts under {adjacency} and the account {account.name} under {account.adjacency}: "
                "give the accountant the account's adjacency"
            )
        self._account = account
        self._event = event
        self._block = checks.count(block=block)
        self._chunk = 1
        self._process = os.getpid()
        self._lock = threading.Lock()
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
        """Use up paid steps and pay for the next block; unpaid ones are recorded and refused."""
        self._require_own_process(steps)
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

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            "an accountant with an account was to be copied or pickled, but its copy could take what is paid for a "
            "second time: share the one object, or give each part a run of its own"
        )

    def _require_own_process(self, steps: int) -> None:
        if os.getpid() != self._process:
            self.record(self._event, steps, "steps taken in a forked process, which had paid for none")
            raise BudgetExceeded(
                "steps were taken in a forked process, but what is paid for is counted in the process that made the "
                "accountant; they are recorded after the fact: make it in the process that adds the noise"
            )

    def _next_block(self) -> int:
        return min(max(self._block, self._chunk), self._account.affordable(self._event))

    def _pay(self) -> None:
        steps = self._next_block()
        if steps:
            self._held.extend(self._event, steps)
            self._held.commit(self._event, steps)
            self.paid += steps


def attach(
    account: Account | None, run: str | None, event: Event | None, block: int, adjacency: str
) -> PrepaidSteps | None:
    """The prepaid steps of a run on an account; None without one."""
    if account is None:
        return None
    if run is None or event is None:
        raise InvalidArgument(
            "run" if run is None else "noise_multiplier",
            "an accountant with an account needs a run, the name under which it is charged, and a noise_multiplier",
        )
    return PrepaidSteps(account, run, event, block, adjacency)
