"""The rounds of a run, as an iterator: progress, early stopping and evaluation are the body of your `for`.

A round: a cohort is drawn and trains, each client's records charged before; what comes is screened; in styles `user`
and `hybrid` updates are clipped, added up, charged to the study and noised; the mean moves the model; a checkpoint is
written; the result is yielded. After a crash at any point the same call goes on: what was stored is used again and
costs nothing, anything else is charged anew, and a client whose reserved charges are used up contributes zero. So does
one that fails or is refused: where anybody is protected no failure ends a run, or changes what everyone may see of
it. ``result.participation`` has who failed and with which error, for the owner.

>>> from dpfed.federated.runners.in_process import LocalRunner
>>> from dpfed.plan.plan import LocalPlan
>>> class Ward:
...     name, account = "ward", ""
...     def rehearse(self, local, weights): ...
...     def train(self, local, objective, source):
...         return 1 - objective.start
>>> plan = Plan("study", rounds=2, local={"ward": LocalPlan(size=8, batch_size=4, steps=3)}, style="none")
>>> federation = Federation(plan, np.zeros(2), LocalRunner([Ward()]), "run")
>>> [(result.number, result.status, result.weights.tolist()) for result in federation]
[(1, 'running', [1.0, 1.0]), (2, 'finished', [1.0, 1.0])]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import numpy as np

from dpfed.arrays import Floats
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.events import Event, TreeAggregation
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.earlier import EarlierAlgorithm
from dpfed.federated.algorithms.protocol import FederatedAlgorithm, State
from dpfed.federated.measured import Measured, MeasuredRound
from dpfed.federated.messages import WEIGHTS, Charged, Runner, Task
from dpfed.federated.metrics import Score
from dpfed.federated.results import BUDGET_EXHAUSTED, FINISHED, RUNNING, STOPPED, RoundResult, plain
from dpfed.federated.round import Round, RoundOutcome
from dpfed.federated.server_tree import ServerTree
from dpfed.federated.state.checkpoint import Checkpoint, Checkpoints
from dpfed.federated.state.clients import ClientStates
from dpfed.federated.state.layout import Layout, Vector
from dpfed.federated.state.run_lock import hold
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.guarantee import Guarantee
from dpfed.plan.by_round import Charges, add_up, list_costliest
from dpfed.plan.costs import Spent, compute_spent
from dpfed.plan.measuring import list_client_charges, list_server_charges
from dpfed.plan.plan import Plan
from dpfed.plan.ranges import list_range_charges
from dpfed.randomness import RandomSource, or_system
from dpfed.runs import rounds
from dpfed.runs.checkpoint_notes import Note
from dpfed.runs.digests import Seal
from dpfed.runs.directory import CHECKPOINTS, CLIENTS, ORIGIN_FILE, STATUS, RunDirectory

Evaluation = Callable[[Vector], Iterable[Score]]
DEFAULT_DELTA = 1e-5


class Federation:
    """An iterator of RoundResult over the rounds of a plan that are still to be done in that directory.

    Privacy: in style `sample` what leaves a client is noised by its LocalPlan and charged to its account before; in
    `user` the server adds the noise, after charging the study's account, and must be trusted with the updates;
    `hybrid` does both. In `local` each client noises its whole update, charged to its account before. All that is
    computed from these releases is covered by their guarantees. The promise is that of the whole reserved plan, also
    after a crash or an early stop. Scores on data that nobody declared public are not covered, and are in the owner's
    files alone.

    A directory whose files were changed, or in which another process runs, is refused before anything is run. `terms`
    are what else a run must go on with, such as its configuration.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Vector,
        runner: Runner,
        directory: str | Path,
        *,
        layout: Layout | None = None,
        algorithm: FederatedAlgorithm | EarlierAlgorithm | None = None,
        evaluate: Evaluation | None = None,
        source: RandomSource | None = None,
        terms: str = "",
    ) -> None:
        self.plan = plan
        self.runner = runner
        self.status = RUNNING
        first = np.asarray(weights)
        self.layout = Layout(("weights",), (first.shape,), str(first.dtype)) if layout is None else layout
        self.run = RunDirectory(directory)
        self._lock = hold(self.run.path)
        self.run.begin(plan)
        self._algorithm = registry.of_plan(plan) if algorithm is None else registry.bind(algorithm, plan)
        self._evaluate = evaluate
        self._source = or_system(source)
        self._terms = terms
        self._costs: dict[tuple[float, bool], tuple[Guarantee, ...]] = {}
        self._stored = UnfinishedRound(self.run)
        self._begin_or_resume(first.astype(self.layout.dtype))
        self._tree = self._make_tree()

    @property
    def weights(self) -> Vector:
        """The model after the last finished round."""
        return self._checkpoint.weights

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._checkpoint.round

    def __iter__(self) -> Federation:
        return self

    def __next__(self) -> RoundResult:
        if self.round >= self.plan.rounds:
            self._end(FINISHED)
        if self._is_over():
            self._end(STOPPED)
        started = monotonic()
        number = self.round + 1
        round_ = self._make_round(number)
        if not round_.fits():
            self._end(BUDGET_EXHAUSTED)
        return self._finish_round(number, round_.compute_mean(), started)

    def move_to(self, folder: Path) -> None:
        """Write that what the configuration names is in another folder now, which nobody but the caller can know."""
        self.run.write_origin(folder)
        files = {name: known for name, known in self._checkpoint.files.items() if name != ORIGIN_FILE}
        self._write_checkpoint(replace(self._checkpoint, files=files), has_ended=STATUS in files)

    def finish(self) -> None:
        """Return what was never committed to the accounts; a run that is to be resumed is not finished.

        What clients kept is removed, also if the process that did the last round had no time to.
        """
        self.runner.finish(self.plan.name)
        if self._algorithm.keeps_state:
            ClientStates(self.run.folder(CLIENTS)).forget_all()

    def _finish_round(self, number: int, outcome: RoundOutcome, started: float) -> RoundResult:
        """Move the model by the outcome of a round, measure it, write its files, and return its result."""
        checkpoint = self._step(number, outcome)
        measured = self._measure(number, checkpoint)
        head = outcome.head if measured is None else measured.head
        checkpoint = replace(checkpoint, head=head)
        cost = self._compute_spent()
        result = RoundResult(
            number=number,
            status=FINISHED if number == self.plan.rounds else RUNNING,
            weights=checkpoint.weights,
            cost=self._cost_of(number),
            spent=cost.statements,
            worst_client=cost.worst_client,
            head=None if self.plan.is_secret and self.plan.charges_clients else head,
            metrics=tuple(self._evaluate(checkpoint.weights)) if self._evaluate else (),
            is_private=self.runner.is_private and self._source.is_private,
            simulation=getattr(self.runner, "simulation", ""),
            participation=outcome.participation,
            seconds=monotonic() - started,
            measured=measured,
        )
        self._write(result, replace(checkpoint, privacy={"spent": plain(result.spent)}))
        return result

    def _measure(self, number: int, checkpoint: Checkpoint) -> Measured | None:
        """Return the figures that are released after this round; None after most, and where no charge is left."""
        measurement = self.plan.measurement
        if measurement is None or number not in measurement.rounds:
            return None
        weights, head = checkpoint.weights, checkpoint.head
        return MeasuredRound(
            self.plan, measurement, number, weights, self.runner, self._stored, self._source, head
        ).compute_figures()

    def _is_over(self) -> bool:
        """Return whether a released figure says that the run ends early: a choice by what everyone may see."""
        measurement = self.plan.measurement
        if measurement is None or measurement.stop is None:
            return False
        released = [record["released"]["figures"] for record in self.run.rounds() if "released" in record]
        return measurement.is_over([figures[measurement.stop]["value"] for figures in released])

    def _end(self, status: str) -> None:
        self.status = status
        self.run.end(status)
        self._write_checkpoint(self._checkpoint, has_ended=True)
        self.finish()
        raise StopIteration

    def _write(self, result: RoundResult, checkpoint: Checkpoint) -> None:
        self.run.append(result.facts())
        self.run.append_owner(result.owner_facts())
        self._write_checkpoint(checkpoint)
        self._stored.forget(result.number)
        self._stored = UnfinishedRound(self.run, Seal(self._key, checkpoint.head))

    def _write_checkpoint(self, checkpoint: Checkpoint, *, has_ended: bool = False) -> None:
        files = self.run.digests(checkpoint.files, self._terms, has_ended=has_ended)
        made = replace(checkpoint, files=files)
        self._checkpoints.write(made)
        self._checkpoint = made

    def _begin_or_resume(self, first: Vector) -> None:
        """Reserve the plan of a new run, or take up the one in the directory if every file of it is unchanged."""
        self._require_its_version()
        found = Checkpoints(self.run, self.layout).newest()
        if found is None:
            self._begin(first)
        else:
            self._resume(found)
        self._stored.forget_all_but(self.round + 1)

    def _require_its_version(self) -> None:
        """Refuse files that claim to be of a version before digests in a run that the ledger says has them."""
        if self.run.is_older and self.runner.seals_files(self.plan):
            why = "it says that the run is of a version before digests, and the ledger that it is not"
            raise rounds.changed_error(self.run.path / "plan.json", why)

    def _begin(self, first: Vector) -> None:
        head = self._enroll(first)
        self._open(self.runner.key(self.plan, [head]), head)
        self._stored.forget_all_but(0)  # what goes with no checkpoint is of another past
        state = {name: value for name, value in self._algorithm.start(first.astype(float)).items() if name != WEIGHTS}
        self._write_checkpoint(Checkpoint(0, first, head, state, self._first_clip()))

    def _resume(self, found: Checkpoint) -> None:
        under_way = found.round + 1
        heads = [found.head, *self._stored.heads(under_way), *self._stored.measured_heads(under_way)]
        self.run.require_terms(self._terms)
        self._checkpoint = found
        self._open(self.runner.key(self.plan, heads), found.head)
        self._require_sealed(found)
        if found.round >= self.plan.rounds:
            return
        self._require_same_seeds()
        self._stored.require(under_way, self.plan.local)
        reused = ((client, under_way) for client in self._stored.contributed(under_way))
        self._enroll(found.weights, heads, [*found.counted.items(), *reused])

    def _enroll(
        self, weights: Vector, heads: Iterable[str] = (), counted: Iterable[tuple[str, int]] | None = None
    ) -> str:
        folder = self.run.folder(CLIENTS) if self._algorithm.keeps_state else None
        options: dict[str, Any] = {"algorithm": self._algorithm, "folder": folder, "counted": counted}
        return self.runner.enroll(self.plan, weights, heads, **options)

    def _require_same_seeds(self) -> None:
        """Refuse to go on with a seeded run of an earlier version: what follows would not be what its seed says."""
        is_seeded = not (self._source.is_private and self.runner.is_private)
        if is_seeded and self.run.has_other_seeds:
            message = f"{self.run.path} was begun with a seed by an earlier version, which drew other numbers from it"
            raise InvalidArgument("seed", f"{message}: begin the run again, or go on with the version that began it")

    def _require_sealed(self, found: Checkpoint) -> None:
        """Refuse a checkpoint that the ledger did not seal, or of which others than safetensors read another note."""
        self._checkpoints.newest()
        if self.run.note() != Note(found.round, found.files):
            raise rounds.changed_error(self.run.path / CHECKPOINTS, "the last one has two notes")

    def _open(self, key: bytes, head: str) -> None:
        self._key = key
        self._checkpoints = Checkpoints(self.run, self.layout, key)
        self._stored = UnfinishedRound(self.run, Seal(key, head))

    def _first_clip(self) -> float | None:
        """Return what the server clips to at first; None where it clips nothing."""
        return self.plan.client.clip_norm if self.plan.client is not None and self.plan.server_noises else None

    def _make_round(self, number: int) -> Round:
        return Round(
            plan=self.plan,
            task=self._make_task(number),
            layout=self.layout,
            runner=self.runner,
            stored=self._stored,
            source=self._source,
            head=self._checkpoint.head,
            clip_norm=self._checkpoint.clip_norm,
            taken=self._checkpoint.taken,
            tree=self._tree,
            keeps_state=self._algorithm.keeps_state,
            centre=self._checkpoint.centre,
            standings=self._checkpoint.standings,
        )

    def _make_task(self, number: int) -> Task:
        before = self._checkpoint
        return Task(number, self._make_vectors(), before.clip_norm, before.counted, before.centre)

    def _make_vectors(self) -> dict[str, Vector]:
        """Return what the algorithm sends; the model is the very one that was released, to the last bit."""
        vectors = self._algorithm.task({**self._checkpoint.state, WEIGHTS: self.weights})
        return {**vectors, WEIGHTS: self.weights}

    def _step(self, number: int, mean: RoundOutcome) -> Checkpoint:
        before = self._checkpoint
        with np.errstate(over="ignore", invalid="ignore"):
            state = self._move({**before.state, WEIGHTS: before.weights.astype(float)}, mean)
            moved = np.asarray(state.pop(WEIGHTS), dtype=self.layout.dtype)
        if not all(np.isfinite(array).all() for array in (moved, *state.values())):
            self._discard_round(number)
        clip_norm = before.clip_norm
        if clip_norm is not None and mean.noisy_count is not None:
            clip_norm = self.plan.in_round(number).server.next_clip(clip_norm, mean.noisy_count)
        taken = dict(before.taken)
        for name in mean.asked:
            taken[name] = taken.get(name, 0) + 1
        counted = {**before.counted, **dict.fromkeys(mean.contributed, number)}
        made = Checkpoint(number, moved, mean.head, state, clip_norm, taken, files=before.files, counted=counted)
        standings = before.standings if mean.standings is None else mean.standings
        return replace(made, centre=self._find_centre(mean), standings=standings)

    def _find_centre(self, mean: RoundOutcome) -> Floats | None:
        """Return what the next round clips around: the last aggregate that moved the model; None for other rules."""
        last = self._checkpoint.centre if mean.participation.breakdown else mean.value
        return last if self.plan.aggregation.needs_centre else None

    def _move(self, state: State, mean: RoundOutcome) -> dict[str, Any]:
        """Return the state after the algorithm's step; as it was where too few updates came for the rule.

        A step by zero is not the same: the momentum of earlier rounds would move the model.
        """
        return dict(state if mean.participation.breakdown else self._algorithm.step(state, mean.value))

    def _discard_round(self, number: int) -> NoReturn:
        """Delete what a round stored that led to no model, and say so; its charge stays spent.

        Used again, what it stored would fail again in every resume.
        """
        self._stored.forget(number)
        self._tree = self._make_tree()
        message = f"the model is no longer finite after round {number}: what was charged stays spent"
        remedy = "go on with what is left of the plan, or plan a run with smaller steps"
        raise PrivacyError(
            f"{message}, nothing of the round is kept, and {self.run.path} has the model before: {remedy}"
        )

    def _make_tree(self) -> ServerTree | None:
        is_tree = self.plan.client is not None and self.plan.client.tree is not None
        event = self.plan.client_event if is_tree else None
        return ServerTree(event) if isinstance(event, TreeAggregation) else None

    def _compute_spent(self) -> Spent:
        charged = self.runner.charged()
        local = self._charge_all_alike(self._bound_charges(charged)) if self.plan.is_secret else charged.by_client
        own, beside = list_client_charges(self.plan), list_server_charges(self.plan)
        local = {name: _add(charges, own, charged.measured.get(name, 0)) for name, charges in local.items()}
        ranges = list_range_charges(self.plan)
        local = {name: _add(charges, ranges, charged.ranges) for name, charges in local.items()}
        return compute_spent(
            self.plan, self._deltas(), local, _add(charged.by_server, beside, charged.measured_releases)
        )

    def _charge_all_alike(self, times: int) -> dict[str, dict[Event, int]]:
        """Return the most that so many charges of each client can be; nothing where clients are not charged."""
        names = self.plan.local if self.plan.charges_clients else ()
        return {name: list_costliest(self.plan, name, times) for name in names}

    def _bound_charges(self, charged: Charged) -> int:
        """Return a number of charges that no client exceeds: how often one took part is as secret as the cohort."""
        return min(max([charged.begun, *charged.local.values()]), self.plan.record_charges)

    def _cost_of(self, number: int) -> tuple[Guarantee, ...]:
        """Return what the round costs, alone, whoever takes part in it."""
        measurement = self.plan.measurement
        measured = measurement is not None and number in measurement.rounds
        known = self.plan.factor(number), measured
        if known not in self._costs:
            alone = self.plan.in_round(number)
            names = alone.local if alone.charges_clients else ()
            own, beside = list_client_charges(self.plan), list_server_charges(self.plan)
            local = {name: _add({alone.local_event(name): 1}, own, int(measured)) for name in names}
            releases = _add({alone.client_event: 1} if alone.server_noises else {}, beside, int(measured))
            self._costs[known] = compute_spent(self.plan, self._deltas(), local, releases).statements
        return self._costs[known]

    def _deltas(self) -> dict[str, float]:
        promised = {promise.unit: promise.delta for promise in self.plan.guarantees}
        return {unit: promised.get(unit, DEFAULT_DELTA) for unit in self.plan.units}


def _add(charges: Charges, measured: Charges, times: int) -> dict[Event, int]:
    """Return the charges with so many of a measurement."""
    return add_up([*charges.items(), *((event, times) for event in measured if times)])
