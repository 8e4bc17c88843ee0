"""What a federated run will do, as a frozen value: the object that is executed is the object that is charged.

A `LocalPlan` is one client's part of a round, a `Plan` all clients and rounds together. Who is protected is its
style: `sample` protects a record or a person (each client adds noise), `user` a whole client (the server adds noise),
`hybrid` both, in two statements that are never added up. `calibrated` finds the least noise, `charges` says what a
ledger must reserve before the first round, `explain` says it all in words.

>>> from dpfed.guarantee import Guarantee
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, learning_rate=0.5, clip_norm=1.0)
>>> plan = Plan("study", rounds=10, local={"ward": ward}).calibrated(Guarantee(epsilon=4.0, delta=1e-5))
>>> round(plan.local["ward"].noise_multiplier, 3)
1.145
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from dpfed import checks, plan_costs, plan_json, plan_rules, plan_words
from dpfed import events as ev
from dpfed.accounting.questions import epsilon as epsilon_of
from dpfed.adaptive import AdaptiveClip, least_noise
from dpfed.aggregation.rules import Mean, Rule
from dpfed.algorithm import Algorithm
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.client_plan import ClientPlan
from dpfed.cohort import All, Cohort, FixedCohort, PoissonCohort, likely_participations
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.local_plan import RECORD, LocalPlan
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.plan_rules import CLIENT_TIMEOUT, UNITS_OF_STYLE
from dpfed.randomness import RandomSource
from dpfed.server_release import Released, ServerRelease

__all__ = [
    "AdaptiveClip",
    "Algorithm",
    "All",
    "ClientPlan",
    "FixedCohort",
    "LocalPlan",
    "Mean",
    "Participant",
    "Plan",
    "PoissonCohort",
    "Released",
    "ServerRelease",
]

CLIPPED_TIMES = 1e6  # an update so many clip norms long is nonsense
UNCLIPPED_MEAN = 1e3  # as is one whose numbers have that root mean square, where nothing is clipped


class Participant(Protocol):
    """Whoever takes part: a name in the plan and the account that pays for it."""

    @property
    def name(self) -> str:
        """The name in the plan."""

    @property
    def account(self) -> str:
        """The ledger's account of this participant's data."""


@dataclass(frozen=True)
class Plan:
    """All rounds of a run, fixed before its first release; `name` is the run's name in the ledger.

    Updates are averaged, equally or by declared size, over the *expected* cohort, so who fails or is exhausted
    contributes zero and the denominator stays public. A client is asked in at most `participations` rounds.
    `spare_rounds` more charges are reserved for rounds that a crash makes do again.

    An update longer than `largest_norm` is turned away, and a client that takes longer than `client_timeout` seconds
    has failed: both are public constants. `dealing` says how clients came to their records (`plan_rules.DEALINGS`); it
    is None where the plan does not know.

    `aggregation` is the rule by which the updates of a round become one.

    `server_learning_rate` is handed to the algorithm unless it is 1, which leaves the rate to the algorithm's own
    parameters.

    Privacy: `guarantee` is that of one record or person (`local_unit`, `record_adjacency`), in the worst site, or in
    any `max_sites_per_person` sites together where a person may be in several. Each client's account is charged
    ``local.event`` for every round it takes part in; drawing cohorts gains nothing there. `client_guarantee` is that
    of one client; a cohort amplifies it only if it is secret, otherwise every participation is charged in full. The
    two are statements about different units.
    """

    name: str
    rounds: int
    local: Mapping[str, LocalPlan]
    server_learning_rate: float = 1.0
    guarantee: Guarantee | None = None
    _: KW_ONLY
    style: str = "sample"
    cohort: Cohort = field(default_factory=All)
    client: ClientPlan | None = None
    client_guarantee: Guarantee | None = None
    weighting: str = "declared"
    algorithm: Algorithm = field(default_factory=Algorithm)
    max_participations: int | None = None
    spare_rounds: int = 0
    max_sites_per_person: int = 1
    minimum_cohort: int = 1
    client_timeout: float = CLIENT_TIMEOUT
    max_update_norm: float | None = None
    dealing: str | None = None
    aggregation: Rule = field(default_factory=Mean)

    def __post_init__(self) -> None:
        plan_rules.require_sound(self)
        for name in ("rounds", "max_sites_per_person", "minimum_cohort"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("server_learning_rate", "client_timeout"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "local", MappingProxyType(dict(self.local)))
        for guarantee in self.guarantees:
            plan_rules.require_kept(self, guarantee)

    # ---- who takes part, and with what weight ----

    @cached_property
    def participations(self) -> int:
        """In how many rounds a client is asked at most: by default a number that few cohorts would exceed.

        One, where the server's noise is a tree's: more must be declared.
        """
        if self.max_participations is not None:
            return self.max_participations
        if self.client is not None and self.client.tree is not None:
            return 1
        chance = self.cohort.chance(len(self.local))
        if chance == 1 or plan_rules.forbids_a_cap(self):
            return self.rounds
        return likely_participations(self.rounds, chance)

    @property
    def weights(self) -> dict[str, float]:
        """What each client's update is multiplied by in the average of a round: its share of the expected cohort."""
        parts = self._parts()
        scale = len(parts) / self.cohort.expected(len(parts)) / sum(parts.values())
        return {name: float(scale * part) for name, part in parts.items()}

    def largest_norm(self, size: int) -> float:
        """Return the norm above which an update of a model of so many numbers is nonsense.

        It is declared, or a public multiple of what clip norm and steps allow; where nothing is clipped, that of
        numbers which no ordinary model has. It takes the place of no clip norm.
        """
        if self.largest_mean is not None:
            return min(self.largest_mean * math.sqrt(size), plan_rules.MOST_NORM)
        if self.max_update_norm is not None:
            return self.max_update_norm
        return min(CLIPPED_TIMES * max(1.0, self._update_clip) * self._reach, plan_rules.MOST_NORM)

    @property
    def largest_mean(self) -> float | None:
        """The root mean square above which the numbers of an update are nonsense; None where a norm is known."""
        is_known = self.max_update_norm is not None or self._update_clip < math.inf
        return None if is_known else UNCLIPPED_MEAN * self._reach

    @cached_property
    def _update_clip(self) -> float:
        return self.client.clip_norm if self.client else max(part.clip_norm for part in self.local.values())

    @cached_property
    def _reach(self) -> float:
        """How far steps of length 1 lead, and 1 at least."""
        return max(max(1.0, part.learning_rate * part.steps) for part in self.local.values())

    def draw(self, source: RandomSource) -> tuple[str, ...]:
        """The cohort of a round, drawn over all clients of the plan."""
        return self.cohort.draw(tuple(self.local), source)

    def is_enough(self, drawn: int) -> bool:
        """Whether a cohort of so many *drawn* clients is used; otherwise the round releases noise around zero."""
        return drawn >= self.minimum_cohort

    @cached_property
    def is_secret(self) -> bool:
        """Whether who takes part in a round is drawn, and kept secret by the server."""
        return self.cohort.hides(len(self.local))

    # ---- what is charged ----

    @property
    def units(self) -> tuple[str, ...]:
        """Whom the style protects: record or person, client, both or nobody."""
        return tuple(self.local_unit if unit == RECORD else unit for unit in UNITS_OF_STYLE[self.style])

    @property
    def one_local(self) -> LocalPlan:
        """The plan of one of the clients, for what all have in common."""
        return next(iter(self.local.values()))

    @property
    def local_unit(self) -> str:
        """What is clipped at the clients: a record, or all rows of a person."""
        return self.one_local.unit

    @property
    def charges_clients(self) -> bool:
        """Whether clients add noise, so that their own accounts pay."""
        return RECORD in UNITS_OF_STYLE[self.style]

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The promises that were asked for, one per unit."""
        return tuple(promise for promise in (self.guarantee, self.client_guarantee) if promise is not None)

    @property
    def record_charges(self) -> int:
        """How often a client's account may be charged its local event."""
        return self.participations + self.spare_rounds

    @property
    def client_charges(self) -> int:
        """How often the study's account may be charged the client event.

        Every round, if the cohort is secret; otherwise as often as any one client takes part. Once, for a tree.
        """
        if self._client.tree:
            return 1 + self.spare_rounds
        return (self.rounds if self.is_secret else self.participations) + self.spare_rounds

    @property
    def client_event(self) -> ev.Event:
        """What one charge of the study's account stands for: a round, or all rounds where the noise is a tree's."""
        if self._client.tree:
            return self._client.tree.event(self._client.noise, self.rounds, self.participations)
        return self.cohort.event(self._client.event, len(self.local))

    @property
    def record_adjacency(self) -> str:
        """The neighbouring relation of the statement about records: that of every client's plan."""
        return self.one_local.adjacency

    @property
    def client_adjacency(self) -> str:
        """The neighbouring relation of the statement about clients."""
        if self.client_guarantee is not None:
            return self.client_guarantee.adjacency
        return REPLACE_ONE if isinstance(self.cohort, FixedCohort) and self.is_secret else ADD_REMOVE

    def charges(self, clients: Iterable[Participant], study: str | None = None) -> dict[str, dict[ev.Event, int]]:
        """What the whole run takes from each account at most.

        A client's account is charged its event for every round it takes part in; `study` names the account of
        unit client that pays for what the server releases, in styles `user` and `hybrid`.
        """
        accounts = {client.name: client.account for client in clients}
        plan_rules.require_accounts(self, accounts, study)
        charges = {account: self.local_charges(name) for name, account in accounts.items() if self.charges_clients}
        return charges if study is None else {**charges, study: self.study_charges()}

    def local_charges(self, name: str) -> dict[ev.Event, int]:
        """Return what the whole run takes from that client's account at most: nothing where no client adds noise."""
        return {self.local[name].event: self.record_charges} if self.charges_clients else {}

    def study_charges(self) -> dict[ev.Event, int]:
        """Return what the whole run takes from the study's account at most: nothing where the server adds no noise."""
        return {self.client_event: self.client_charges} if "client" in self.units else {}

    def client_commits(self, taken: Mapping[str, int], cohort: Collection[str], committed: int, lost: int = 0) -> int:
        """How many client events a round commits, if clients took part so often before and so many are committed.

        One if the cohort is secret. Otherwise the statement is that of the client who took part most, so one when
        somebody takes part more often than is paid for, and none else. In a round that was `lost` to a crash
        anybody may have taken part. Not for a tree, which is committed when it is begun.
        """
        if self.is_secret:
            return 1
        after = max((taken.get(name, 0) + 1 + lost for name in cohort), default=0)
        return max(after - committed, 0)

    # ---- what it costs ----

    def epsilon(self, client: str, delta: float) -> float:
        """The exact ε of all rounds for one record or person of that client, rounded up."""
        return self.local[client].epsilon(delta, self.record_charges)

    def record_epsilon(self, delta: float) -> float:
        """The ε of all rounds for one record or person in the worst site, or the worst few that somebody may be in."""
        relation = self.record_adjacency
        return plan_costs.worst_together(self._record_events(), delta, self.max_sites_per_person, relation)

    def client_epsilon(self, delta: float) -> float:
        """The ε of all rounds for one client, rounded up."""
        event = ev.Repeated(self.client_event, self.client_charges)
        return epsilon_of(event, delta, adjacency=self.client_adjacency)

    def statements(self, delta: float | None = None) -> tuple[Guarantee, ...]:
        """What the plan promises: one statement per unit, at that δ or at those that were asked for."""
        costs = {self.local_unit: self.record_epsilon, "client": self.client_epsilon}
        relations = {self.local_unit: self.record_adjacency, "client": self.client_adjacency}
        found = []
        for unit in self.units:
            at = self._delta(unit, delta)
            found.append(Guarantee(costs[unit](at), at, unit, relations[unit]))
        return tuple(found)

    def worst(self, delta: float | None = None) -> str:
        """The client whose records pay most."""
        self._require_records()
        return plan_costs.worst(self._record_events(), self._delta(self.local_unit, delta), self.record_adjacency)[0]

    def binding(self, delta: float | None = None) -> str:
        """The client that asks for the most noise: at one and the same noise its records would pay most."""
        self._require_records()
        noise = max((part.noise_multiplier or 0.0 for part in self.local.values()), default=0.0) or 1.0
        alike = {
            name: replace(part, noise_multiplier=noise, adaptive=None, delta=None) for name, part in self.local.items()
        }
        at = self._delta(self.local_unit, delta)
        return replace(self, local=alike, guarantee=None, client_guarantee=None).worst(at)

    def calibrated(self, *guarantees: Guarantee, noise: str = "own") -> Plan:
        """The plan with the least noise at which all its rounds together keep the guarantees, one per unit.

        Every site gets the noise that it needs itself, or with noise="shared" all get that of the binding one.
        """
        asked = plan_rules.by_unit(self, guarantees, noise)
        changed = self
        if (promise := asked.get(self.local_unit)) is not None:
            search = plan_costs.calibrated_alike if noise == "shared" else plan_costs.calibrated_local
            parts = search(self.local, promise, self.record_charges, self.max_sites_per_person)
            changed = replace(changed, local=parts, guarantee=promise)
        return changed._with_server_noise(asked["client"]) if "client" in asked else changed

    # ---- what the server does ----

    @property
    def server(self) -> ServerRelease:
        """What the server does to the updates of a round in styles `user` and `hybrid`."""
        return ServerRelease(self._client, self._parts(), self.cohort.expected(len(self.local)), self.aggregation)

    @property
    def sensitivity(self) -> Sensitivity:
        """How far one client moves, at most, the average of a round before noise."""
        return self.server.sensitivity(self.client_adjacency)

    # ---- words and files ----

    def explain(self) -> str:
        """The plan in words (Markdown): what is protected, from whom, who must be trusted; every number is public."""
        return plan_words.explained(self)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return plan_json.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        return plan_json.loads(text, cls)

    @property
    def _client(self) -> ClientPlan:
        if self.client is None:
            message = f"style {self.style} adds no noise at the server: choose user or hybrid to protect a client"
            raise InvalidArgument("style", message)
        return self.client

    def _parts(self) -> dict[str, int]:
        return {name: part.size if self.weighting == "declared" else 1 for name, part in self.local.items()}

    def _record_events(self) -> dict[str, ev.Event]:
        return plan_costs.charged(self.local, dict.fromkeys(self.local, self.record_charges))

    def _with_server_noise(self, guarantee: Guarantee) -> Plan:
        population, times = len(self.local), self.client_charges

        def whole_run(noised_sum: ev.Event) -> ev.Event:
            tree = self._client.tree
            if tree and isinstance(noised_sum, ev.Gaussian):
                return ev.Repeated(tree.event(noised_sum.noise_multiplier, self.rounds, self.participations), times)
            return ev.Repeated(self.cohort.event(noised_sum, population), times)

        found = least_noise(guarantee, whole_run, self._client.adaptive)
        return replace(self, client=replace(self._client, noise_multiplier=found), client_guarantee=guarantee)

    def _delta(self, unit: str, delta: float | None) -> float:
        promise = self.client_guarantee if unit == "client" else self.guarantee
        if delta is None and promise is None:
            raise InvalidArgument("delta", f"no guarantee was asked for a {unit}, so say at which delta")
        return promise.delta if delta is None and promise is not None else checks.positive_probability(delta=delta)

    def _require_records(self) -> None:
        if not self.charges_clients:
            raise InvalidArgument(
                "style", f"style {self.style} protects no {self.local_unit}, so no site's records pay most"
            )
