"""What passes between the engine and its clients: plain values, the verbs of a runner and what a client can do.

>>> Failure("ward", "exhausted")
Failure(client='ward', reason='exhausted')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from dpfed.arrays import Floats, read_only
from dpfed.federated.state.layout import Vector
from dpfed.plan.by_round import Charges
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import LocalPlan, Plan
from dpfed.randomness import RandomSource
from dpfed.training.objective import LocalObjective

if TYPE_CHECKING:
    from dpfed.federated.algorithms.protocol import FederatedAlgorithm

EXHAUSTED = "exhausted"
FAILED = "failed"
WEIGHTS = "weights"


@dataclass(frozen=True)
class Task:
    """The message of a round to every client: named vectors, released before, with the model under "weights".

    They are the server's own and cannot be written into: what one client did there would reach all, past every clip.
    `clip_norm` is what the server will clip to, around the `centre` where its rule has one. `counted` names, where
    clients keep state, the last round of each whose update was used; an algorithm is given that of its client alone
    (`of`).
    """

    round: int
    vectors: Mapping[str, Vector]
    clip_norm: float | None = None
    counted: Mapping[str, int] = field(default_factory=dict, repr=False)
    centre: Vector | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", {name: read_only(vector) for name, vector in self.vectors.items()})
        object.__setattr__(self, "centre", None if self.centre is None else read_only(self.centre))

    @property
    def weights(self) -> Vector:
        """The model."""
        return self.vectors[WEIGHTS]

    def of(self, client: str) -> Task:
        """Return the task as that client may know it: who else took part, and when, is not released."""
        if not self.counted:
            return self
        return replace(self, counted={client: self.counted[client]} if client in self.counted else {})


@dataclass(frozen=True)
class Update:
    """A client's answer to a task: the one vector that leaves it, and the ledger's head when it was charged."""

    client: str
    round: int
    value: Floats
    head: str


@dataclass(frozen=True)
class Failure:
    """A client that contributes nothing this round; of its `error` the owner's files have the type alone."""

    client: str
    reason: str
    error: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Charged:
    """The most charges of the plan that are committed, by event: of each client's rounds, and of the server's releases.

    Where each site has its own ledger a charge that was asked for counts, whether or not the site has made it.

    `left` are the releases that may still be committed. `begun` counts the attempts at a round: those in which the
    server was about to add noise or, where the cohort is secret, in which clients were about to be charged, whoever
    these were. Measurements are counted apart: those of each client, those of the server, and how many are left to it;
    and so are the `ranges` that all clients released.
    """

    by_client: Mapping[str, Charges]
    by_server: Charges = field(default_factory=dict)
    left: Charges = field(default_factory=dict)
    begun: int = 0
    measured: Mapping[str, int] = field(default_factory=dict)
    measured_releases: int = 0
    left_measured_releases: int = 0
    ranges: int = 0

    @property
    def local(self) -> dict[str, int]:
        """How many charges of each client are committed."""
        return {name: sum(charges.values()) for name, charges in self.by_client.items()}

    @property
    def releases(self) -> int:
        """How many releases of the server are committed."""
        return sum(self.by_server.values())

    @property
    def release_number(self) -> int:
        """The number of the server's last release: each one is charged or marked first, so none comes twice."""
        return self.begun + self.releases


class Client(Protocol):
    """A data owner."""

    @property
    def name(self) -> str:
        """The name in the plan."""

    @property
    def account(self) -> str:
        """The ledger's account of its records."""

    def rehearse(self, local: LocalPlan, weights: Vector) -> None:
        """Refuse a model that does not fit, before anything is charged; reveal nothing of any record."""

    def train(self, local: LocalPlan, objective: LocalObjective, source: RandomSource) -> Floats:
        """Return the change from the objective's start: ``local.event`` for one record where the plan has noise."""


@runtime_checkable
class MeasuredClient(Protocol):
    """A data owner that can tell how a model does on the records that it holds out."""

    def find_cells(self, measurement: Measurement, weights: Vector) -> tuple[Any, Any]:
        """Return the cell of each row held out (`Measurement.find_cells`), and the rows of each person or None.

        Nothing else of the rows is counted, so that a record or person adds at most 1.
        """


class Runner(Protocol):
    """The place where clients train: in this process, or behind a network."""

    @property
    def is_private(self) -> bool:
        """Whether nobody can predict the noise: false for a seeded source, whose rounds are stamped so."""

    def enroll(
        self,
        plan: Plan,
        weights: Vector,
        heads: Iterable[str] = (),
        *,
        algorithm: FederatedAlgorithm | None = None,
        folder: Path | None = None,
        counted: Iterable[tuple[str, int]] | None = None,
    ) -> str:
        """Return the ledger's head once the plan is reserved; a ledger that lacks one of the heads is refused.

        Without an `algorithm` clients follow the one that the plan names. What it keeps at clients of this process is
        in the `folder`; `counted` are the clients and rounds after which a resumed run needs it, None for a new run.
        """

    def key(self, plan: Plan, heads: Iterable[str] = ()) -> bytes:
        """Return what only the ledger knows of a run that it has reserved, to seal the run's files with.

        A ledger that lacks one of the heads is refused; where nobody pays there is no ledger, and the key is empty.
        """

    def seals_files(self, plan: Plan) -> bool:
        """Return whether the ledger has reserved the run as one whose files have digests and seals."""

    def train(self, task: Task, cohort: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each client's update, or why there is none; charges are durable before noise is drawn.

        Nothing that a client does may raise here: it becomes a `Failure`, and does not stop the others.
        """

    def measure(self, task: Task, clients: Iterable[str]) -> Iterator[Update | Failure]:
        """Yield each client's counts of the plan's measurement for the model of the task, as a vector of whole numbers.

        As in `train`: where clients noise their own counts, charges are durable before noise is drawn, and a client
        that is charged sends noise around zero if it fails. A client that has no charge left is a `Failure`.
        """

    def charge_measurement(self) -> str:
        """Commit one measurement to the study's account before the server draws noise, and return the ledger's head."""

    def charge_release(self, times: int, number: int) -> str:
        """Commit that many client events of the round before the server draws noise, and return the ledger's head.

        Even where none is due the ledger gets an entry, so that an old copy of a run's files differs from a new one.
        """

    def charged(self) -> Charged:
        """Return how many charges are committed so far."""

    def finish(self, run: str) -> None:
        """Return to the accounts what was reserved and never committed."""
