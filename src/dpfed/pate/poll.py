"""A poll: a fixed number of queries to teachers, each charged before its noise is drawn.

What a poll costs is fixed before its first query and depends on no vote: every look at a threshold, answered or not,
and as many answers as `max_answers` allows. When these are spent, there is no further answer.

>>> from dpfed.pate.vote.noisy_max import ConfidentGNMax
>>> plan = PollPlan(ConfidentGNMax(sigma=4.0, threshold=150, threshold_sigma=5.0), queries=100, max_answers=40)
>>> plan.charges
{Gaussian(noise_multiplier=5.0): 100, Gaussian(noise_multiplier=2.82...): 40}
>>> poll = Poll(plan)
>>> poll.ask([250, 0, 0]), poll.ask([90, 80, 80])
(0, None)
>>> poll.answers_left
39
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dpfed import checks
from dpfed.accounting.calibrate import calibrate_noise
from dpfed.accounting.queries import epsilon as epsilon_of
from dpfed.checks import ADD_REMOVE
from dpfed.errors import BudgetExceeded, InvalidArgument
from dpfed.events import Composed, Event, Repeated
from dpfed.guarantee import RECORD, UNITS, Account, Guarantee
from dpfed.pate.vote.noisy_max import Counts, Vote, require_counts
from dpfed.prepaid import PaidSteps, reserve

SPENT = (
    "all answers of this poll were given, and no budget is left for another: plan a poll with more, which costs more"
)


@dataclass(frozen=True)
class PollPlan:
    """How many queries are put to the teachers, how many of them may be answered, and by which vote.

    `unit` and `adjacency` are those of the promise: a record, or whoever the teachers' records are assigned by.

    Privacy: `event` for one unit of the teachers' data. For queries that are fixed beforehand this is ordinary
    composition: all looks at thresholds first, then `answers` votes, each on the next query that passed, or on a
    constant if none is left; what is released follows from these. If a query may follow from earlier answers, looks and
    votes are two Gaussian mechanisms asked by turns, each at most as often as planned: concurrent composition (Vadhan
    and Zhang 2023), or fully adaptive one (Smith and Thakurta 2022), costs what a fixed order does. Pure votes have no
    threshold and a fixed order. A student that learns from the answers costs nothing more.
    """

    vote: Vote
    queries: int
    max_answers: int | None = None
    unit: str = RECORD
    adjacency: str = ADD_REMOVE

    def __post_init__(self) -> None:
        object.__setattr__(self, "queries", checks.count(queries=self.queries))
        most = self.queries if self.max_answers is None else checks.count(max_answers=self.max_answers)
        object.__setattr__(self, "max_answers", min(most, self.queries))
        checks.adjacency(self.adjacency)
        if self.unit not in UNITS:
            raise InvalidArgument("unit", f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")

    @property
    def answers(self) -> int:
        """How many queries are answered at most."""
        return self.queries if self.max_answers is None else self.max_answers

    @property
    def charges(self) -> dict[Event, int]:
        """All that the poll may cost: a look at the threshold for each query, and a vote for each answer."""
        found: Counter[Event] = Counter()
        if self.vote.threshold_event is not None:
            found[self.vote.threshold_event] += self.queries
        found[self.vote.event] += self.answers
        return dict(found)

    @property
    def event(self) -> Event:
        """The whole poll as one event."""
        return Composed(tuple(Repeated(event, count) for event, count in self.charges.items()))

    def guarantee(self, delta: float) -> Guarantee:
        """Return what the whole poll promises at δ."""
        found = epsilon_of(self.event, checks.probability(delta=delta), adjacency=self.adjacency)
        return Guarantee(found, delta, self.unit, self.adjacency)

    def calibrated(self, guarantee: Guarantee) -> PollPlan:
        """Return the plan with the least noise for that promise; the noise of a threshold stays in proportion."""
        plan = replace(self, unit=guarantee.unit, adjacency=guarantee.adjacency)
        noise = calibrate_noise(
            guarantee.epsilon,
            guarantee.delta,
            lambda noise: replace(plan, vote=plan.vote.with_noise(noise)).event,
            adjacency=guarantee.adjacency,
        )
        return replace(plan, vote=plan.vote.with_noise(noise))


class Poll:
    """A poll in progress: `ask` charges, then draws noise, then answers.

    With an `account` (of a `dpfed.Ledger`) the whole plan is reserved under the name `run`, and blocks of `ahead`
    queries are committed before they are asked. `close` returns what was never committed.

    Privacy: that of the plan; `ask` draws no noise before its event is committed, and none when the plan is spent.
    """

    def __init__(
        self, plan: PollPlan, *, account: Account | None = None, run: str | None = None, ahead: int = 1
    ) -> None:
        self.plan = plan
        held = reserve(plan.charges, account, run, plan.adjacency, plan.unit)
        left = {event: count if held is None else held.left(event) for event, count in plan.charges.items()}

        def count_paid(event: Event, count: int) -> PaidSteps:
            most = min(count, left[event])  # of a run that was stopped and goes on, less is left
            return PaidSteps(event, most, held=held, ahead=ahead, owner="the poll", refusal=SPENT)

        self._held = held
        looked = plan.vote.threshold_event
        self._looks = None if looked is None else count_paid(looked, plan.queries)
        self._answers = count_paid(plan.vote.event, plan.answers)

    @property
    def answers_left(self) -> int:
        """How many answers may still be given."""
        return self._answers.left

    @property
    def is_spent(self) -> bool:
        """Whether there is no further answer: all answers were given, or all queries asked."""
        return not self._answers.left or (self._looks is not None and not self._looks.left)

    def ask(self, counts: Counts) -> int | None:
        """Return the class of one query, or None where teachers do not agree; raise BudgetExceeded when all is spent.

        `counts` are the exact votes of all teachers, one number per class.
        """
        votes = require_counts(counts)
        if self.is_spent:
            raise BudgetExceeded(SPENT)
        if self._looks is not None:
            self._looks.take()
            if not self.plan.vote.is_confident(votes):
                return None
        self._answers.take()
        return self.plan.vote.choose(votes)

    def ask_all(self, counts: Iterable[Counts]) -> list[int | None]:
        """Return the answers of many queries in order; None for those refused, and for all after the last answer."""
        return [None if self.is_spent else self.ask(each) for each in counts]

    def close(self) -> None:
        """Return to the account what was never committed; what was committed stays spent."""
        if self._held is not None:
            self._held.release()

    def __enter__(self) -> Poll:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
