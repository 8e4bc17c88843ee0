"""A running account of what a training loop has done, in the words of the loop: step, look, stop.

The ε it reports is exact for the steps recorded, and is a guarantee when the plan, its length included, was
fixed in advance. A run that stops because of what it saw keeps the guarantee of the plan it reserved; a
budget that many studies draw on, each chosen after the last, is a `dpfed.accounting.filter.RenyiFilter`.

>>> accountant = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, max_epsilon=10.0)
>>> for epoch in range(100):
...     accountant.step(num_steps=100)
...     if accountant.is_budget_exceeded():
...         break
>>> round(accountant.get_epsilon(), 4)
6.1877
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfed import checks, events
from dpfed.accounting.calibrate import dp_sgd_event
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.accounting.search import largest_count
from dpfed.accounting.tally import Tally
from dpfed.checks import ADD_REMOVE
from dpfed.errors import InvalidArgument
from dpfed.events import Event
from dpfed.guarantee import Account
from dpfed.prepaid import ReportedSteps

VERSION = 1
_FIELDS = {"delta", "max_epsilon", "adjacency", "step_event", "steps", "events"}


@dataclass(frozen=True)
class RemainingBudget:
    """The rest of the budget under max_epsilon: ε as a plain difference, and whole steps by the accountant.

    The steps are what counts: the next step costs less than the first did, so the difference in ε alone says
    little. ``steps`` is None for an accountant that was given no noise_multiplier.
    """

    epsilon: float
    steps: int | None


class PrivacyAccountant:
    """A running count of what a run has spent, composed exactly.

    ``noise_multiplier`` and ``sample_rate`` describe what `.step` records: Gaussian noise on a Poisson sample
    (on all of the data, without a sample_rate). `.compose` records any other event, and both may be mixed.
    `.step` and `.compose` record what happened: they never refuse, and `.is_budget_exceeded` tells whether it
    was too much. Ask `.would_exceed` or `.remaining_budget` beforehand.

    With an `account` (of a `dpfed.Ledger`) blocks of `block` steps are committed there *ahead*, under the name
    `run`: a step that is recorded here was on disk before it was taken. When the account has no room for
    another step, `.is_budget_exceeded` says so; steps taken all the same, and what `.compose` records, are
    charged after the fact and marked so.
    """

    def __init__(
        self,
        noise_multiplier: float | None = None,
        sample_rate: float | None = None,
        delta: float | None = None,
        max_epsilon: float | None = None,
        *,
        adjacency: str = ADD_REMOVE,
        account: Account | None = None,
        run: str | None = None,
        block: int = 100,
    ) -> None:
        self.delta = checks.probability(delta=delta)
        self.max_epsilon = None if max_epsilon is None else checks.positive(max_epsilon=max_epsilon)
        self.adjacency = checks.adjacency(adjacency)
        self._step_event = _step_event(noise_multiplier, sample_rate)
        self.steps = 0
        self._tally = Tally(self.adjacency)
        self._prepaid = _attach(account, run, self._step_event, block, self.adjacency)

    @property
    def step_event(self) -> Event | None:
        """The event that one `.step` records and that is paid for ahead; it does not change."""
        return self._step_event

    @property
    def event(self) -> Event | None:
        """Everything recorded, as one event; None if nothing was."""
        return self._tally.event

    def step(self, num_steps: int = 1) -> None:
        """Record `num_steps` steps of the configured event."""
        num_steps = checks.count(num_steps=num_steps)
        self._tally.add(self._configured_step(), num_steps)
        self.steps += num_steps
        if self._prepaid is not None:
            self._prepaid.take(num_steps)

    def compose(self, event: Event, count: int = 1) -> None:
        """Record any event, `count` times over."""
        self._tally.add(events.require_event(event), checks.count(count=count))
        if self._prepaid is not None:
            self._prepaid.record(event, count, "an event recorded by compose")

    def get_epsilon(self) -> float:
        """Return the ε of everything recorded, at this accountant's δ: an upper bound; 0.0 before anything."""
        return self._tally.epsilon(self.delta)

    def is_budget_exceeded(self) -> bool:
        """Return whether what was recorded costs more than max_epsilon, or the account has no room for another step."""
        if self._prepaid is not None and self._prepaid.is_exhausted:
            return True
        return self.max_epsilon is not None and self.get_epsilon() > self.max_epsilon

    def would_exceed(self, event: Event, count: int = 1) -> bool:
        """Return whether recording the event `count` times over would pass max_epsilon; records nothing."""
        after = self._after(events.require_event(event), checks.count(count=count))
        return self.max_epsilon is not None and after > self.max_epsilon

    def remaining_budget(self) -> RemainingBudget:
        """Return what is left under max_epsilon: as ε, and as the largest number of steps that still fits."""
        if self.max_epsilon is None:
            raise InvalidArgument(
                "max_epsilon", "this accountant has no max_epsilon to count down from: make it with one"
            )
        left = max(0.0, self.max_epsilon - self.get_epsilon())
        return RemainingBudget(epsilon=left, steps=self._affordable_steps(self.max_epsilon))

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on elsewhere, as plain JSON values; ε follows from it to the last bit."""
        self._tally.settle()
        return {
            "version": VERSION,
            "delta": self.delta,
            "max_epsilon": self.max_epsilon,
            "adjacency": self.adjacency,
            "step_event": self.step_event.to_dict() if self.step_event else None,
            "steps": self.steps,
            "events": self._tally.rows(),
        }

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], *, account: Account | None = None, run: str | None = None, block: int = 100
    ) -> PrivacyAccountant:
        """Return the accountant that `state_dict` described, charging the account from here on if one is given."""
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            raise InvalidArgument(
                "state", f"state must be what state_dict() returned in version {VERSION}, got {state!r:.80}"
            )
        missing = _FIELDS - state.keys()
        if missing:
            raise InvalidArgument(
                "state", f"state must be all that state_dict() returned, but lacks {', '.join(sorted(missing))}"
            )
        accountant = cls(delta=state["delta"], max_epsilon=state["max_epsilon"], adjacency=state["adjacency"])
        accountant.steps = int(state["steps"])
        if state["step_event"] is not None:
            accountant._step_event = events.from_dict(state["step_event"])
        accountant._tally = Tally.from_rows(state["events"], accountant.adjacency)
        accountant._prepaid = _attach(account, run, accountant.step_event, block, accountant.adjacency)
        return accountant

    def __repr__(self) -> str:
        return f"<PrivacyAccountant: {self._summary()}>"

    def _repr_html_(self) -> str:
        done = html.escape(str(self.event or "nothing recorded"))
        return f"<p><b>{html.escape(self._summary())}</b><br><code>{done}</code></p>"

    def _summary(self) -> str:
        budget = "" if self.max_epsilon is None else f" of {self.max_epsilon:g}"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"ε = {self.get_epsilon():.6g}{budget} at δ = {self.delta:g} ({self.adjacency}) after {steps}"

    def _configured_step(self) -> Event:
        if self.step_event is None:
            raise InvalidArgument(
                "noise_multiplier",
                "this accountant has no noise_multiplier, so it does not know what a step is: give one, or use compose",
            )
        return self.step_event

    def _after(self, event: Event, count: int) -> float:
        tally = self._tally.copy()
        tally.add(event, count)
        return tally.epsilon(self.delta)

    def _affordable_steps(self, max_epsilon: float) -> int | None:
        """Return how many more steps like the last one fit; None before the first, whose event is not known."""
        if self.step_event is None:
            return None
        step = self.step_event
        return largest_count(lambda count: self._after(step, count), max_epsilon, start=max(1, self.steps))


def get_privacy_spent(
    steps: int, noise_multiplier: float, sample_rate: float, delta: float, *, adjacency: str = ADD_REMOVE
) -> float:
    """Return the ε of `steps` steps of DP-SGD at δ: an upper bound."""
    event = dp_sgd_event(noise_multiplier, sample_rate, steps)
    return epsilon_of(event, checks.probability(delta=delta), adjacency=adjacency)


def compute_privacy_budget(
    steps: int,
    noise_multiplier: float,
    delta: float,
    sample_rate: float = 1.0,
    *,
    adjacency: str = ADD_REMOVE,
) -> float:
    """Return the ε of `steps` steps of DP-SGD at δ, on all of the data unless a sample_rate is given."""
    return get_privacy_spent(steps, noise_multiplier, sample_rate, delta, adjacency=adjacency)


def _attach(
    account: Account | None, run: str | None, event: Event | None, block: int, adjacency: str
) -> ReportedSteps | None:
    """Return the steps that the run pays for on the account; None without one."""
    if account is None:
        return None
    if run is None or event is None:
        raise InvalidArgument(
            "run" if run is None else "noise_multiplier",
            "an accountant with an account needs a run, the name under which it is charged, and a noise_multiplier",
        )
    return ReportedSteps(account, run, event, block, adjacency)


def _step_event(noise_multiplier: float | None, sample_rate: float | None) -> Event | None:
    if noise_multiplier is not None:
        return dp_sgd_event(noise_multiplier, 1.0 if sample_rate is None else sample_rate)
    if sample_rate is not None:
        raise InvalidArgument("noise_multiplier", "a sample_rate alone describes no step: give noise_multiplier too")
    return None
