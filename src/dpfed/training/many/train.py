"""Many models of one architecture, each on its own data: clients of a cohort, teachers, shadow models.

Models with as many steps and the same learning rate are trained together, as many at a time as is fastest
(`batch_tuner`). Each has its own sample, clip norm, denominator and noise; one model's data never touch another's
numbers.

>>> import numpy as np
>>> from torch import nn
>>> from dpfed.plan.local import LocalPlan
>>> data = [(np.random.randn(20, 3), np.zeros(20, dtype=int)) for _ in range(5)]
>>> plan = LocalPlan(size=20, batch_size=10, steps=4, clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.5)
>>> found = train_many(nn.Linear(3, 2), data, [plan] * 5, loss=nn.CrossEntropyLoss(reduction="none"))
>>> len(found), found[0]["weight"].shape
(5, torch.Size([2, 3]))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfed import checks
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.plan.local import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import screening
from dpfed.training.engine.clip import Clip
from dpfed.training.generators import Generators
from dpfed.training.layers import compat
from dpfed.training.many import draws
from dpfed.training.many.batch_tuner import BatchTuner, Work
from dpfed.training.many.descent import Descent
from dpfed.training.many.ensemble import Ensemble
from dpfed.training.many.segments import Stacked
from dpfed.training.noise import NoiseSource
from dpfed.training.objective import LocalObjective
from dpfed.training.optimizing import OptimizerSettings
from dpfed.training.screening import Loss

MOST_BATCH = 1024
FEWEST_ROWS = 16  # of two models, for one pass that both share: from 4 on, how a row is rounded does not show how many
CHUNK = 16  # models at once with a seeded source, whose numbers must not depend on a clock


@dataclass(frozen=True, eq=False)
class Member:
    """One model of many: its records, its plan, its source of randomness, its objective, and the width of its tables.

    A `width` pins how many records stand in a row of a pass (`draws.find_width`); without one it is the most that a
    model of the group has.
    """

    inputs: Tensor
    targets: Tensor
    plan: LocalPlan
    source: RandomSource
    objective: LocalObjective | None = None  # the loss alone, from the common first parameters
    width: int | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """The properties that models trained together must share: public ones, which no records decide."""
        is_private = self.plan.noise_multiplier is not None
        pull = 0.0 if self.objective is None else self.objective.pull
        return self.plan.steps, self.plan.learning_rate, is_private, pull, self.width

    def make_twin(self) -> Member:
        """Return a model of the same kind without records, to be trained beside this one and dropped."""
        return replace(self, inputs=self.inputs[:0], targets=self.targets[:0], source=self.source.once("twin"))


def can_serve(plan: LocalPlan) -> bool:
    """Return whether many models can train by such a plan: whole gradients clipped in L2, batches that fit."""
    is_plain = (plan.norm, plan.layers, plan.adaptive, plan.tree) == ("l2", "together", None, None)
    return (is_plain or plan.noise_multiplier is None) and plan.batch_size <= MOST_BATCH


def train_many(
    model: nn.Module,
    datasets: Sequence[tuple[Any, Any]],
    plans: Sequence[LocalPlan],
    *,
    loss: Loss,
    recipe: OptimizerSettings | None = None,
    source: RandomSource | None = None,
    chunk: int | None = None,
    one_pass: bool | None = None,
    isolated: bool = False,
) -> list[Stacked]:
    """Train one model per data set (inputs, targets) by its plan, all from the model's own parameters; return theirs.

    `loss` takes the model's output and the targets and gives one number per example (reduction="none"). `chunk` pins
    how many models are trained at once, `one_pass` whether their first step, which all take from the same parameters,
    is one pass through one model. The model itself stays as it is.

    With `isolated`, which needs plans without noise, a `chunk` and `one_pass`, the bits of a model depend on its own
    data and the plans alone: nothing follows a clock, and one that diverges does not stop the others and is returned as
    it is, not finite.

    Privacy: model k is ``plans[k].event`` for one record of its data where the plan has noise, which must be the
    plan's `unit`, and must be charged before. Without noise nothing is protected.
    """
    if not plans or len(datasets) != len(plans) or not all(isinstance(plan, LocalPlan) for plan in plans):
        message = f"plans must be one LocalPlan for each data set, got {len(plans)} for {len(datasets)}: use [plan] * K"
        raise InvalidArgument("plans", message)
    if isolated:
        _require_pinned(plans, chunk, one_pass)
    first = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    dtype = _require_dtype(first)
    records = [_require_records(data, number, dtype) for number, data in enumerate(datasets)]
    _require_alike(records)
    compat.check(model)  # the layer by its name, before it is found by what it does
    screening.require_sound(TensorDataset(*map(torch.cat, zip(*records, strict=True))), model, loss, None)
    origin = or_system(source)
    members = [
        Member(*pair, plan, origin.once(f"model {number}"))
        for number, (pair, plan) in enumerate(zip(records, plans, strict=True))
    ]
    tuner = BatchTuner(Ensemble(model, loss, make_up_examples(*records[0])))
    trained: dict[int, Stacked] = {}
    for places, parameters in train_together(
        tuner, members, first, recipe or OptimizerSettings(), chunk=chunk, one_pass=one_pass
    ):
        if not isolated and not all(bool(value.isfinite().all()) for value in parameters.values()):
            message = "a model is no longer finite, and what was charged stays spent: plan with a smaller learning rate"
            raise PrivacyError(message)
        for row, place in enumerate(places):
            trained[place] = {name: value[row] for name, value in parameters.items()}
    return [trained[place] for place in range(len(members))]


def make_up_examples(inputs: Tensor, targets: Tensor, count: int = 4) -> tuple[Tensor, Tensor]:
    """Return `count` made-up examples of that form: random inputs, targets of zero."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *inputs.shape[1:])
    if inputs.is_floating_point():
        like = torch.randn(shape, dtype=inputs.dtype, generator=generator)
    else:  # tokens 0 and 1 are in every vocabulary
        like = torch.randint(0, 2, shape, dtype=inputs.dtype, generator=generator)
    return like, targets.new_zeros(count, *targets.shape[1:])


