"""One data owner with a torch model: DP-SGD where its plan has noise, plain training where the server adds it.

>>> from dpfed.models.logistic import Logistic
>>> from dpfed.plan.plan import LocalPlan
>>> from dpfed.randomness import SeededSource
>>> import numpy as np
>>> model = TorchModel(Logistic, "cross_entropy")
>>> ward = TorchClient("ward", (np.ones((20, 30)), np.zeros(20, dtype=int)), "ward-2026", model)
>>> local = LocalPlan(size=20, batch_size=10, steps=2, learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)
>>> ward, ward.train(local, model.first_weights, SeededSource(1)).shape
(TorchClient(name='ward', account='ward-2026'), (62,))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from dpfed.arrays import Floats
from dpfed.data.persons import Persons
from dpfed.data.records import Records
from dpfed.errors import InvalidArgument
from dpfed.federated.metrics import Score
from dpfed.federated.state.layout import Vector
from dpfed.federated.torch.examples import Examples, Items, Tensors
from dpfed.federated.torch.model import TorchModel, layout_of
from dpfed.federated.torch.persons import PersonRows
from dpfed.guarantee import PERSON, RECORD
from dpfed.plan.measure import Measurement
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import RandomSource
from dpfed.training.extra import Canaries
from dpfed.training.generators import Generators, devices_of
from dpfed.training.loading import Batch
from dpfed.training.loop import Private
from dpfed.training.noise import NoiseSource
from dpfed.training.objective import LocalObjective
from dpfed.training.optimizing import OptimizerSettings
from dpfed.training.paid import reserve_steps
from dpfed.training.reading import MicroBatch
from dpfed.training.sampling import Sampler, sampler_of

__all__ = ["TorchClient", "TorchModel", "layout_of"]

PHYSICAL = {RECORD: 256, PERSON: 64}  # examples at a time; a person has several rows


@dataclass(frozen=True, eq=False)
class TorchClient:
    """A data owner with torch: name, records (a pair of arrays, a Dataset of pairs, or `Persons`), account and model.

    With `Persons`, all rows of one person are one record: plan with unit "person". Data that cannot be trained on are
    refused here, by their owner and before any round. `canaries` are for audits alone: see `dpfed.audit.canaries`.
    `held_out` is what a measurement of the plan counts (`find_cells`), and never trained on.
    """

    name: str
    data: Any = field(repr=False)
    account: str
    model: TorchModel = field(repr=False)
    canaries: Canaries | None = field(default=None, repr=False)
    held_out: Records | Persons | None = field(default=None, repr=False)
    examples: Examples = field(init=False, repr=False)

    def __post_init__(self) -> None:
        records = self.model.examples(self._rows)
        self.model.require_fitting(records, self.name)
        if isinstance(self.data, Persons) and isinstance(records, Tensors):
            records = PersonRows(records, torch.from_numpy(self.data.counts))
        object.__setattr__(self, "examples", records)
        if self.held_out is not None:
            self.model.require_fitting(self.model.examples(_read_rows(self.held_out)), self.name)

    @property
    def takes_plain_steps(self) -> bool:
        """Whether its optimizer is gradient descent and nothing more, at one learning rate."""
        return self.model.recipe == OptimizerSettings()

    def rehearse(self, local: LocalPlan, weights: Vector) -> None:
        """Refuse a model that does not fit the plan or the shape of the data, on made-up records."""
        unit = PERSON if isinstance(self.examples, PersonRows) else RECORD
        if local.unit != unit:
            message = f"the plan of {self.name} is for one {local.unit}, and its data have one {unit} after the other"
            remedy = "give it Persons" if unit == RECORD else f"plan with unit={PERSON!r}"
            raise InvalidArgument("data", f"{message}: {remedy}")
        self.model.rehearse(self.examples, weights, is_private=local.noise_multiplier is not None)

    def train(self, local: LocalPlan, objective: LocalObjective | Vector, source: RandomSource) -> Floats:
        """Return the change of the weights after the plan's steps; weights alone stand for the loss alone, from there.

        Privacy: with noise in the plan, ``local.event`` for one record or person under the plan's adjacency, to be
        charged before. Each step looks at the records once, through a draw, clipping and noise (`Private`);
        optimizer, learning rates and the objective's other terms see what these steps released. Without noise nothing
        is protected here, and the change must go nowhere but to a server that clips it and adds noise.
        """
        aim, model = LocalObjective.of(objective), self.model
        self.rehearse(local, aim.start)
        with model.borrow(aim.start, source) as row:
            start = row.clone()
            optimizer = model.recipe.optimizer_of(model.parameters, local.learning_rate)
            terms = _AddedTerms(model, aim)
            if local.noise_multiplier is None:
                _train_plainly(model, self.examples, local, optimizer, terms, source)
            else:
                _train_privately(model, self.examples, local, optimizer, terms, source, self.canaries)
            return np.asarray((row.double() - start.double()).numpy())

    def personalise(self, local: LocalPlan, weights: Vector, layers: Sequence[str], source: RandomSource) -> Vector:
        """Return released weights of which these layers are trained further on the client's own records.

        The other layers stay as they were released, bit for bit.

        Privacy: none. There is no clip and no noise, and nothing is charged, because the result must stay with its
        owner: neither the weights nor what they predict may be published.
        """
        model = self.model
        self.rehearse(replace(local, noise_multiplier=None), weights)
        chosen = [own for own, is_in in zip(model.parameters, _find_layers(model, layers), strict=True) if is_in]
        with model.borrow(weights, source) as row:
            optimizer = model.recipe.optimizer_of(chosen, local.learning_rate)
            terms = _AddedTerms(model, LocalObjective(weights))
            _train_plainly(model, self.examples, local, optimizer, terms, source)
            return np.asarray(row.clone().numpy())

    def find_cells(self, measurement: Measurement, weights: Vector) -> tuple[Any, Any]:
        """Return the cell of each row held out by what the model says of it, and the rows of each person or None.

        Privacy: none yet. What is counted from them is bounded and noised by `dpfed.plan.measuring`. Each row's cell
        depends on that row alone, whatever the model is (`TorchModel.predict_apart`), unless its code keeps something
        in a class or a global; one at which it fails is in none.
        """
        rows = self.held_out.counts if isinstance(self.held_out, Persons) else None
        if self.held_out is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64) if isinstance(self.data, Persons) else None
        labels = np.asarray(self.held_out.rows.labels)
        outputs = self.model.predict_apart(weights, _read_rows(self.held_out))
        cells = [_find_cell(measurement, output, labels[[place]]) for place, output in enumerate(outputs)]
        return np.array(cells, dtype=np.int64), rows

    def evaluate(self, weights: Vector) -> tuple[Score, ...]:
        """Return loss and accuracy on the client's own rows: for its owner, not covered by any guarantee."""
        return self.model.evaluate(weights, self._rows, is_public=False)

    @property
    def _rows(self) -> Any:
        return _read_rows(self.data) if isinstance(self.data, Persons) else self.data


