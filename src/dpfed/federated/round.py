"""How a round comes to its mean update: from updates that are private already, or by noise at the server.

In styles `none`, `sample` and `local` the mean is computed from what the clients released. In `user` and `hybrid` an
update is not a release: updates are clipped, added up and noised here, after the study's account was charged. Either
way what is stored before a crash is used again and costs nothing, and anything else is charged anew.

Whoever fails or is refused contributes zero, and a round goes on as if nobody had failed, even if nobody came: an
end that depends on clients would tell of one of them what no noise covers. Only style `none`, which protects nobody,
stops.

>>> import numpy as np
>>> RoundOutcome(np.zeros(2), "3:ab", Participation(contributed=("ward",))).participation.contributed
('ward',)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpfed.aggregation.quarantine import Standings
from dpfed.aggregation.screening import Arrival, Refusal, UpdateCheck
from dpfed.arrays import Floats
from dpfed.errors import BreakdownError
from dpfed.federated import watching
from dpfed.federated.messages import EXHAUSTED, Charged, Failure, Runner, Task, Update
from dpfed.federated.results import Participation
from dpfed.federated.server_tree import ServerTree
from dpfed.federated.shuffler import Shuffler
from dpfed.federated.state.layout import Layout
from dpfed.federated.state.unfinished import UnfinishedRound, group_by_time
from dpfed.federated.watching import Judged
from dpfed.mechanisms.tree import TreeMechanism
from dpfed.plan.by_round import allows_attempt, count_left, cover_release
from dpfed.plan.plan import Plan, Released
from dpfed.plan.rules import forbids_a_cap
from dpfed.plan.shuffling import combine_reports
from dpfed.randomness import RandomSource
from dpfed.runs.directory import sequence

MANY = 3  # clients that fail together, in style none


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """The mean update of a round, the ledger's head behind it, and who took part in making it."""

    value: Floats
    head: str
    participation: Participation
    asked: tuple[str, ...] = ()  # where the cohort is no secret
    noisy_count: float | None = None
    contributed: tuple[str, ...] = ()  # where clients keep state
    standings: Standings | None = None  # where clients may be in quarantine


