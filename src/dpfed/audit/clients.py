"""Canary clients: whole clients made up for an audit, each of them in by a fair coin.

A promise for one client is audited by clients who send nothing but one long coordinate, through the rounds of a real
`Federation`: cohorts, screening, clipping, the server's noise (or the clients' own, in style `local`) and the charges
in a ledger of the audit's own. A client that is not in is not there: it fails to answer. Sending zero would not be the
same where updates are clipped around the last release, or counted as short ones. Under replace-one it sends the
opposite. No record of anybody is needed, so it costs nothing.

>>> from dpfed.plan.client import ClientPlan
>>> from dpfed.plan.local import LocalPlan
>>> local = LocalPlan(size=10, batch_size=5, steps=1)
>>> release = ClientPlan(clip_norm=1.0, noise_multiplier=0.5)
>>> ward = Plan("study", 2, {"ward": local}, style="user", client=release, weighting="equal")
>>> scores = audit_clients(ward, 10)
>>> len(scores.scores)
10
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.audit.canaries import FAIR, LONG, Advance, CanaryScores, ignore
from dpfed.audit.likelihood import compute_ratios
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.federated.engine import Federation
from dpfed.federated.messages import FAILED, Failure, Task, Update
from dpfed.federated.runners.in_process import LocalRunner
from dpfed.federated.state.layout import Vector
from dpfed.guarantee import CLIENT, Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan.algorithm import Algorithm
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import FixedCohort
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, or_system
from dpfed.training.objective import LocalObjective
from dpfed.training.sampling import coins

STUDY = "audit"
_DELTA = 1e-5  # of the audit's own account, where the plan promises nothing


@dataclass(frozen=True, eq=False)
class CanaryClient:
    """A client that sends the same vector in every round: one long coordinate."""

    name: str
    account: str
    place: int
    length: float

    def rehearse(self, local: LocalPlan, weights: Vector) -> None:
        """Accept every plan: there is nothing to train."""

    def train(self, local: LocalPlan, objective: LocalObjective, source: RandomSource) -> Floats:
        """Return what this client always sends."""
        sent = np.zeros(objective.start.size)
        sent[self.place] = self.length
        return sent


def audit_clients(
    plan: Plan, count: int, *, source: RandomSource | None = None, advance: Advance = ignore
) -> CanaryScores:
    """Run the rounds of a plan with at least `count` canary clients in place of its own, and return their scores.

    `advance` is called after each round.
    """
    origin, clip_norm = or_system(source), _require_client(plan).clip_norm
    widened = _put_in_canaries(plan, checks.count(count=count))
    names = list(widened.local)
    is_in = coins(FAIR, len(names), origin.stream("canaries"))
    signs, is_there = np.where(is_in, 1.0, -1.0), is_in | (plan.client_adjacency == REPLACE_ONE)
    size = 1 if plan.noises_updates else len(names)
    length = min(LONG * clip_norm, 0.5 * widened.largest_norm(size))  # longer ones are refused at the door
    clients = [
        CanaryClient(name, name, 0 if plan.noises_updates else place, sign * length)
        for place, (name, sign) in enumerate(zip(names, signs.tolist(), strict=True))
    ]
    absent = frozenset(name for name, here in zip(names, is_there.tolist(), strict=True) if not here)
    shifts = np.stack(list(_follow(_run(widened, clients, absent, size, origin), advance)))
    return CanaryScores(_score(plan, shifts), is_in, shifts.sum(axis=0))


def _require_client(plan: Plan) -> ClientPlan:
    if plan.client is None or CLIENT not in plan.units:
        message = f"style {plan.style} promises nothing for one client, so there is nothing to audit"
        raise InvalidArgument("plan", f"{message}: audit its records, or choose style user, hybrid or local")
    return plan.client


def _put_in_canaries(plan: Plan, count: int) -> Plan:
    """Return the plan with canaries in place of clients: the same noise, rounds and sampling rate."""
    cohort, population = plan.cohort, len(plan.local)
    if isinstance(cohort, FixedCohort):
        share = Fraction(cohort.size, population)  # kept exactly, or ε would be another
        count = math.ceil(count / share.denominator) * share.denominator
        cohort = replace(cohort, size=int(share * count))
    alone = replace(plan.one_local, noise_multiplier=None, clip_norm=math.inf, tree=None, adaptive=None)
    return replace(
        plan,
        name=f"{plan.name}-audit",
        local={f"canary-{number:06d}": alone for number in range(count)},
        style="user" if plan.style == "hybrid" else plan.style,
        cohort=cohort,
        guarantee=None,
        weighting="equal",
        algorithm=Algorithm(),
        server_learning_rate=1.0,
        minimum_cohort=1,
        measurement=None,  # canaries hold nothing out
    )


def _follow(rounds: Iterator[Floats], advance: Advance) -> Iterator[Floats]:
    for each in rounds:
        advance()
        yield each


def _run(
    plan: Plan, clients: list[CanaryClient], absent: frozenset[str], size: int, source: RandomSource
) -> Iterator[Floats]:
    """Yield for each round how far each canary's coordinate was moved, in clip norms."""
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.db") as ledger:
        promise = plan.client_guarantee or Guarantee(plan.client_epsilon(_DELTA), _DELTA, CLIENT, plan.client_adjacency)
        accounts = [client.account for client in clients] if plan.noises_updates else [STUDY]
        ledger.open_all(dict.fromkeys(accounts, promise), purpose="audit")
        runner = _WatchedRunner(clients, ledger, study=None if plan.noises_updates else STUDY, source=source)
        runner.absent = absent
        before, centre = np.zeros(size), np.zeros(size)
        expected, clip_norm = float(plan.cohort.expected(len(clients))), _require_client(plan).clip_norm
        for result in Federation(plan, np.zeros(size), runner, Path(folder) / "run", source=source):
            released = result.weights - before
            before = np.asarray(result.weights, dtype=np.float64)
            yield (runner.seen if plan.noises_updates else (released - centre) * expected) / clip_norm
            if plan.aggregation.needs_centre:  # everybody knows it: what was released before
                centre = released


class _WatchedRunner(LocalRunner):
    """A runner that also keeps what each client of the last round sent, as the server sees it; 0 of those not asked.

    Clients that are `absent` never answer.
    """

    seen: Floats
    absent: frozenset[str] = frozenset()

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield what the clients send, and take note of it."""
        places = {name: place for place, name in enumerate(self.clients)}
        self.seen = np.zeros(len(places))
        asked = list(cohort)
        yield from (Failure(name, FAILED) for name in asked if name in self.absent)
        for outcome in super().train(task, [name for name in asked if name not in self.absent]):
            if isinstance(outcome, Update):
                self.seen[places[outcome.client]] = float(outcome.value[0])
            yield outcome


def _score(plan: Plan, shifts: Floats) -> Floats:
    """Return the sum over rounds of log-likelihood ratios; plain sums where noise is correlated or clips adapt."""
    client = _require_client(plan)
    if client.tree or client.adaptive:
        return np.asarray(shifts.sum(axis=0))
    rate = plan.cohort.chance(len(plan.local)) if plan.is_secret else 1.0
    scores = [
        compute_ratios(
            row,
            rate=rate,
            noise=client.noise * plan.factor(number),
            norm=client.norm,
            replaces=plan.client_adjacency == REPLACE_ONE,
        )
        for number, row in enumerate(shifts, start=1)
    ]
    return np.asarray(np.sum(scores, axis=0))
