"""How a round comes to its released figures: counts of what every client holds out, charged, noised and stored.

It is done as a round of training is: what clients or the server released before a crash is stored, used again and costs
nothing, and anything else is charged anew, as long as charges are left. Where none are, nothing is measured: a crash
never makes a figure cost more than was reserved. Stored counts are those of one model, bit for bit.

>>> figures = {"accuracy": Figure(value=0.9, low=0.85, high=0.94)}
>>> Measured("hits", (9, 81), 1, figures, head="7:ab").to_record()["figures"]["accuracy"]
{'value': 0.9, 'low': 0.85, 'high': 0.94}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.federated.messages import WEIGHTS, Failure, Runner, Task, Update
from dpfed.federated.state.layout import Vector
from dpfed.federated.state.unfinished import UnfinishedRound
from dpfed.mechanisms.ratios import Figure
from dpfed.plan import measuring
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import Plan
from dpfed.randomness import RandomSource
from dpfed.runs.digests import digest_arrays
from dpfed.runs.directory import sequence
from dpfed.runs.rounds import FigureRecord, ReleasedRecord


@dataclass(frozen=True)
class Measured:
    """What was released about a model: noised counts in steps of the grid, and the figures that follow from them."""

    kind: str
    counts: tuple[int, ...]
    grid: int
    figures: Mapping[str, Figure]
    head: str

    def to_record(self) -> ReleasedRecord:
        """Return it as plain JSON values for everyone."""
        figures: dict[str, FigureRecord] = {
            name: {"value": each.value, "low": each.low, "high": each.high} for name, each in self.figures.items()
        }
        return {"kind": self.kind, "grid": self.grid, "counts": list(self.counts), "figures": figures}


@dataclass(frozen=True, eq=False)
class MeasuredRound:
    """A measurement of one model to be done, with everything it depends on."""

    plan: Plan
    measurement: Measurement
    number: int
    weights: Vector
    runner: Runner
    stored: UnfinishedRound
    source: RandomSource
    head: str

    def compute_figures(self) -> Measured | None:
        """Return the released figures, charged and stored; None where no charge is left for them.

        Privacy: in `sample`, `hybrid` and `local` each client's counts are noised by the client, and in `user` and
        `hybrid` their sum by the server: `plan.measuring`, whose events are committed before. The rest is
        post-processing.
        """
        return self._release_sum() if self.plan.server_noises else self._add_released()

    def _release_sum(self) -> Measured | None:
        found = self.stored.measured_release(self.number, self._model)
        if found is not None:
            return self._make(*found, self.plan.local)
        if self.runner.charged().left_measured_releases < 1:
            return None
        values = [update.value for update in self._collect().values()]
        head = self.runner.charge_measurement()
        noise = self.source.once(f"measure {self.runner.charged().measured_releases} {self.number}")
        total = measuring.release_server(self.plan, values, noise)
        self.stored.write_measured_release(self.number, self._model, total, head)
        return self._make(total, head, self.plan.local)

    def _add_released(self) -> Measured | None:
        updates = self._collect()
        if not updates:
            return None
        head = max({self.head, *(update.head for update in updates.values())}, key=sequence)
        return self._make(np.sum([update.value for update in updates.values()], axis=0), head, updates)

    def _collect(self) -> dict[str, Update]:
        """Return the counts of all clients: those that were stored, and those of whoever is asked now."""
        found = self.stored.measured(self.number, self._model)
        asked = [name for name in self.plan.local if name not in found]
        came = {update.client: update for update in self._accept(self.runner.measure(self._task, asked), asked)}
        if came and self.plan.charges_clients:
            self.stored.write_measured(self.number, self._model, list(came.values()))
        return found | came

    def _accept(self, outcomes: Iterable[Update | Failure], asked: Iterable[str]) -> Iterable[Update]:
        """Yield one vector of whole numbers for each client that was asked; anything else is left out."""
        waiting = set(asked)
        for outcome in outcomes:
            if isinstance(outcome, Update) and outcome.client in waiting and self._is_counted(outcome):
                waiting.remove(outcome.client)
                yield outcome

    def _is_counted(self, update: Update) -> bool:
        value = np.asarray(update.value)
        is_vector = value.shape == (self.measurement.size,) and value.dtype.kind == "f"
        return is_vector and update.round == self.number and bool((np.abs(value) < 2.0**52).all())

    @property
    def _task(self) -> Task:
        return Task(self.number, {WEIGHTS: self.weights})

    @property
    def _model(self) -> str:
        return digest_arrays({WEIGHTS: self.weights}).decode()

    def _make(self, total: Any, head: str, clients: Any) -> Measured:
        counts = tuple(int(value) for value in np.asarray(total).tolist())
        grid, noise = measuring.find_sum_noise(self.plan, clients)
        figures = self.measurement.find_figures(np.array(counts) / grid, noise)
        return Measured(self.measurement.kind, counts, grid, figures, head)
