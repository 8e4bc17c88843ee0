"""The facts that everyone may know of a run: constants of its plan, values that its rounds released, the ledger's head.

Who took part, who failed or was refused, how long it took and what a single site really spent are not in here and
cannot get in: a report that is shared is made of these fields alone. Scores on records that nobody declared public stay
with the owner as well, where each carries its mark.

>>> import tempfile
>>> from dpfed.plan.plan import LocalPlan
>>> run = RunDirectory(tempfile.mkdtemp())
>>> run.begin(Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none"))
>>> facts = collect_facts(run)
>>> facts.status, facts.rounds_done, facts.sites[0].size
('running', 0, 8)
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from dpfed import __version__
from dpfed import events as ev
from dpfed.aggregation.adversaries import describe_attack
from dpfed.config.run import RunConfig
from dpfed.guarantee import Guarantee
from dpfed.ledger.rows import ACCOUNTANT
from dpfed.plan import explain
from dpfed.plan.by_round import compose, list_for_client
from dpfed.plan.local import LocalPlan
from dpfed.plan.plan import Plan
from dpfed.plan.population import Population
from dpfed.plan.rules import ROWS, SITES
from dpfed.runs import audits
from dpfed.runs.directory import NO_HEAD, NOT_PRIVATE, RunDirectory
from dpfed.runs.rounds import RoundRecord

# Where noise is added decides for which arithmetic the statement holds: torch clients add floats, the server a grid.
ARITHMETIC = {"record": "ideal arithmetic", "person": "ideal arithmetic", "client": "arithmetic on a grid"}
ALWAYS_OUTSIDE = (
    "The plan: the list of clients, their declared sizes and every other number of it are public.",
    "What was released about the same data outside the accounts of this run.",
    "The owner's view of this run (who took part, what failed, how long it took): it must not be shared.",
)
ATTESTED = (
    "Each site has charged a ledger of its own, and its charges are as the site attests them; a request that it has "
    "not answered counts as charged.",
)


@dataclass(frozen=True)
class UnitFacts:
    """The statement for one unit: of the whole plan, and ex post of the rounds so far.

    `asked` is the ε that the plan was made for. `event` is everything that is charged for the one with the largest ε,
    in the JSON form of `dpfed.events`; there is none where several sites are composed.
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
    """A site as it was declared, and the ε of the whole plan for one of its records or persons (`unit`).

    Where it noises its whole update, clip norm, noise and ε are those of the update.

    A population is one site of so many `clients`, and its name says from which one to which.
    """

    name: str
    unit: str
    size: int
    batch_size: int
    steps: int
    clip_norm: float | None
    noise_multiplier: float | None
    epsilon: float | None
    clients: int = 1


@dataclass(frozen=True)
class ScoreFacts:
    """One number about a model (None if it was not finite), and the mark that says whether a statement covers it."""

    name: str
    value: float | None
    mark: str


@dataclass(frozen=True)
class FigureFacts:
    """A figure that was released about a model (None if the noise left none), with its interval at 95 %."""

    name: str
    value: float | None
    low: float
    high: float


