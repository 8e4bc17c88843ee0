"""Attack a finished model: who was among its training records?

All attacks get the same model, the same members and the same other records; those that need more train shadow models on
random halves of both. What they find about private members is of their records as they are: for the owner alone.

>>> from dpfed.models.logistic import Logistic
>>> from dpfed.randomness import SeededSource
>>> model, source = TorchModel(Logistic, "cross_entropy"), SeededSource(2)
>>> people = [(source.normal((40, 30)), source.integers(2, 40)) for _ in range(2)]
>>> plan = LocalPlan(size=40, batch_size=10, steps=4, learning_rate=0.5)
>>> found = attack_model(model, model.first_weights, *people, plan, shadows=4, source=source)
>>> [each.name for each in found]
['loss threshold', 'population', 'reference', 'shadow models', 'LiRA online', 'LiRA offline', 'RMIA']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed import checks
from dpfed.arrays import Floats
from dpfed.audit import attacks
from dpfed.audit.roc import AttackResult, measure
from dpfed.audit.shadows import Shadows, ask, train_shadows
from dpfed.audit.stand_in import read_records
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.federated.launch import Launch
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch.model import TorchModel
from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource, or_system

SHADOWS = 64
WITHOUT_SHADOWS = ("loss threshold", "population")  # attacks that need the model alone
Pair = tuple[Any, Any]


@dataclass(frozen=True, eq=False)
class _Evidence:
    """What the attacked model and its shadows say about members, others, and others whom no shadow saw.

    `trouble` is why there are no shadows, where they were asked for and could not be trained.
    """

    confidences: Floats
    losses: Floats
    labels: NDArray[Any]
    members: int
    shadows: Shadows = field(repr=False)
    trouble: str = ""

    @property
    def fresh(self) -> slice:
        """Other records that serve as population: the second half of the others; the first half is attacked."""
        return slice(self.members + (len(self.losses) - self.members) // 2, None)

    @property
    def attacked(self) -> slice:
        """The records that are attacked."""
        return slice(0, self.fresh.start)


def attack_model(
    model: TorchModel,
    weights: Vector,
    members: Pair,
    others: Pair,
    plan: LocalPlan,
    *,
    shadows: int = SHADOWS,
    source: RandomSource | None = None,
) -> tuple[AttackResult, ...]:
    """Return what each attack finds; half of the others are attacked, the other half are the attacker's own records.

    An attack that cannot be made, or breaks, is a result with a `failure`. `plan` is how shadow models are trained;
    with 0 `shadows` the attacks that need them are left out.
    """
    if checks.whole(shadows=shadows) == 1:
        message = "one shadow model has seen a record or has not, and attacks compare the two"
        raise InvalidArgument("shadows", f"{message}: train 2 or more, or 0 to leave such attacks out")
    evidence = _collect(model, weights, members, others, plan, shadows, or_system(source))
    made = _ATTACKS if shadows else {name: _ATTACKS[name] for name in WITHOUT_SHADOWS}
    return tuple(_try(name, attack, evidence) for name, attack in made.items())


def attack_run(
    launch: Launch, weights: Vector, *, shadows: int = SHADOWS, source: RandomSource | None = None
) -> tuple[AttackResult, ...]:
    """Attack the model of a run with its own training records as members, and those held out as others.

    Of the others at most twice as many as members are used, by chance: half of them are attacked, so that shadow models
    learn from as many records as the model did.

    Privacy: none. The result is of private records as they are: for the owner alone.
    """
    held_out = require_others(launch)
    members, origin = pool_members(launch), or_system(source)
    order = np.argsort(origin.stream("others").words(len(held_out)), kind="stable")[: 2 * len(members[0])]
    others = held_out.features[order], held_out.labels[order]
    plan = make_shadow_plan(launch, (len(members[0]) + len(order) // 2) // 2)
    return attack_model(launch.model, weights, members, others, plan, shadows=shadows, source=origin)


def require_others(launch: Launch) -> Records:
    """Return the records that were held out; refuse a run that held none out."""
    if launch.test is None:
        message = "no records were held out (data.test_fraction is 0), so there is nobody to tell members from"
        raise InvalidArgument("run", f"{message}: hold some out, and run again")
    return launch.test


def pool_members(launch: Launch) -> Pair:
    """Return the rows that all clients of a run trained on."""
    rows = [read_records(client) for client in launch.clients]
    return np.concatenate([each.features for each in rows]), np.concatenate([each.labels for each in rows])


def make_shadow_plan(launch: Launch, size: int) -> LocalPlan:
    """Return the plan of a shadow model: as many steps as a client takes in all rounds, with the clients' noise."""
    local = launch.plan.one_local
    batch_size = min(size, local.batch_size * len(launch.clients), 1024)
    return replace(local, size=size, batch_size=batch_size, steps=local.steps * launch.plan.rounds)