def train_together(
    tuner: BatchTuner,
    members: Sequence[Member],
    first: Mapping[str, Tensor],
    recipe: OptimizerSettings,
    *,
    chunk: int | None = None,
    one_pass: bool | None = None,
    models: int | None = None,
) -> Iterator[tuple[list[int], Stacked]]:
    """Train the members in groups; yield the places of each group with its stacked parameters.

    `chunk` and `one_pass` are those of `train_many`; `models` is how many there may be, if these are not all.

    Privacy: whether a model is alone in a pass follows from `chunk`, `models` and its plan, not from who else is there:
    one model rounds otherwise than two or more do, so one that is left over gets a twin.
    """
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        if not can_serve(member.plan):
            message = "this plan clips or samples in a way that is only there for one model at a time: use make_private"
            raise InvalidArgument("plans", f"{message} ({member.plan})")
        groups[member.kind].append(place)
    for (steps, _, is_private, _, width), places in groups.items():
        several = CHUNK if chunk is None else checks.count(chunk=chunk)
        is_better = tuner.ensemble.is_better_shared(is_private=is_private) if one_pass is None else one_pass
        is_shared = is_better and (width is None or 2 * width >= FEWEST_ROWS)
        if chunk is None and draws.is_one_stream([member.source for member in members]):
            rows = width or max(members[place].plan.batch_size for place in places)
            several = tuner.choose_count(models or len(places), Work(steps, rows, is_private, is_shared))
        parts = -(-len(places) // several)
        for part in range(parts):
            some = places[part::parts]  # parts of equal size
            group = _Group(tuner.ensemble, _pair_up([members[place] for place in some], several), first, recipe)
            found = group.train(is_shared=is_shared and several > 1)
            yield some, {name: value[: len(some)] for name, value in found.items()}


def _pair_up(members: list[Member], several: int) -> list[Member]:
    """Return the members, with a twin if there is but one where several are trained at once."""
    return [*members, members[0].make_twin()] if len(members) == 1 < several else members


class _Group:
    """A group of models with the same number of steps and learning rate, trained at once."""

    def __init__(
        self, ensemble: Ensemble, members: list[Member], first: Mapping[str, Tensor], recipe: OptimizerSettings
    ) -> None:
        self._ensemble = ensemble
        self._plans = [member.plan for member in members]
        self._sources = [member.source for member in members]
        self._sizes = [len(member.inputs) for member in members]
        self._width = members[0].width
        # The last row is all zeros: the padding of a model that has fewer examples than another.
        self._inputs = torch.cat([*(member.inputs for member in members), _make_blank(members[0].inputs)])
        self._targets = torch.cat([*(member.targets for member in members), _make_blank(members[0].targets)])
        self._first = first
        self._parameters = ensemble.stacked(len(members), first)
        self._settings = recipe
        self._terms = _StackedTerms([member.objective for member in members], first)
        self._is_private = self._plans[0].noise_multiplier is not None
        self._generators = Generators(self._sources[0])

    def train(self, *, is_shared: bool) -> Stacked:
        """Take all steps, the first in one pass if it is shared; return the stacked parameters."""
        plan = self._plans[0]
        descent = Descent(self._settings, self._parameters, plan.learning_rate)
        with self._generators.scope():
            for step, found in enumerate(
                self._noised_gradients(is_shared) if self._is_private else self._plain_gradients(is_shared)
            ):
                self._terms.add_(found, self._parameters)
                descent.step(found, self._settings.rate(plan.learning_rate, step, plan.steps))
                self._generators.refresh()
        self._hold_empty()
        return self._parameters

    def _hold_empty(self) -> None:
        """Put models without records and noise back to the first parameters: such a one does nothing."""
        if not self._is_private and not all(self._sizes):
            is_empty = torch.tensor(self._sizes) == 0
            for name, value in self._parameters.items():
                value[is_empty] = self._first[name]

    def _plain_gradients(self, is_shared: bool) -> Iterator[Stacked]:
        batch_sizes = [plan.batch_size for plan in self._plans]
        steps = self._plans[0].steps if any(self._sizes) else 0
        for step, table in enumerate(draws.draw_shuffled(self._sizes, batch_sizes, steps, self._sources, self._width)):
            held, is_first = self._weights_at(step, is_shared)
            yield self._ensemble.mean_gradients(held, *self._fetch(table), is_shared=is_first)

    def _noised_gradients(self, is_shared: bool) -> Iterator[Stacked]:
        """Yield the noised mean gradients of each step.

        Privacy: each model's clipped sum over its Poisson sample with its own noise, over its public batch size.
        """
        noise = _Noise(self._plans, self._sources, sum(value.numel() for value in self._first.values()))
        rates = {plan: plan.sample_rate for plan in set(self._plans)}
        clip_norms = torch.tensor([plan.clip_norm for plan in self._plans], dtype=torch.float64)
        batches = torch.tensor([plan.batch_size for plan in self._plans])
        tables = draws.draw_poisson(
            self._sizes, [rates[plan] for plan in self._plans], self._plans[0].steps, self._sources
        )
        for step, table in enumerate(tables):
            held, is_first = self._weights_at(step, is_shared)
            sums: Stacked = {}
            for piece in table.split(self._width or table.rows.shape[1] or 1):
                found = self._ensemble.clipped_sums(held, *self._fetch(piece), clip_norms, is_shared=is_first)
                sums = {name: value.add_(found[name]) for name, value in sums.items()} or found
            if not sums:  # no record was drawn, which must not show: there is noise all the same
                sums = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
            noisy = noise.add(sums)
            yield {name: value.div_(batches.view(-1, *[1] * (value.dim() - 1))) for name, value in noisy.items()}

    def _weights_at(self, step: int, is_shared: bool) -> tuple[Mapping[str, Tensor], bool]:
        """Return the parameters for this step, and whether they are those of one model that all still equal."""
        return (self._first, True) if is_shared and not step else (self._parameters, False)

    def _fetch(self, table: draws.BatchTable) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.from_numpy(table.rows)
        mask = torch.from_numpy(table.is_there.astype(np.float64))
        return _take_rows(self._inputs, places), _take_rows(self._targets, places), mask


class _StackedTerms:
    """The terms that each model's objective adds to its gradient: pull · (w − anchor) + shift.

    Privacy: added after clipping and noise; `LocalObjective` says what they may depend on.
    """

    def __init__(self, objectives: Sequence[LocalObjective | None], first: Mapping[str, Tensor]) -> None:
        aims = [aim for aim in objectives if aim is not None and not aim.is_plain]
        self._pull = aims[0].pull if aims else 0.0
        anchors = [None if aim is None else aim.anchor for aim in objectives] if self._pull else []
        shifts = [None if aim is None else aim.shift for aim in objectives] if aims else []
        self._anchors = _stack(anchors, first)
        self._shifts = _stack(shifts, first) if any(shift is not None for shift in shifts) else {}

    def add_(self, gradients: Stacked, parameters: Stacked) -> None:
        """Add the terms to the gradients in place."""
        for name, anchor in self._anchors.items():
            gradients[name].add_(parameters[name] - anchor, alpha=self._pull)
        for name, shift in self._shifts.items():
            gradients[name].add_(shift)


def _stack(vectors: Sequence[Any], first: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the vectors, one row each, split into the parameters' shapes; zeros where there is none.

    A vector that all share is one row, which broadcasts.
    """
    if not vectors:
        return {}
    rows = vectors[:1] if all(vector is vectors[0] for vector in vectors) else vectors
    sizes, like = [value.numel() for value in first.values()], next(iter(first.values()))
    whole = np.stack([np.zeros(sum(sizes)) if row is None else np.asarray(row, dtype=float) for row in rows])
    pieces = torch.split(torch.from_numpy(whole).to(like.dtype), sizes, dim=1)
    return {
        name: piece.view(len(rows), *value.shape) for (name, value), piece in zip(first.items(), pieces, strict=True)
    }


class _Noise:
    """The noise of all models; those of one standard deviation share a stream, if `draws.is_one_stream`.

    Privacy: `NoiseSource.add` with the model's own std; no number of the noise is used twice.
    """

    def __init__(self, plans: Sequence[LocalPlan], sources: Sequence[RandomSource], dimension: int) -> None:
        noises = [NoiseSource(source) for source in (sources[:1] if draws.is_one_stream(sources) else sources)]
        stds = {plan: noises[0].std(plan.noise, Clip(plan.clip_norm).clip_norm, dimension) for plan in set(plans)}
        if len(noises) > 1:
            self._parts = [
                (noise, stds[plan], [place]) for place, (noise, plan) in enumerate(zip(noises, plans, strict=True))
            ]
            return
        places: dict[float, list[int]] = defaultdict(list)
        for place, plan in enumerate(plans):
            places[stds[plan]].append(place)
        self._parts = [(noises[0], std, some) for std, some in places.items()]

    def add(self, sums: Stacked) -> Stacked:
        """Return the sums of all models with noise."""
        if len(self._parts) == 1:
            noise, std, _ = self._parts[0]
            return noise.add(sums, std)
        noisy = {name: torch.empty_like(value) for name, value in sums.items()}
        for noise, std, places in self._parts:
            for name, value in noise.add({name: value[places] for name, value in sums.items()}, std).items():
                noisy[name][places] = value
        return noisy


def _require_pinned(plans: Sequence[LocalPlan], chunk: int | None, one_pass: bool | None) -> None:
    if chunk is None or one_pass is None or any(plan.noise_multiplier is not None for plan in plans):
        message = (
            "isolated models need chunk and one_pass, which a clock might decide, and plans without noise: give "
            "chunk=64, one_pass=False, and no noise_multiplier"
        )
        raise InvalidArgument("isolated", message)


def _require_dtype(parameters: Mapping[str, Tensor]) -> torch.dtype:
    kinds = {value.dtype for value in parameters.values()}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds))) or "none"
        raise InvalidArgument(
            "model",
            f"trainable parameters must all be float32 or all float64 to stack, got {found}: use model.float()",
        )
    if not all(bool(value.isfinite().all()) for value in parameters.values()):
        raise InvalidArgument(
            "model",
            "model has parameters that are NaN or infinite, from which nothing is learned: load or initialise it again",
        )
    return kinds.pop()


def _require_records(data: Any, number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return inputs and targets as tensors; refuse values that are not finite now, not when they are drawn."""
    if not isinstance(data, list | tuple) or len(data) != 2:
        raise InvalidArgument(
            "datasets", f"data set {number} must be a pair of arrays, which the loss compares: give (inputs, targets)"
        )
    inputs, targets = (_to_tensor(part, dtype) for part in data)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        message = (
            f"inputs and targets of data set {number} must have equally many rows, one for each record, or they do not "
            "belong together: check their first axes"
        )
        raise InvalidArgument("datasets", message)
    if not all(bool(part.isfinite().all()) for part in (inputs, targets)):
        message = "fill or remove them by a rule that looks at one record at a time, or at none"
        raise InvalidArgument("datasets", f"data set {number} has values that are not finite: {message}")
    return inputs, targets


def _require_alike(records: Sequence[tuple[Tensor, Tensor]]) -> None:
    forms = {tuple((part.shape[1:], part.dtype) for part in pair) for pair in records}
    if len(forms) > 1:
        message = "records of all data sets must have one shape and type to be stacked, got several: convert them"
        raise InvalidArgument("datasets", message)


def _take_rows(values: Tensor, places: Tensor) -> Tensor:
    """Return values[places]; for whole rows this way is several times faster."""
    return values.index_select(0, places.flatten()).view(*places.shape, *values.shape[1:])


def _make_blank(like: Tensor) -> Tensor:
    return like.new_zeros(1, *like.shape[1:])


def _to_tensor(part: Any, dtype: torch.dtype) -> Tensor:
    values = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    return values.to(dtype if values.is_floating_point() else torch.long)
