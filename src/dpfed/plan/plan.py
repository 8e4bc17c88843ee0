"""What a federated run will do, as a frozen value: the object that is executed is the object that is charged.

A `LocalPlan` is one client's part of a round, a `Plan` all clients and rounds together. Who is protected is its
style: `sample` protects a record or a person (each client adds noise in its steps), `user` a whole client (the server
adds noise), `hybrid` both, in two statements that are never added up, and `local` a whole client from the server too
(each client adds noise to its update). `calibrated` finds the least noise, `charges` says what a
ledger must reserve before the first round, `explain` says it all in words.

>>> from dpfed.guarantee import Guarantee
>>> ward = LocalPlan(size=100, batch_size=10, steps=5, learning_rate=0.5, clip_norm=1.0)
>>> plan = Plan("study", rounds=10, local={"ward": ward}).calibrated(Guarantee(epsilon=4.0, delta=1e-5))
>>> round(plan.local["ward"].noise_multiplier, 3)
1.145
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any

from dpfed import events as ev
from dpfed.aggregation.quarantine import Quarantine
from dpfed.aggregation.rules import Mean, Rule
from dpfed.arrays import Floats
from dpfed.checks import ADD_REMOVE, REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.guarantee import CLIENT, LOCAL, RECORD, UNITS_OF_STYLE, Guarantee
from dpfed.mechanisms.sensitivity import Sensitivity
from dpfed.plan import by_round, costs, explain, files, limits, rules
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.algorithm import Algorithm
from dpfed.plan.client import ClientPlan
from dpfed.plan.cohort import All, Cohort, FixedCohort, Participant, PoissonCohort, likely_participations
from dpfed.plan.local import LocalPlan
from dpfed.plan.measure import Measurement
from dpfed.plan.population import Population, kinds_of, names_of, parts_of, weights_of
from dpfed.plan.ranges import Ranges
from dpfed.plan.rules import CLIENT_TIMEOUT
from dpfed.plan.schedule import find_factor, read_factors, reserve_rounds
from dpfed.plan.server import ClientRelease, Released, ServerRelease
from dpfed.randomness import RandomSource

__all__ = [
    "AdaptiveClip",
    "Algorithm",
    "All",
    "ClientPlan",
    "ClientRelease",
    "FixedCohort",
    "LocalPlan",
    "Mean",
    "Plan",
    "PoissonCohort",
    "Population",
    "Quarantine",
    "Released",
    "ServerRelease",
]


@dataclass(frozen=True)
class Plan:
    """All rounds of a run, fixed before its first release; `name` is the run's name in the ledger.

    Updates are averaged, equally or by declared size, over the *expected* cohort, so who fails or is exhausted
    contributes zero and the denominator stays public. A client is asked in at most `participations` rounds. `local`
    is a dict of clients by name, or a `Population` of clients that are alike.
    `spare_rounds` more charges are reserved for rounds that a crash makes do again.

    An update longer than `largest_norm` is refused, and a client that takes longer than `client_timeout` seconds
    has failed: both are public constants. `dealing` says how clients came to their records (`plan.rules.DEALINGS`); it
    is None where the plan does not know.

    `aggregation` is the rule by which the updates of a round become one, `quarantine` who no longer counts in it (see
    `plan.robust`). `noise_schedule` has a public factor for each
    round, by which all its noise is multiplied (`in_round`); `plan.schedule` proves what is reserved for it.
    `measurement` is what is released about the model (`plan.measuring`), `ranges` about columns before (`plan.ranges`).
    `server_learning_rate` is handed to the algorithm unless it is 1, which leaves the rate to its own parameters.

    Privacy: `guarantee` is that of one record or person (`local_unit`, `record_adjacency`), in the worst site, or in
    any `max_sites_per_person` sites together where a person may be in several. Each client's account is charged
    ``local_event`` of the round (`in_round`) for every one it takes part in; drawing cohorts gains nothing there.
    `client_guarantee` is that of one client; a cohort amplifies it only if it is secret, otherwise every participation
    is charged in full. The two are statements about different units. In style `local` each client's account is charged
    ``client.event`` for every participation in full, under replace_one, whatever the cohort.
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
    noise_schedule: tuple[float, ...] | None = None
    quarantine: Quarantine | None = None
    measurement: Measurement | None = None
    ranges: Ranges | None = None

    def __post_init__(self) -> None:
        if self.noise_schedule is not None:
            object.__setattr__(self, "noise_schedule", read_factors(self.noise_schedule))
        rules.require_sound(self)
        for name in ("rounds", "max_sites_per_person", "minimum_cohort"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("server_learning_rate", "client_timeout"):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not isinstance(self.local, Population):
            object.__setattr__(self, "local", MappingProxyType(dict(self.local)))
        for guarantee in self.guarantees:
            rules.require_kept(self, guarantee)

    # ---- who takes part, and with what weight ----

    @cached_property
    def participations(self) -> int:
        """The most rounds a client is asked in: by default a number that few cohorts exceed, and one with a tree."""
        if self.max_participations is not None:
            return self.max_participations
        if self.client is not None and self.client.tree is not None:
            return 1
        chance = self.cohort.chance(len(self.local))
        if chance == 1 or rules.forbids_a_cap(self):
            return self.rounds
        return likely_participations(self.rounds, chance)

    @property
    def weights(self) -> dict[str, float]:
        """Each client's factor in the average of a round: its share of the expected cohort."""
        return weights_of(self.local, self.weighting, self._expected, self.local)

    def combined(self, updates: Mapping[str, Floats], size: int, **released: Any) -> Floats:
        """Return the aggregate of a round from updates of that size that are released already: post-processing."""
        weights = weights_of(self.local, self.weighting, self._expected, updates)
        return self.aggregation.combined(updates, size, weights, **released)

    def largest_norm(self, size: int) -> float:
        """Return the norm above which an update of a model of that size is refused (`plan.limits`)."""
        return limits.find_largest_norm(self, size)

    @property
    def largest_mean(self) -> float | None:
        """The root mean square above which an update is refused; None where a norm is known."""
        return limits.find_largest_mean(self)

    def draw(self, source: RandomSource) -> tuple[str, ...]:
        """Draw the cohort of a round from all clients of the plan."""
        return self.cohort.draw(names_of(self.local), source)

    def is_enough(self, drawn: int) -> bool:
        """Return whether a cohort of that many *drawn* clients is used; else the round releases noise around zero."""
        return drawn >= self.minimum_cohort

    @cached_property
    def is_secret(self) -> bool:
        """Whether who takes part in a round is drawn, and kept secret by the server."""
        return self.cohort.hides(len(self.local))

    # ---- what is charged ----

    @property
    def units(self) -> tuple[str, ...]:
        """The units that the style protects: record or person, client, both or none."""
        return tuple(self.local_unit if unit == RECORD else unit for unit in UNITS_OF_STYLE[self.style])

    @property
    def one_local(self) -> LocalPlan:
        """The plan of one of the clients, for what all have in common."""
        return self.kinds[0]

    @cached_property
    def kinds(self) -> tuple[LocalPlan, ...]:
        """The clients' plans without repetition: one for a population, whatever its count."""
        return kinds_of(self.local)

    @property
    def local_unit(self) -> str:
        """The unit that is clipped at the clients: a record, or all rows of a person."""
        return self.one_local.unit

    @property
    def noises_steps(self) -> bool:
        """Whether clients add noise in each of their steps, for one record or person."""
        return RECORD in UNITS_OF_STYLE[self.style]

    @property
    def noises_updates(self) -> bool:
        """Whether each client adds noise to its whole update, before it leaves."""
        return self.style == LOCAL

    @property
    def server_noises(self) -> bool:
        """Whether the server adds noise to the sum of updates, so that the study's account pays."""
        return CLIENT in UNITS_OF_STYLE[self.style] and not self.noises_updates

    @property
    def charges_clients(self) -> bool:
        """Whether clients add noise, so that their own accounts pay."""
        return self.noises_steps or self.noises_updates

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """The promises that were asked for, one per unit."""
        return tuple(promise for promise in (self.guarantee, self.client_guarantee) if promise is not None)

    @property
    def record_charges(self) -> int:
        """The most charges of a client's local event to its account."""
        return self.participations + self.spare_rounds

    @property
    def client_charges(self) -> int:
        """The most charges of a client event: to the study's account, or to each client's own in style `local`.

        Every round, if the server adds noise for a secret cohort; otherwise as often as any one client takes part.
        Once, for a tree. Every round too where the server's noise follows a schedule: who took part most often need
        not be who pays most.
        """
        if self.noises_updates:
            return self.record_charges
        if self._client.tree:
            return 1 + self.spare_rounds
        return (self.rounds if by_round.pays_all(self) else self.participations) + self.spare_rounds

    @property
    def client_event(self) -> ev.Event:
        """The event behind one charge for a client: a round, or all rounds where the noise is a tree's.

        One participation in full where each client adds the noise: no cohort amplifies what it sends itself.
        """
        by_round.require_alike(self, "client_event")
        if self.noises_updates:
            return self.client_release.event
        if self._client.tree:
            return self._client.tree.event(self._client.noise, self.rounds, self.participations)
        return self.cohort.event(self._client.event, len(self.local))

    @cached_property
    def record_factors(self) -> Mapping[float, int]:
        """How many rounds of each factor of noise are reserved for a client's records."""
        return reserve_rounds(self.noise_schedule, self.participations, self.spare_rounds)

    @cached_property
    def client_factors(self) -> Mapping[float, int]:
        """How many rounds of each factor of noise are reserved for one client."""
        return reserve_rounds(self.noise_schedule, self.client_charges - self.spare_rounds, self.spare_rounds)

    def in_round(self, number: int) -> Plan:
        """Return what that round does, as a plan whose noise is the round's own; this plan if all are alike.

        Privacy: what it says is what is executed and charged in that round. It promises nothing about all rounds.
        """
        return by_round.find_round(self, number)

    def factor(self, number: int) -> float:
        """Return by how much the noise of that round is multiplied."""
        return find_factor(self.noise_schedule, number)

    @property
    def record_adjacency(self) -> str:
        """The neighbouring relation of the statement about records: that of every client's plan."""
        return self.one_local.adjacency

    @property
    def client_adjacency(self) -> str:
        """The neighbouring relation of the statement about clients; replace_one where they noise their own updates."""
        if self.noises_updates:
            return REPLACE_ONE
        if self.client_guarantee is not None:
            return self.client_guarantee.adjacency
        return REPLACE_ONE if isinstance(self.cohort, FixedCohort) and self.is_secret else ADD_REMOVE

    def charges(self, clients: Iterable[Participant], study: str | None = None) -> dict[str, dict[ev.Event, int]]:
        """Return the most that the whole run takes from each account.

        A client's account is charged its event for every round it takes part in; `study` names the account of
        unit client that pays for what the server releases, in styles `user` and `hybrid`. Clients of a population
        have no accounts, and are not given.
        """
        accounts = {client.name: client.account for client in clients}
        rules.require_accounts(self, accounts, study)
        charges = {account: self.local_charges(name) for name, account in accounts.items() if self.charges_clients}
        return charges if study is None else {**charges, study: self.study_charges()}

    def local_charges(self, name: str) -> dict[ev.Event, int]:
        """Return the most that the whole run takes from that client's account: nothing where no client adds noise."""
        return by_round.list_client_all(self, name) if self.charges_clients else {}

    def local_event(self, name: str) -> ev.Event:
        """Return the event of one participation, for which that client's account is charged."""
        by_round.require_alike(self, "local_event")
        return by_round.find_local_event(self, name, 1.0)

    def study_charges(self) -> dict[ev.Event, int]:
        """Return the most that the run takes from the study's account: nothing where the server adds no noise."""
        return by_round.list_for_client(self) if self.server_noises else {}

    def client_commits(self, taken: Mapping[str, int], cohort: Collection[str], committed: int, lost: int = 0) -> int:
        """Return how many client events a round commits, given how often clients took part and what is committed.

        One if the cohort is secret, or if noise follows a schedule. Otherwise the statement is that of the client who
        took part most, so one when somebody takes part more often than is paid for, and none else. In a round that was
        `lost` to a crash anybody may have taken part. Not for a tree, which is committed when it is begun.
        """
        if by_round.pays_all(self):
            return 1
        after = max((taken.get(name, 0) + 1 + lost for name in cohort), default=0)
        return max(after - committed, 0)

    # ---- what it costs ----

    def epsilon(self, client: str, delta: float) -> float:
        """Return the exact ε of all rounds for one record or person of that client, rounded up."""
        return costs.find_site_epsilon(self, client, delta)

    def record_epsilon(self, delta: float) -> float:
        """Return the ε of all rounds for one record or person, in the worst site or sites that somebody may be in."""
        return costs.find_record_epsilon(self, delta)

    def client_epsilon(self, delta: float) -> float:
        """Return the ε of all rounds for one client, rounded up."""
        return costs.find_client_epsilon(self, delta)

    def statements(self, delta: float | None = None) -> tuple[Guarantee, ...]:
        """Return the plan's guarantees, one per unit, at that δ or at those that were asked for."""
        return costs.find_statements(self, delta)

    def round_cost(self, promise: Guarantee) -> tuple[float, float]:
        """Return ε of one charge alone for the promise's unit, and at which δ: its own, or 0 with Laplace noise."""
        return costs.find_round_cost(self, promise)

    def worst(self, delta: float | None = None) -> str:
        """Return the client whose records pay most."""
        return costs.find_worst_client(self, delta)

    def binding(self, delta: float | None = None) -> str:
        """Return the client that needs the most noise: at equal noise its records would pay most."""
        return costs.find_binding_client(self, delta)

    def calibrated(self, *guarantees: Guarantee, noise: str = "own") -> Plan:
        """Return the plan with the least noise at which all rounds together keep the guarantees, one per unit.

        Every site gets the noise that it needs itself, or with noise="shared" all get that of the binding one.
        """
        return costs.calibrate(self, guarantees, noise)

    def calibrated_per_round(self, *guarantees: Guarantee, noise: str = "own") -> Plan:
        """Return the plan with the least noise at which each round alone keeps the guarantees, one per unit.

        With Laplace noise a round keeps its ε at δ = 0. What the plan then promises is what the accountant finds for
        all rounds together, at the δ of the guarantees.
        """
        return costs.calibrate_rounds(self, guarantees, noise)

    # ---- what the server does ----

    @property
    def server(self) -> ServerRelease:
        """The server's part of a round in styles `user` and `hybrid`: clip, sum, add noise."""
        if self.noises_updates:
            raise InvalidArgument("style", "in style local the server only averages: ask for plan.client_release")
        by_round.require_alike(self, "server")
        return ServerRelease(self._client, parts_of(self.local, self.weighting), self._expected, self.aggregation)

    @property
    def client_release(self) -> ClientRelease:
        """Each client's part of a round in style `local`: clip its whole update, add noise."""
        if not self.noises_updates:
            raise InvalidArgument("style", f"style {self.style} has no noise on single updates: choose local for that")
        by_round.require_alike(self, "client_release")
        return ClientRelease(self._client)

    @property
    def sensitivity(self) -> Sensitivity:
        """The most that one client moves the average of a round before noise, or its own update in style `local`."""
        one = self.in_round(1)  # in all rounds the same
        return one.client_release.sensitivity if self.noises_updates else one.server.sensitivity(self.client_adjacency)

    # ---- words and files ----

    def explain(self) -> str:
        """Return the plan in words (Markdown): what is protected, from whom, who is trusted; all numbers are public."""
        return explain.explain_plan(self)

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return files.dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` wrote."""
        return files.loads(text, cls)

    @property
    def _client(self) -> ClientPlan:
        if self.client is None:
            message = f"style {self.style} bounds no update: choose user, hybrid or local to protect a client"
            raise InvalidArgument("style", message)
        return self.client

    @property
    def _expected(self) -> Fraction:
        return self.cohort.expected(len(self.local))