def _collect(
    model: TorchModel, weights: Vector, members: Pair, others: Pair, plan: LocalPlan, shadows: int, source: RandomSource
) -> _Evidence:
    order = np.argsort(source.stream("population").words(len(others[0])), kind="stable")
    both = tuple(np.concatenate([own, np.asarray(rest)[order]]) for own, rest in zip(members, others, strict=True))
    confidences, losses = ask(model, weights, (both[0], both[1]))
    evidence = _Evidence(confidences, losses, both[1], len(members[0]), _NONE)
    if not shadows:
        return evidence
    start = evidence.fresh.start
    try:
        trained = train_shadows(model, (both[0][:start], both[1][:start]), plan, shadows, source=source)
    except PrivacyError as error:  # one that diverged, say: what needs the model alone can be made
        return replace(evidence, trouble=f"no shadow models could be trained: {error}")
    asked = [ask(model, row, (both[0][start:], both[1][start:])) for row in trained.weights]
    table = Shadows(
        np.hstack([trained.is_in, np.zeros((shadows, len(losses) - start), dtype=bool)]),
        np.hstack([trained.confidences, np.stack([each[0] for each in asked])]),
        np.hstack([trained.losses, np.stack([each[1] for each in asked])]),
    )
    return replace(evidence, shadows=table)


_NONE = Shadows(np.zeros((0, 0), dtype=bool), np.zeros((0, 0)), np.zeros((0, 0)))


def _try(name: str, attack: Callable[[_Evidence], Floats], evidence: _Evidence) -> AttackResult:
    members = evidence.members
    if evidence.trouble and name not in WITHOUT_SHADOWS:
        return AttackResult(name, members, evidence.fresh.start - members, failure=evidence.trouble)
    try:
        scores = attack(evidence)
    except (PrivacyError, ValueError, FloatingPointError) as error:
        return AttackResult(name, members, evidence.fresh.start - members, failure=str(error))
    return measure(name, scores[:members], scores[members : evidence.fresh.start])


def _by_population(e: _Evidence) -> Floats:
    return attacks.population(e.losses[e.attacked], e.labels[e.attacked], e.losses[e.fresh], e.labels[e.fresh])


def _by_reference(e: _Evidence) -> Floats:
    unseen = np.where(e.shadows.is_in, np.nan, e.shadows.losses)[:, e.attacked]
    return attacks.reference(e.losses[e.attacked], np.nanmean(unseen, axis=0, keepdims=True))


def _by_shadow(e: _Evidence) -> Floats:
    own = e.attacked
    table, is_in = e.shadows.confidences[:, own], e.shadows.is_in[:, own]
    return attacks.shadow(e.confidences[own], e.labels[own], table, is_in)


def _by_lira(attack: Callable[..., Floats]) -> Callable[[_Evidence], Floats]:
    def score(e: _Evidence) -> Floats:
        own = e.attacked
        return attack(e.confidences[own], e.shadows.confidences[:, own], e.shadows.is_in[:, own])

    return score


def _by_rmia(e: _Evidence) -> Floats:
    own, fresh, table = e.attacked, e.fresh, e.shadows.confidences
    return attacks.rmia(
        e.confidences[own], table[:, own], e.shadows.is_in[:, own], e.confidences[fresh], table[:, fresh]
    )


_ATTACKS: dict[str, Callable[[_Evidence], Floats]] = {
    "loss threshold": lambda e: attacks.loss_threshold(e.losses),
    "population": _by_population,
    "reference": _by_reference,
    "shadow models": _by_shadow,
    "LiRA online": _by_lira(attacks.lira_online),
    "LiRA offline": _by_lira(attacks.lira_offline),
    "RMIA": _by_rmia,
}
