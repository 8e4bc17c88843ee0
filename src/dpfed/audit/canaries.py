"""Canaries for DP-SGD: the worst records that the mechanism allows, each of them in by a fair coin.

An audit puts made-up gradients into the steps of a run and tries to tell from what is released which of them were in.
EACH CANARY IS ONE MORE RECORD for the accounting: it is clipped like one, and takes part in a step with probability
``plan.sample_rate`` on its own (with a tree, at one place of each pass). Hundreds of them in one run are hundreds of
tests (Steinke, Nasr and Jagielski 2023). A Dirac canary is one coordinate, so that none disturbs another.

Each step is scored by its likelihood ratio, which no attacker can beat: from the released mean alone, or as a residual,
without the exact sum over the other records. The adversary of the definition knows these, so residual scores are as
valid; but they are made of exact private gradients, and stay with the owner where the records are private.

>>> from dpfed.randomness import SeededSource
>>> plan = LocalPlan(size=50, batch_size=50, steps=3, clip_norm=1.0, noise_multiplier=2.0)
>>> canaries = GradientCanaries({"w": torch.zeros(20)}, plan, 8, source=SeededSource(1))
>>> len(canaries.is_in), [len(list(canaries(step))) == sum(canaries.is_in.tolist()) for step in range(3)]
(8, [True, True, True])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpfed import checks
from dpfed.accounting.closed_forms import gaussian_epsilon
from dpfed.arrays import Floats
from dpfed.audit.likelihood import compute_ratios
from dpfed.checks import REPLACE_ONE
from dpfed.errors import InvalidArgument
from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training.extra import Canaries, Gradient, clip_canary, find_lone_share
from dpfed.training.sampling import coins

__all__ = ["Canaries", "CanaryScores", "GradientCanaries", "Widened", "clip_canary", "make_record_canaries"]

DIRAC, RANDOM = "dirac", "random"
RESIDUAL, RELEASED = "residual", "released"
LONG = 1e3  # clip norms: whatever is not clipped shows
FAIR = Fraction(1, 2)
Advance = Callable[[], None]


def ignore() -> None:
    """Follow no progress."""


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """The score of each canary, higher where it seems to be in, and whether it was.

    `sums` are plain sums over the steps, of which `estimate` is made.
    """

    scores: Floats
    is_in: NDArray[np.bool_]
    sums: Floats = field(repr=False)

    @property
    def of_members(self) -> Floats:
        """The scores of the canaries that were in."""
        return self.scores[self.is_in]

    @property
    def of_others(self) -> Floats:
        """The scores of the canaries that were not."""
        return self.scores[~self.is_in]

    def estimate(self, delta: float) -> float:
        """Return the ε of two Gaussians that are as far apart as the sums: an estimate, and no bound of anything."""
        members, others = self.sums[self.is_in], self.sums[~self.is_in]
        spread = float(np.sqrt((members.var() + others.var()) / 2))
        shift = max(0.0, float(members.mean() - others.mean()))
        return gaussian_epsilon(shift / spread, delta) if spread > 0 else float("inf")


class GradientCanaries:
    """Made-up gradients for ``make_private(canaries=…)``, and the scores of what their steps release.

    Under replace-one a canary that is not in takes part with the opposite gradient; under add/remove not at all.
    `advance` is called after each step.

    Privacy: `count` canaries are `count` more records, each under the plan's guarantee on its own.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        plan: LocalPlan,
        count: int,
        *,
        kind: str = DIRAC,
        scoring: str = RESIDUAL,
        source: RandomSource | None = None,
        advance: Advance = ignore,
    ) -> None:
        self._plan, count, self._advance = plan, checks.count(count=count), advance
        self._source = or_system(source).stream("canaries")
        self._shapes = {name: value.shape for name, value in parameters.items()}
        self._is_residual = _require_scoring(scoring)
        self.is_in = coins(FAIR, count, self._source)
        self._places = self._source.integers(plan.pass_steps, count) if plan.tree else None
        self._make = {DIRAC: self._make_dirac, RANDOM: self._make_random}.get(kind)
        if self._make is None:
            raise InvalidArgument("kind", f"kind must be {DIRAC!r} or {RANDOM!r}, got {kind!r}")
        self._directions = self._draw_directions(count) if kind == RANDOM else None
        self._coordinates = self._draw_coordinates(count) if kind == DIRAC else np.empty(0, np.int64)
        self._level = find_lone_share(parameters, plan.norm, plan.layers) if kind == DIRAC else 1.0
        self._scores, self._sums = np.zeros(count), np.zeros(count)

    def __call__(self, step: int) -> Iterator[Gradient]:
        """Yield the canaries that take part in a step."""
        is_drawn = self._draw(step)
        for number in np.flatnonzero(is_drawn if self._replaces else is_drawn & self.is_in).tolist():
            yield self._make_one(number, 1.0 if self.is_in[number] else -1.0)

    def see(self, rest: Gradient, released: Gradient, clip_norm: float) -> None:
        """Add the scores of a step: how much likelier what it released is if a canary was in."""
        seen = {name: value.detach().to(torch.float64) * self._plan.batch_size for name, value in released.items()}
        if self._is_residual:
            seen = {name: value - rest[name].to(value) if name in rest else value for name, value in seen.items()}
        shifts = self._project(seen) / clip_norm
        self._sums += shifts
        self._scores += shifts if self._plan.tree else self._compare(shifts)
        self._advance()

    def go_on(self, plan: LocalPlan) -> None:
        """Go on in the steps of another round, whose noise may be another."""
        self._plan = plan

    @property
    def scores(self) -> CanaryScores:
        """What the steps so far have shown."""
        return CanaryScores(self._scores.copy(), self.is_in, self._sums.copy())

    @property
    def _replaces(self) -> bool:
        return self._plan.adjacency == REPLACE_ONE

    def _draw(self, step: int) -> NDArray[np.bool_]:
        if self._places is not None:
            return np.asarray(self._places == step % self._plan.pass_steps)
        return coins(Fraction(self._plan.sample_rate), len(self.is_in), self._source)

    def _compare(self, shifts: Floats) -> Floats:
        plan = self._plan
        return compute_ratios(
            shifts,
            rate=plan.sample_rate,
            noise=plan.sum_noise,
            level=self._level,
            norm=plan.norm,
            replaces=self._replaces,
        )

    def _make_one(self, number: int, sign: float) -> Gradient:
        return self._make(number, sign) if self._make is not None else {}

    def _make_dirac(self, number: int, sign: float) -> Gradient:
        name, place = self._names[number], self._coordinates[number]
        value = torch.zeros(self._shapes[name], dtype=torch.float64)
        value.view(-1)[place] = sign * LONG * self._plan.clip_norm
        return {name: value}

    def _make_random(self, number: int, sign: float) -> Gradient:
        row = torch.from_numpy(sign * LONG * self._plan.clip_norm * self._require_directions()[number])
        parts = torch.split(row, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def _project(self, seen: Mapping[str, Tensor]) -> Floats:
        if self._directions is not None:
            row = torch.cat([seen[name].reshape(-1) for name in self._shapes]).cpu().numpy()
            return np.asarray(self._directions @ row)
        found = np.zeros(len(self.is_in))
        for name in dict.fromkeys(self._names):
            own = np.array([each == name for each in self._names])
            found[own] = seen[name].reshape(-1).cpu().numpy()[self._coordinates[own]]
        return found

    def _draw_coordinates(self, count: int) -> NDArray[np.int64]:
        """Draw a coordinate of its own for each canary, in the smallest parameters that have enough of them."""
        sizes, chosen = {name: shape.numel() for name, shape in self._shapes.items()}, list[str]()
        for name in sorted(sizes, key=lambda each: sizes[each]):
            if sum(sizes[each] for each in chosen) < count:
                chosen.append(name)
        places = [(name, place) for name in chosen for place in range(sizes[name])]
        if len(places) < count:
            message = f"{count} Dirac canaries need as many parameters, and the model has {len(places)}"
            raise InvalidArgument("count", f"{message}: use Widened(model, {count - len(places)}), or kind='random'")
        picked = np.argsort(self._source.words(len(places)), kind="stable")[:count].tolist()
        self._names = [places[place][0] for place in picked]
        return np.array([places[place][1] for place in picked])

    def _draw_directions(self, count: int) -> Floats:
        drawn = self._source.normal((count, sum(shape.numel() for shape in self._shapes.values())))
        return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))

    def _require_directions(self) -> Floats:
        if self._directions is None:
            raise InvalidArgument("kind", "Dirac canaries have coordinates and no directions: ask for kind='random'")
        return self._directions