def _find_cell(measurement: Measurement, output: Floats | None, label: Any) -> int:
    """Return the cell of one row; −1, which is none, where the model's output is not one row of numbers."""
    if output is None or output.ndim not in (1, 2) or len(output) != 1 or not output.size:
        return -1
    return int(measurement.find_cells(output, label)[0])


def _read_rows(records: Records | Persons) -> tuple[Any, Any]:
    return records.rows.features, records.rows.labels


def _find_layers(model: TorchModel, layers: Sequence[str]) -> list[bool]:
    """Return for each trained parameter whether it is in one of the layers; refuse a layer that has none."""
    names = model.layout.names
    for layer in layers:
        if not any(_is_in(name, layer) for name in names):
            known = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise InvalidArgument("layers", f"the model has no layer {layer!r}: choose among {known}")
    return [any(_is_in(name, layer) for layer in layers) for name in names]


def _is_in(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


class _AddedTerms:
    """The gradient of an objective's terms, pull · (w − anchor) + shift, added after clipping and noise."""

    def __init__(self, model: TorchModel, objective: LocalObjective) -> None:
        self._pull = objective.pull
        anchors = _split(objective.anchor, model)
        shifts = [None] * len(anchors) if objective.shift is None else _split(objective.shift, model)
        self._split = [] if objective.is_plain else list(zip(model.parameters, anchors, shifts, strict=True))
        # A parameter that no loss reaches has no gradient, and needs none as long as it stays at its anchor.
        self._moves_all = objective.shift is not None or objective.anchor is not objective.start

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Change the gradients in place."""
        for parameter, anchor, shift in self._split:
            if parameter.grad is None:
                if not self._moves_all:
                    continue
                parameter.grad = torch.zeros_like(parameter)
            if self._pull:
                parameter.grad.add_(parameter.detach() - anchor, alpha=self._pull)
            if shift is not None:
                parameter.grad.add_(shift)


def _split(vector: Vector, model: TorchModel) -> list[Tensor]:
    """Return the pieces of a vector for the model's parameters, in their precision."""
    row = torch.tensor(vector, dtype=model.dtype)
    pieces = torch.split(row, [parameter.numel() for parameter in model.parameters])
    return [piece.view(own.shape) for piece, own in zip(pieces, model.parameters, strict=True)]


class _Draws:
    """The samples of a sampler as batches, read a limited number of records at a time."""

    def __init__(self, examples: Examples, sampler: Sampler, at_once: int, generators: Generators) -> None:
        self._examples = examples
        self._sampler = sampler
        self._at_once = at_once
        self._generators = generators

    def __iter__(self) -> Iterator[Batch]:
        for draw in self._sampler:
            pieces = torch.split(draw.indices, self._at_once) if len(draw.indices) else ()
            yield Batch(draw, partial(self._read, pieces), self._generators)

    def _read(self, pieces: Sequence[Tensor]) -> Iterator[MicroBatch]:
        for numbers in pieces:
            if isinstance(self._examples, Items):
                self._generators.refresh()  # for what the data set draws
                yield from self._examples.fetch_apart(numbers)
            else:
                yield MicroBatch(self._examples.fetch(numbers), len(numbers))


def _train_privately(
    model: TorchModel,
    examples: Examples,
    local: LocalPlan,
    optimizer: Optimizer,
    terms: _AddedTerms,
    source: RandomSource,
    canaries: Canaries | None,
) -> None:
    # Not make_private: what it screens was screened when the client enrolled, and takes longer than a small client.
    sampler = sampler_of(local, len(examples), local.steps, source)
    generators = Generators(source, devices_of(model.module))
    draws = _Draws(examples, sampler, PHYSICAL[local.unit], generators)
    paid = reserve_steps(local, None, None)
    module, loss = model.learner(examples)
    noise, schedule = NoiseSource(source), model.recipe.schedule
    private = Private(
        module, optimizer, draws, local, noise, paid, generators, loss=loss, schedule=schedule, canaries=canaries
    )
    try:
        optimizer.register_step_pre_hook(terms)  # hooks run in order: the noise is there when this one looks
        for batch in private.loader:
            private.step(batch)
    finally:
        private.close()


def _train_plainly(
    model: TorchModel,
    examples: Examples,
    local: LocalPlan,
    optimizer: Optimizer,
    terms: _AddedTerms,
    source: RandomSource,
) -> None:
    optimizer.register_step_pre_hook(terms)
    module, loss = model.learner(examples)
    for step, numbers in enumerate(_shuffle(len(examples), local.batch_size, local.steps, source)):
        for group in optimizer.param_groups:
            group["lr"] = model.recipe.rate(local.learning_rate, step, local.steps)
        optimizer.zero_grad()
        inputs, targets = examples.fetch(numbers)
        torch.mean(loss(module(inputs), targets)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _shuffle(records: int, batch_size: int, steps: int, source: RandomSource) -> Iterator[Tensor]:
    """Yield that many batches from passes over all records, each pass in a new order; none without records."""
    order, draws = torch.empty(0, dtype=torch.long), source.stream("training order")
    for _ in range(steps if records else 0):
        if not len(order):
            order = torch.from_numpy(np.argsort(draws.words(records), kind="stable"))
        yield order[:batch_size]
        order = order[batch_size:]
