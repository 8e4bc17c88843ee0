"""A search for data and weights with which one record moves a clipped sum further than clipping allows.

It starts from random weights and records and tries the neighbours of the data set: each record removed, added once more
and replaced. From the neighbour that moved the sum furthest it climbs: records and weights are changed a little, and
what moves the sum further is kept. It may find a fault, and proves nothing if it finds none.

>>> [change.rows(3) for change in (Change("removed", 1), Change("added", 1), Change("replaced", 1))]
[[0, 2], [0, 1, 2, 1], [0, 3, 2]]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from dpfed.training.checking.made_up import MadeUp
from dpfed.training.checking.modes import Mode
from dpfed.training.engine.forward import Forward, make_forward
from dpfed.training.generators import pinned

REMOVED, ADDED, REPLACED = "removed", "added", "replaced"
SIZES = (2, 3, 4, 5, 8)
CLIMBS = 4
STEPS = (0.01, 0.1, 1.0)
SCALES = (0.1, 1.0, 3.0)  # of weights; much larger ones make chaos of a deep model, in which rounding decides
ROUNDING = 1e-3


@dataclass(frozen=True)
class Change:
    """The change from a data set to a neighbour: which record was removed, duplicated or replaced by a newcomer."""

    kind: str
    record: int

    @property
    def allowed(self) -> float:
        """The distance, in clip norms, by which this change may move the sum."""
        return 2.0 if self.kind == REPLACED else 1.0

    def in_words(self, size: int) -> str:
        """Describe the change of a data set of `size` records."""
        which = f"record {self.record + 1} of {size}"
        if self.kind == ADDED:
            return f"a new record added to {size}" if self.record == size else f"{which} added once more"
        return f"{which} {self.kind}"

    def rows(self, size: int) -> list[int]:
        """Return the records of the neighbour of the first `size` ones; the newcomer is the one after them."""
        rows = list(range(size))
        if self.kind == ADDED:
            return [*rows, self.record]
        rows[self.record : self.record + 1] = [size] if self.kind == REPLACED else []
        return rows


@dataclass(frozen=True)
class Movement:
    """The distance, in clip norms, by which a change of a data set of `size` records moved the sum of a mode."""

    mode: str
    change: Change
    size: int
    distance: float

    @property
    def share(self) -> float:
        """The distance as a part of what is allowed."""
        return self.distance / self.change.allowed

    @property
    def is_allowed(self) -> bool:
        """Whether the distance is within what is allowed, and what rounding may add."""
        return self.share <= 1 + ROUNDING

    def __str__(self) -> str:
        moved = f"{self.distance:.4f} clip norms, where {self.change.allowed:g} is allowed"
        return f"{self.mode}, {self.change.in_words(self.size)}: {moved}"


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the search: weights, and records of which the last is the newcomer."""

    weights: list[Tensor]
    records: Any
    size: int


class Search:
    """A search over data and weights of one model and loss; call it inside `model_restored`, as it changes weights."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        made_up: MadeUp,
        clip_norm: float,
        generator: Generator,
    ) -> None:
        self._model, self._loss, self._made_up, self._clip_norm = model, loss, made_up, clip_norm
        self._generator = generator
        self._parameters = [value for value in model.parameters() if value.requires_grad]
        self._first = [value.detach().clone() for value in self._parameters]
        self.runs = 0
        self.pairs = 0  # of neighbouring data sets that were compared

    def run(self, mode: Mode, kinds: Sequence[str]) -> list[Movement]:
        """Return, for each kind of change, the furthest movement found by climbing from one random start."""
        self.runs += 1
        point = self._draw_point()
        # A program that is new is looked at, which takes random numbers: after the first time all are the same.
        self.sum(mode, point, range(point.size))
        before = self.sum(mode, point, range(point.size))
        found = [self._measure(mode, point, change, before) for change in self._list_changes(point.size, kinds)]
        furthest = (max((one for one in found if one.change.kind == kind), key=_share) for kind in kinds)
        return [self._climb(mode, point, one) for one in furthest]

    def sum(self, mode: Mode, point: Point, rows: Sequence[int], seed: int = 0) -> Tensor:
        """Return the mode's sum over these rows of the point, with generators seeded."""
        with torch.no_grad():
            for parameter, value in zip(self._parameters, point.weights, strict=True):
                parameter.copy_(value)
        with pinned(seed):
            return mode.sums(make_forward(self._model, self._loss, *point.records), rows)

    def distance(self, mode: Mode, one: Tensor, two: Tensor) -> float:
        """Return the distance of two sums in clip norms; infinity if one of them is not finite."""
        length = float(torch.linalg.vector_norm(one - two, ord=1 if mode.norm == "l1" else 2)) / self._clip_norm
        return length if math.isfinite(length) else math.inf

    def make_point(self, size: int) -> Point:
        """Return a point with the model's own weights, `size` new records and a newcomer."""
        return Point(self._first, self._made_up.draw(size + 1, self._generator), size)

    def make_forward(self, size: int) -> Forward:
        """Return a forward pass over `size` new records."""
        return make_forward(self._model, self._loss, *self._made_up.draw(size, self._generator))

    def _draw_point(self) -> Point:
        scale = SCALES[self._pick(len(SCALES))]
        point = self.make_point(SIZES[self._pick(len(SIZES))])
        return Point([scale * self._perturb(value, 0.5) for value in self._first], point.records, point.size)

    def _climb(self, mode: Mode, point: Point, best: Movement) -> Movement:
        for _ in range(CLIMBS):
            step = STEPS[self._pick(len(STEPS))]
            weights = [self._perturb(value, step) for value in point.weights] if self._pick(2) else point.weights
            near = Point(weights, self._made_up.perturb(point.records, step, self._generator), point.size)
            found = self._measure(mode, near, best.change, self.sum(mode, near, range(near.size)))
            if _share(found) > _share(best):
                point, best = near, found
        return best

    def _measure(self, mode: Mode, point: Point, change: Change, before: Tensor) -> Movement:
        self.pairs += 1
        distance = self.distance(mode, before, self.sum(mode, point, change.rows(point.size)))
        return Movement(mode.name, change, point.size, distance)

    def _list_changes(self, size: int, kinds: Sequence[str]) -> list[Change]:
        """Return the changes to try: the removal of every record, and one or two of each other kind."""
        one = self._pick(size)
        every = [Change(REMOVED, record) for record in range(size)]
        every += [Change(ADDED, one), Change(ADDED, size), Change(REPLACED, one), Change(REPLACED, size - 1)]
        return [change for change in every if change.kind in kinds]

    def _perturb(self, value: Tensor, step: float) -> Tensor:
        spread = float(value.double().square().mean().sqrt()) if value.numel() else 0.0
        noise = torch.randn(value.shape, dtype=value.dtype, generator=self._generator).to(value.device)
        return value + step * (spread or 0.1) * noise

    def _pick(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self._generator))


def _share(movement: Movement) -> float:
    return movement.share


@contextmanager
def model_restored(model: nn.Module) -> Iterator[None]:
    """Restore the model's parameters, buffers and training modes afterwards."""
    state = [(value, value.detach().clone()) for value in (*model.parameters(), *model.buffers())]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        with torch.no_grad():
            for value, before in state:
                value.copy_(before)
