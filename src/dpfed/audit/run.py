"""Audit a run: the same plan and code with canaries in it, on made-up records unless the owner asks otherwise.

Records are audited in the client whose records pay most, clients by canary clients. On a stand-in nothing private is
touched and nothing is spent: the audit is of plan and code, and says so. On the run's own records it is one more run of
that client, reserved and committed in its account before the first step.

>>> import numpy as np
>>> from dpfed.models.logistic import Logistic
>>> from dpfed.plan.plan import Plan
>>> plan = Plan("study", 1, {"ward": LocalPlan(size=40, batch_size=40, steps=2, clip_norm=1.0)})
>>> plan = plan.calibrated(Guarantee(8.0, 1e-5))
>>> ward = TorchClient("ward", (np.ones((20, 30)), np.zeros(20, dtype=int)), "", TorchModel(Logistic, "cross_entropy"))
>>> [verdict.accounted.unit for verdict in audit_plan(plan, ward, canaries=50)]
['record']
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from dpfed.audit.canaries import DIRAC, RESIDUAL, Advance, CanaryScores, GradientCanaries, Widened, ignore
from dpfed.audit.clients import audit_clients
from dpfed.audit.verdict import GENERATED, PRIVATE, Verdict, judge
from dpfed.errors import InvalidArgument
from dpfed.federated.runners.charging import SharedLedger
from dpfed.federated.torch.client import TorchClient
from dpfed.federated.torch.model import TorchModel
from dpfed.guarantee import CLIENT, Guarantee
from dpfed.ledger.ledger import Ledger
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource, or_system

CANARIES = 1000


def audit_plan(
    plan: Plan,
    client: TorchClient,
    *,
    canaries: int = CANARIES,
    kind: str = DIRAC,
    scoring: str = RESIDUAL,
    data: str = GENERATED,
    ledger: Ledger | None = None,
    source: RandomSource | None = None,
    advance: Advance = ignore,
) -> tuple[Verdict, ...]:
    """Return a verdict for each unit that the plan promises something for.

    `client` is one of the plan's, with the records to train on. Where these are the run's own (``data=PRIVATE``), its
    account in the `ledger` pays for the audit, as for a run of its own. `advance` is called `count_parts` times.
    """
    if not plan.units:
        message = "style none promises nothing, so there is no ε to audit"
        raise InvalidArgument("plan", f"{message}: `dpfed attack` shows what such a model leaks")
    is_private, origin = data == PRIVATE, or_system(source)
    if is_private:
        _require_covered(plan)
    found = []
    for accounted in plan.statements():
        if accounted.unit == CLIENT:
            scores = audit_clients(plan, canaries, source=origin.once("client canaries"), advance=advance)
            found.append(_judge_clients(plan, scores, accounted))
        else:
            if is_private:
                reserve_audit(plan, client, ledger)
            scores = audit_records(plan, client, canaries, kind=kind, scoring=scoring, source=origin, advance=advance)
            found.append(
                judge(
                    scores,
                    accounted,
                    unit=plan.local_unit,
                    adjacency=plan.record_adjacency,
                    is_gaussian=_is_gaussian(plan.local[client.name]),
                    canaries="gradient",
                    data=data,
                    is_shareable=not is_private or scoring != RESIDUAL,
                )
            )
    return tuple(found)


def audit_records(
    plan: Plan,
    client: TorchClient,
    canaries: int,
    *,
    kind: str = DIRAC,
    scoring: str = RESIDUAL,
    source: RandomSource | None = None,
    advance: Advance = ignore,
) -> CanaryScores:
    """Train a client in all rounds that it may take part in, those with the least noise, and score its canaries.

    A model with fewer parameters than canaries is widened by a layer that no record moves.
    """
    origin = or_system(source)
    model = widen(client.model, canaries if kind == DIRAC else 0)
    parameters = dict(zip(model.layout.names, model.parameters, strict=True))
    rounds = list(list_locals(plan, client.name))
    watched = GradientCanaries(
        parameters, rounds[0], canaries, kind=kind, scoring=scoring, source=origin, advance=advance
    )
    audited = replace(client, model=model, canaries=watched)
    weights = model.first_weights
    for number, local in enumerate(rounds):
        watched.go_on(local)
        weights = weights + audited.train(local, weights.astype(model.layout.dtype), origin.once(f"round {number}"))
    return watched.scores


def count_parts(plan: Plan, client: str) -> int:
    """Return how often an audit of the plan calls `advance`: for each step of the client, and each canary round."""
    steps = sum(local.steps for local in list_locals(plan, client)) if plan.noises_steps else 0
    return steps + (plan.rounds if CLIENT in plan.units else 0)


def list_locals(plan: Plan, client: str) -> Iterable[LocalPlan]:
    """Yield the client's part of each round that it may take part in: those with the least noise."""
    numbers = sorted(range(1, plan.rounds + 1), key=plan.factor)[: plan.participations]
    return (plan.in_round(number).local[client] for number in sorted(numbers))


def widen(model: TorchModel, numbers: int) -> TorchModel:
    """Return the model with room for so many Dirac canaries; itself where it has enough parameters."""
    more = numbers - model.layout.size
    return model if more <= 0 else model.wrapped(partial(Widened, more=more))


def reserve_audit(plan: Plan, client: TorchClient, ledger: Ledger | None) -> None:
    """Reserve and commit the audit in the client's account: it trains on the client's records once more.

    Privacy: all rounds that the client may take part in, committed before the first one.
    """
    if ledger is None:
        message = "an audit on private data is a run of its own on them, and there is no ledger to pay for it"
        raise InvalidArgument("ledger", f"{message}: give the run's file a ledger: block, or audit a stand-in")
    SharedLedger(ledger, {client.name: client.account}).require_fitting(plan)
    number = 1
    while ledger.has_run(f"{plan.name}-audit-{number}"):
        number += 1
    charges = {client.account: plan.local_charges(client.name)}
    ledger.reserve(charges, run=f"{plan.name}-audit-{number}").commit(charges)


def _require_covered(plan: Plan) -> None:
    """Refuse an audit on private records that would touch none, or whose line the accounts would not cover."""
    if not plan.noises_steps:
        message = f"style {plan.style} promises nothing for records, and canary clients take the place of all clients"
        raise InvalidArgument("data", f"{message}: audit it without private records, which costs nothing")
    if plan.server_noises:
        message = "what an audit of records shows has no noise for a whole client, which style hybrid promises as well"
        raise InvalidArgument("data", f"{message}: audit plan and code on a stand-in, which costs nothing")


def _judge_clients(plan: Plan, scores: CanaryScores, accounted: Guarantee) -> Verdict:
    client = plan.client
    is_sampled = plan.is_secret and plan.cohort.chance(len(plan.local)) < 1
    is_plain = client is not None and client.norm == "l2" and client.tree is None and client.adaptive is None
    return judge(
        scores,
        accounted,
        unit=CLIENT,
        adjacency=plan.client_adjacency,
        is_gaussian=is_plain and not is_sampled,
        canaries="client",
        data=GENERATED,
    )


def _is_gaussian(local: LocalPlan) -> bool:
    """Return whether all steps together are one Gaussian mechanism: no sampling, and noise of one kind."""
    return (local.norm, local.adaptive, local.tree, local.sample_rate) == ("l2", None, None, 1.0)