@dataclass(frozen=True, eq=False)
class Round:
    """A round to be done, with everything it depends on."""

    plan: Plan
    task: Task
    layout: Layout
    runner: Runner
    stored: UnfinishedRound
    source: RandomSource
    head: str
    clip_norm: float | None = None
    taken: Mapping[str, int] = field(default_factory=dict)
    tree: ServerTree | None = None
    keeps_state: bool = False
    centre: Floats | None = None  # what was released last, for rules that clip around it
    standings: Standings = field(default_factory=dict)

    @property
    def number(self) -> int:
        """The number of the round, from 1."""
        return self.task.round

    def fits(self) -> bool:
        """Return whether the round's charges are still reserved; asked before anything is sent."""
        charged = self.runner.charged()
        if self.stored.heads(self.number):
            return True
        if self.plan.charges_clients and self._is_spent(charged):
            return False
        return not self.plan.server_noises or self._commits <= self._count_left(charged)

    def _count_left(self, charged: Charged) -> int:
        """Return how many events are left with which the study may pay for this round."""
        return sum(charged.left.get(event, 0) for event in cover_release(self.plan, self.number))

    def _is_spent(self, charged: Charged) -> bool:
        """Return whether the clients have no charges left.

        With secret draws it must not depend on them. Where nobody may be left out, attempts are counted for all alike,
        so that none has fewer charges left than there are attempts; secret Poisson draws go on with noise around zero.
        """
        if forbids_a_cap(self.plan):
            return not allows_attempt(self.plan, self.number, charged.begun)
        is_over = not any(count_left(self.plan, name, self.number, spent) for name, spent in charged.by_client.items())
        return is_over and not (self.plan.is_secret and self.plan.server_noises)

    def compute_mean(self) -> RoundOutcome:
        """Return its mean update: charged, noised and stored."""
        if self.plan.client is not None and self.plan.client.shuffle_users is not None:
            return self._average_shuffled(self.plan.client.shuffle_users)
        return self._release_mean() if self.plan.server_noises else self._average_released()

    def _average_released(self) -> RoundOutcome:
        """Return the weighted mean of updates that their clients have noised.

        Privacy: each update is the round's ``local_event`` for its client; their weighted mean is post-processing.
        """
        stored = self.stored.updates(self.number)
        cohort = self._read_or_draw_cohort()
        arrivals = _Arrivals(self._make_check(cohort))
        reused = {update.client: update for update in arrivals.accept(stored.values())}
        fresh = arrivals.accept(self.runner.train(self.task, [name for name in cohort if name not in stored]))
        updates = {name: reused[name] for name in cohort if name in reused}
        for group in group_by_time(fresh):
            if self.plan.charges_clients:
                self.stored.write_updates(self.number, group)
            updates |= {update.client: update for update in group}
        if not self.plan.units:
            arrivals.require_some(updates, len(self.plan.local))
        updates = {name: updates[name] for name in cohort if name in updates}  # added up in one order, whoever is first
        values = {name: update.value for name, update in updates.items()}
        value, judged = self._combine(values, arrivals.describe(updates, reused))
        head = max({self.head, *(update.head for update in updates.values())}, key=sequence)
        used = () if judged.participation.breakdown else watching.select_counted(self.standings, updates)
        keepers = self._select_keepers(used)
        return RoundOutcome(value, head, judged.participation, contributed=keepers, standings=judged.standings)

    def _combine(self, values: Mapping[str, Floats], participation: Participation) -> tuple[Floats, Judged]:
        """Return the aggregate of released updates by the rule of the plan, and who is in quarantine after it."""
        counted = watching.select_counted(self.standings, values)
        try:
            value = self.plan.combined(counted, self.layout.size, **self._rule_options)
        except BreakdownError as error:
            return self._hold(error, participation)
        return value, watching.judge(self.plan, self.number, self.standings, values, value, participation)

    @property
    def _rule_options(self) -> dict[str, Any]:
        """What rules take beside updates: the last release, and chance."""
        return {"centre": self.centre, "source": self.source.once(f"rule {sequence(self.head)} {self.number}")}

    def _hold(self, error: BreakdownError, participation: Participation) -> tuple[Floats, Judged]:
        """Leave the model as it is, as too few updates came; where nobody is protected, stop.

        Who failed may follow from private data: a stop would tell it, and so would a rule done by halves.
        """
        if not self.plan.units:
            raise error
        return np.zeros(self.layout.size), Judged(replace(participation, breakdown=str(error)), self.standings)

    def _average_shuffled(self, users: int) -> RoundOutcome:
        """Return the mean of updates that their clients have noised, and that a shuffler has mixed.

        Privacy: each update is the round's ``local_event`` for its client, and all of them are ``Shuffled`` of it. What
        is refused for its numbers is refused after the shuffler, under no name. Only the mean is stored: a crash before
        that costs the round's charges again.
        """
        if found := self.stored.release(self.number):
            took_part = Participation(breakdown=self.stored.breakdown(self.number))
            return RoundOutcome(found[0].average, found[1], took_part)
        cohort = self._read_or_draw_cohort()
        arrivals = _Arrivals(self._make_check(cohort))
        updates = list(arrivals.gather(self.runner.train(self.task, cohort)))
        mixer = Shuffler(users, self.source.once(f"shuffle {sequence(self.head)} {self.number}"))
        reports = mixer.hand_on([update.value for update in updates])
        value, took_part = self._combine_reports(arrivals, reports, [each.client for each in updates if reports])
        head = max({self.head, *(update.head for update in updates)}, key=sequence)
        self.stored.write_release(self.number, Released(value), head, (), breakdown=took_part.breakdown)
        return RoundOutcome(value, head, took_part)

    def _combine_reports(
        self, arrivals: _Arrivals, reports: Sequence[Floats], names: Iterable[str]
    ) -> tuple[Floats, Participation]:
        """Return the aggregate of reports without names by the rule of the plan, and who took part."""
        usable = arrivals.screen(reports)
        took_part = arrivals.describe(names, ())
        try:
            return combine_reports(self.plan, usable, self.layout.size, **self._rule_options), took_part
        except BreakdownError as error:
            value, judged = self._hold(error, took_part)
            return value, judged.participation

    def _release_mean(self) -> RoundOutcome:
        """Charge the study's account, then return the mean of the clipped updates with the server's noise.

        Privacy: the round's ``client_event`` for one client, committed before noise is drawn (see `ServerRelease`).
        What is committed, released and stored depends on who was asked, never on who answered or how: if nobody did,
        noise around zero is released.
        """
        found = self.stored.release(self.number)
        if found is not None:
            released, head, asked, contributed = found
            return RoundOutcome(released.average, head, Participation(), asked, released.noisy_count, contributed)
        asked = self._asked
        arrivals = _Arrivals(self._make_check(asked))
        updates = {update.client: update for update in arrivals.accept(self.runner.train(self.task, asked))}
        head = self.runner.charge_release(self._commits, self.number)
        # Named by its own charge: after a crash a seeded source gives no noise again, and where no charge was lost, the
        # noise that it would have given anyway.
        noise = self.source.once(f"noise {self.runner.charged().release_number} {self.number}")
        values = {name: update.value for name, update in updates.items()}
        counted = () if self.plan.is_secret else asked
        keepers = self._select_keepers(updates)
        with self._step_tree(asked, noise) as tree:
            released = self.plan.in_round(self.number).server.release(
                values, self.layout.size, noise, self.clip_norm, tree, self.centre
            )
            self.stored.write_release(self.number, released, head, counted, keepers)
        took_part = arrivals.describe(updates, ())
        return RoundOutcome(released.average, head, took_part, counted, released.noisy_count, keepers)

    def _select_keepers(self, updates: Iterable[str]) -> tuple[str, ...]:
        """Return who keeps a state of this round: whoever's update is used, if the algorithm has any."""
        return tuple(updates) if self.keeps_state else ()

    @contextmanager
    def _step_tree(self, asked: Collection[str], noise: RandomSource) -> Iterator[TreeMechanism | None]:
        """Yield the tree's noise for this round, opening a new tree if one was charged; None without a tree."""
        if self.tree is None:
            yield None
            return
        if not self.tree.is_open:
            self.tree.open(self.plan.in_round(self.number).server.tree(self.tree.event, noise))
        with self.tree.step(asked) as mechanism:
            yield mechanism

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        """The clients asked in a round that the server noises; none, if too few were drawn.

        Where the cohort is no secret the statement counts how often a client takes part, so that has a limit.
        """
        most = self.plan.rounds if self.plan.is_secret else self.plan.participations
        able = (name for name in self._draw() if self.taken.get(name, 0) < most)
        return tuple(name for name in able if self.tree is None or self.tree.admits(name))

    @property
    def _commits(self) -> int:
        """The number of client events the round costs. Rounds the ledger knows of and this run does not were lost.

        One where it begins a tree, which pays for every pattern in it, whatever was before.
        """
        if self.tree is not None:
            return 0 if self.tree.is_open else 1
        charged = self.runner.charged()
        lost = charged.begun - (self.number - 1)
        return self.plan.client_commits(self.taken, self._asked, charged.releases, max(lost, 0))

    def _draw(self) -> tuple[str, ...]:
        drawn = self.plan.draw(self.source.once(f"cohort {self.number}"))
        return drawn if self.plan.is_enough(len(drawn)) else ()

    def _read_or_draw_cohort(self) -> tuple[str, ...]:
        cohort = self.stored.cohort(self.number, self.plan.local)
        if cohort is None:
            cohort = self._draw()
            if self.plan.cohort.chance(len(self.plan.local)) < 1:  # else it is drawn so again
                self.stored.write_cohort(self.number, cohort)
        return cohort

    def _make_check(self, cohort: Iterable[str]) -> UpdateCheck:
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return UpdateCheck(self.number, shapes, frozenset(cohort), self.plan.largest_norm(self.layout.size))


