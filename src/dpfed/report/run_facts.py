"""What everyone may know of a run: constants of its plan, what its rounds released, and the ledger's head.

Who took part, who failed or was turned away, how long it took and what a single site really spent are not in here and
cannot get in: a report that is shared is made of these fields alone. So do scores on records that nobody declared
public: they stay with the owner, where each carries its mark.

>>> import tempfile
>>> from dpfed.plan import LocalPlan
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.begin(Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none"))
>>> facts = shareable(run)
>>> facts.status, facts.rounds_done, facts.sites[0].size
('running', 0, 8)
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from dpfed import __version__, plan_words
from dpfed import events as ev
from dpfed.config.run import RunConfig
from dpfed.guarantee import Guarantee
from dpfed.ledger.rows import ACCOUNTANT
from dpfed.local_plan import LocalPlan
from dpfed.plan import Plan
from dpfed.plan_rules import ROWS, SITES
from dpfed.runs import NO_HEAD, NOT_PRIVATE, RunDirectory

# What adds the noise decides what the statement holds for: torch clients add floats, the server works on a grid.
ARITHMETIC = {"record": "ideal arithmetic", "person": "ideal arithmetic", "client": "arithmetic on a grid"}
ALWAYS_OUTSIDE = (
    "The plan: the list of clients, their declared sizes and every other number of it are public.",
    "What was released about the same data outside the accounts of this run.",
    "The owner's view of this run (who took part, what failed, how long it took): it must not be shared.",
)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class UnitFacts:
    """The statement for one unit: of the whole plan, and ex post of the rounds so far.

    `asked` is the ε that the plan was made for. `event` is all that is charged for whoever pays most, in the JSON form
    of `dpfed.events`; there is none where several sites are composed.
    """

    unit: str
    adjacency: str
    delta: float
    asked: float | None
    promised: float
    so_far: float
    sentence: str
    arithmetic: str
    event: Mapping[str, Any] | None


@dataclass(frozen=True)
class SiteFacts:
    """A site as it was declared, and the ε of the whole plan for one of its records or persons (`unit`)."""

    name: str
    unit: str
    size: int
    batch_size: int
    steps: int
    clip_norm: float | None
    noise_multiplier: float | None
    epsilon: float | None


@dataclass(frozen=True)
class ScoreFacts:
    """One number about a model (None if it was not finite), and the mark that says whether a statement covers it."""

    name: str
    value: float | None
    mark: str


@dataclass(frozen=True)
class RoundFacts:
    """A round: ε so far of each unit, and the scores of its model."""

    round: int
    epsilon: Mapping[str, float]
    scores: tuple[ScoreFacts, ...]


@dataclass(frozen=True)
class RunFacts:
    """A run, as it may be shared."""

    name: str
    status: str
    style: str
    is_private: bool
    rounds_done: int
    rounds: int
    model: str
    algorithm: str
    summary: str
    protection: tuple[str, ...]
    units: tuple[UnitFacts, ...]
    by_round: tuple[RoundFacts, ...]
    sites: tuple[SiteFacts, ...]
    not_covered: tuple[str, ...]
    simulation: str
    head: str
    versions: Mapping[str, str]


def shareable(run: RunDirectory, config: RunConfig | None = None) -> RunFacts:
    """What may be shared of the run in that directory."""
    plan, records = _known(run.plan, config), run.rounds()
    by_round = tuple(round_facts(record) for record in records)
    units = tuple(_units(plan, records))
    return RunFacts(
        name=plan.name,
        status=run.status,
        style=plan.style,
        is_private=_is_private(records, config),
        rounds_done=len(records),
        rounds=plan.rounds,
        model="" if config is None else config.model.kind,
        algorithm=plan.algorithm.name,
        summary=plan_words.headline(plan),
        protection=tuple(plan_words.protection(plan)),
        units=units,
        by_round=by_round,
        sites=tuple(_sites(plan, units)),
        not_covered=_not_covered(plan, by_round),
        simulation=plan_words.simulation(plan),
        head=_head(records),
        versions=versions(),
    )


def _known(plan: Plan, config: RunConfig | None) -> Plan:
    """Return the plan with how its clients came to their records: an older one does not say, its configuration does."""
    if plan.dealing is not None or config is None:
        return plan
    return replace(plan, dealing=SITES if config.data.dealing == SITES else ROWS)


def with_every_score(facts: RunFacts, run: RunDirectory) -> RunFacts:
    """The facts for the owner, who may see scores on private records too."""
    every = {record["round"]: {"metrics": record["metrics"]} for record in run.owner_rounds()}
    by_round = tuple(round_facts(record | every.get(record["round"], {})) for record in run.rounds())
    return replace(facts, by_round=by_round, not_covered=_not_covered(run.plan, by_round))


def round_facts(record: Record) -> RoundFacts:
    """A round, of its line in rounds.jsonl."""
    return RoundFacts(
        round=record["round"],
        epsilon={each["unit"]: each["epsilon"] for each in record["spent"]},
        scores=tuple(ScoreFacts(name, score["value"], score["mark"]) for name, score in record["metrics"].items()),
    )


def versions() -> dict[str, str]:
    """What made the report; torch is asked for its version without being loaded."""
    return {
        "dpfed": __version__,
        "accountant": str(ACCOUNTANT),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "torch": metadata.version("torch"),
    }


def _is_private(records: Iterable[Record], config: RunConfig | None) -> bool:
    is_seeded = config is not None and not config.is_private
    return not is_seeded and all(record.get("noise") != NOT_PRIVATE for record in records)


def _units(plan: Plan, records: list[dict[str, Any]]) -> Iterable[UnitFacts]:
    asked = {promise.unit: promise for promise in plan.guarantees}
    so_far = {each["unit"]: Guarantee(**each) for each in records[-1]["spent"]} if records else {}
    for unit, known in (asked | so_far).items():
        promised = next(each for each in plan.statements(known.delta) if each.unit == unit)
        event = _event(plan, promised)
        yield UnitFacts(
            unit=unit,
            adjacency=promised.adjacency,
            delta=promised.delta,
            asked=asked[unit].epsilon if unit in asked else None,
            promised=promised.epsilon,
            so_far=so_far[unit].epsilon if unit in so_far else 0.0,
            sentence=plan_words.sentence(plan, promised),
            arithmetic=ARITHMETIC[unit],
            event=None if event is None else event.to_dict(),
        )


def _event(plan: Plan, promised: Guarantee) -> ev.Event | None:
    """Everything the plan charges for the one who pays most."""
    if promised.unit == "client":
        return ev.Repeated(plan.client_event, plan.client_charges)
    if plan.max_sites_per_person > 1:
        return None
    return ev.Repeated(plan.local[plan.worst(promised.delta)].event, plan.record_charges)


def _sites(plan: Plan, units: Iterable[UnitFacts]) -> Iterable[SiteFacts]:
    delta = next((each.delta for each in units if each.unit == plan.local_unit), None)
    known: dict[LocalPlan, float | None] = {}
    for name, part in plan.local.items():
        if part not in known:
            known[part] = None if delta is None else plan.epsilon(name, delta)
        yield SiteFacts(
            name=name,
            unit=part.unit,
            size=part.size,
            batch_size=part.batch_size,
            steps=part.steps,
            clip_norm=None if part.clip_norm == math.inf else part.clip_norm,
            noise_multiplier=part.noise_multiplier,
            epsilon=known[part],
        )


def _not_covered(plan: Plan, by_round: Iterable[RoundFacts]) -> tuple[str, ...]:
    marked = dict.fromkeys(score.name for each in by_round for score in each.scores if score.mark)
    scores = [f"{name}: measured without noise on records that nobody declared public." for name in marked]
    return (*scores, *(ALWAYS_OUTSIDE if plan.units else ()))


def _head(records: list[dict[str, Any]]) -> str:
    """The ledger's head after the last round; nothing where there is none, or where a secret cohort shows none."""
    head = records[-1]["head"] if records else None
    return "" if head in (None, NO_HEAD) else str(head)