class Widened(nn.Module):
    """A model with more parameters, which no record moves: room for the canaries of a small one."""

    def __init__(self, model: nn.Module, more: int) -> None:
        super().__init__()
        self.inner = model
        self.room = nn.Linear(checks.count(more=more), 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the model itself returns: the layer for canaries sees nothing but zeros."""
        found: Tensor = self.inner(inputs)
        nought: Tensor = self.room(found.new_zeros(len(found), self.room.in_features))
        return found + nought.view(-1, *[1] * (found.dim() - 1))


def make_record_canaries(count: int, source: RandomSource | None = None) -> tuple[NDArray[np.bool_], Floats]:
    """Return which of `count` records are in, and the inputs of those: one long coordinate each.

    With ``nn.Linear(count, 1, bias=False)`` and the loss −output the gradient of each is that coordinate, far beyond
    any clip norm, at every step. Unlike gradients that are put in, they go through sampling, loading and clipping.
    """
    is_in = coins(FAIR, checks.count(count=count), or_system(source).stream("canaries"))
    return is_in, LONG * np.eye(count)[is_in]


def _require_scoring(scoring: str) -> bool:
    if scoring not in (RESIDUAL, RELEASED):
        raise InvalidArgument("scoring", f"scoring must be {RESIDUAL!r} or {RELEASED!r}, got {scoring!r}")
    return scoring == RESIDUAL