class _Arrivals:
    """The outcomes of a round as they come from the runner: accepted, refused or failed."""

    def __init__(self, check: UpdateCheck) -> None:
        self._check = check
        self._seen: set[str] = set()
        self._failures: list[Failure] = []
        self._refusals: list[Refusal] = []

    def accept(self, outcomes: Iterable[Update | Failure]) -> Iterator[Update]:
        """Yield the updates that pass the check, each as a float64 vector of its own."""
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                self._failures.append(outcome)
                continue
            checked = self._check.check(Arrival(outcome.client, outcome.round, outcome.value), self._seen)
            if isinstance(checked, Refusal):
                self._refusals.append(checked)
                continue
            self._seen.add(outcome.client)
            yield Update(outcome.client, outcome.round, checked, outcome.head)

    def gather(self, outcomes: Iterable[Update | Failure]) -> Iterator[Update]:
        """Yield one update of each client that was asked, whatever its numbers: for a shuffler."""
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                self._failures.append(outcome)
                continue
            checked = self._check.check_form(Arrival(outcome.client, outcome.round, outcome.value), self._seen)
            if isinstance(checked, Refusal):
                self._refusals.append(checked)
                continue
            self._seen.add(outcome.client)
            yield Update(outcome.client, outcome.round, checked, outcome.head)

    def screen(self, reports: Iterable[Floats]) -> list[Floats]:
        """Return the reports whose numbers pass the check; whose the others are nobody knows."""
        checked = [self._check.check_content(report, f"report {place}") for place, report in enumerate(reports)]
        self._refusals += [each for each in checked if isinstance(each, Refusal)]
        return [each for each in checked if not isinstance(each, Refusal)]

    def require_some(self, updates: Mapping[str, Update], population: int) -> None:
        """Raise a client's error if many failed and no other came: the program's fault rather than the data's."""
        errors = [failure.error for failure in self._failures if failure.error is not None]
        if len(errors) >= min(MANY, population) and not updates and not self._refusals:
            raise errors[0]

    def describe(self, updates: Iterable[str], reused: Iterable[str]) -> Participation:
        """Return who contributed, failed or was refused; whoever failed and sent noise around zero has failed."""
        failed = {failure.client for failure in self._failures}
        return Participation(
            contributed=tuple(name for name in updates if name not in failed),
            reused=tuple(reused),
            exhausted=tuple(failure.client for failure in self._failures if failure.reason == EXHAUSTED),
            failed=tuple(dict.fromkeys(each.client for each in self._failures if each.reason != EXHAUSTED)),
            refused={refusal.client: refusal.reason for refusal in self._refusals},
            errors={failure.client: failure.error for failure in self._failures if failure.error is not None},
        )