@dataclass(frozen=True)
class RoundFacts:
    """A round: ε so far of each unit, the scores of its model, and the figures that were released about it."""

    round: int
    epsilon: Mapping[str, float]
    scores: tuple[ScoreFacts, ...]
    released: tuple[FigureFacts, ...] = ()


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run that may be shared."""

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
    shuffled: str = ""
    audits: tuple[str, ...] = ()
    measured: str = ""


def collect_facts(run: RunDirectory, config: RunConfig | None = None) -> RunFacts:
    """Return the facts of the run in that directory that may be shared."""
    plan, records = _add_dealing(run.plan, config), run.rounds()
    by_round = tuple(read_round(record) for record in records)
    units = tuple(_collect_units(plan, records))
    return RunFacts(
        name=plan.name,
        status=run.status,
        style=plan.style,
        is_private=_is_private(records, config),
        rounds_done=len(records),
        rounds=plan.rounds,
        model="" if config is None else config.model.kind,
        algorithm=plan.algorithm.name,
        summary=explain.headline(plan),
        protection=(*explain.protection(plan), *(ATTESTED if run.is_networked and plan.charges_clients else ())),
        units=units,
        by_round=by_round,
        sites=tuple(_collect_sites(plan, units)),
        not_covered=_list_not_covered(plan, by_round),
        simulation=" ".join(filter(None, [_find_attack(records, config), explain.simulation(plan)])),
        head=_read_head(records),
        versions=list_versions(),
        shuffled=explain.shuffled(plan),
        audits=audits.read_lines(run),
        measured="; ".join([*(line.removeprefix("- ") for line in explain.measured(plan)), *_list_ranges(config)]),
    )


def _list_ranges(config: RunConfig | None) -> Iterator[str]:
    """Yield the ranges that the run released, which everyone may know."""
    if config is None or config.bounds is None or not config.has_ranges:
        return
    known = config.data.feature_bounds
    yield "the ranges are " + ", ".join(
        f"{name} {known[name][0]:g} to {known[name][1]:g}" for name in config.bounds.release
    )


def _find_attack(records: Iterable[RoundRecord], config: RunConfig | None) -> str:
    """Return the mark of a run in which clients were made to attack; an empty text for others."""
    marks = [record["simulation"] for record in records if record.get("simulation")]
    if not marks and config is not None and config.attack_sim is not None:
        marks = [describe_attack(config.attack_sim)]
    return f"{marks[-1]} The model is for no use." if marks else ""


def _add_dealing(plan: Plan, config: RunConfig | None) -> Plan:
    """Return the plan with how records were assigned to clients; for an older plan its configuration tells."""
    if plan.dealing is not None or config is None:
        return plan
    return replace(plan, dealing=SITES if config.data.dealing == SITES else ROWS)


def add_every_score(facts: RunFacts, run: RunDirectory) -> RunFacts:
    """Return the facts for the owner, who may also see scores on private records."""
    every, records = {record["round"]: record["metrics"] for record in run.owner_rounds()}, run.rounds()
    for record in records:
        if record["round"] in every:
            record["metrics"] = every[record["round"]]
    by_round = tuple(map(read_round, records))
    not_covered, audited = _list_not_covered(run.plan, by_round), audits.read_lines(run, is_owner=True)
    return replace(facts, by_round=by_round, not_covered=not_covered, audits=audited)


def read_round(record: RoundRecord) -> RoundFacts:
    """Return the facts of a round from its record in rounds.jsonl."""
    return RoundFacts(
        round=record["round"],
        epsilon={each["unit"]: each["epsilon"] for each in record["spent"]},
        scores=tuple(ScoreFacts(name, score["value"], score["mark"]) for name, score in record["metrics"].items()),
        released=tuple(_read_figures(record)),
    )


def _read_figures(record: RoundRecord) -> Iterable[FigureFacts]:
    if "released" in record:
        yield from (FigureFacts(name, **figure) for name, figure in record["released"]["figures"].items())


def list_versions() -> dict[str, str]:
    """Return the versions that made the report; that of torch is found without importing it."""
    return {
        "dpfed": __version__,
        "accountant": str(ACCOUNTANT),
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "torch": metadata.version("torch"),
    }


def _is_private(records: Iterable[RoundRecord], config: RunConfig | None) -> bool:
    is_seeded = config is not None and not config.is_private
    return not is_seeded and all(record.get("noise") != NOT_PRIVATE for record in records)


def _collect_units(plan: Plan, records: list[RoundRecord]) -> Iterable[UnitFacts]:
    asked = {promise.unit: promise for promise in plan.guarantees}
    so_far = {each["unit"]: Guarantee(**each) for each in records[-1]["spent"]} if records else {}
    for unit, known in (asked | so_far).items():
        promised = next(each for each in plan.statements(known.delta) if each.unit == unit)
        event = _find_event(plan, promised)
        yield UnitFacts(
            unit=unit,
            adjacency=promised.adjacency,
            delta=promised.delta,
            asked=asked[unit].epsilon if unit in asked else None,
            promised=promised.epsilon,
            so_far=so_far[unit].epsilon if unit in so_far else 0.0,
            sentence=explain.sentence(plan, promised),
            arithmetic=ARITHMETIC[unit],
            event=None if event is None else event.to_dict(),
        )


def _find_event(plan: Plan, promised: Guarantee) -> ev.Event | None:
    """Return everything that the plan charges for the one with the largest ε."""
    if promised.unit == "client":
        return compose(list_for_client(plan))
    if plan.max_sites_per_person > 1:
        return None
    return compose(plan.local_charges(plan.worst(promised.delta)))


def _collect_sites(plan: Plan, units: Iterable[UnitFacts]) -> Iterable[SiteFacts]:
    paying = "client" if plan.noises_updates else plan.local_unit
    delta = next((each.delta for each in units if each.unit == paying), None)
    if isinstance(plan.local, Population):
        yield replace(_site(str(plan.local), plan.local.each, None), clients=len(plan.local))
        return
    known: dict[LocalPlan, float | None] = {}
    for name, part in plan.local.items():
        if part not in known:
            known[part] = None if delta is None else plan.epsilon(name, delta)
        yield _add_update_noise(plan, _site(name, part, known[part]))


def _add_update_noise(plan: Plan, site: SiteFacts) -> SiteFacts:
    """Return the site with the clip norm and noise of its whole update, where it adds some."""
    if plan.client is None or not plan.noises_updates:
        return site
    return replace(site, clip_norm=plan.client.clip_norm, noise_multiplier=plan.client.noise_multiplier)


def _site(name: str, part: LocalPlan, epsilon: float | None) -> SiteFacts:
    return SiteFacts(
        name=name,
        unit=part.unit,
        size=part.size,
        batch_size=part.batch_size,
        steps=part.steps,
        clip_norm=None if part.clip_norm == math.inf else part.clip_norm,
        noise_multiplier=part.noise_multiplier,
        epsilon=epsilon,
    )


def _list_not_covered(plan: Plan, by_round: Iterable[RoundFacts]) -> tuple[str, ...]:
    marked = dict.fromkeys(score.name for each in by_round for score in each.scores if score.mark)
    scores = [f"{name}: measured without noise on records that nobody declared public." for name in marked]
    return (*scores, *(ALWAYS_OUTSIDE if plan.units else ()))


def _read_head(records: list[RoundRecord]) -> str:
    """Return the ledger's head after the last round; an empty text if there is none, or if a secret cohort hides it."""
    head = records[-1]["head"] if records else None
    return "" if head in (None, NO_HEAD) else str(head)
