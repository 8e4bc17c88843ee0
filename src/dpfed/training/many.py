"""Many models of one architecture, each on its own data: clients of a cohort, teachers, shadow models.

Models with as many steps and the same learning rate are trained together, as many at a time as is fastest (`pace`).
Each has its own sample, clip norm, denominator and noise; one model's data never touch another's numbers.

>>> import numpy as np
>>> from torch import nn
>>> from dpfed.local_plan import LocalPlan
>>> data = [(np.random.randn(20, 3), np.zeros(20, dtype=int)) for _ in range(5)]
>>> plan = LocalPlan(size=20, batch_size=10, steps=4, clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.5)
>>> found = train_many(nn.Linear(3, 2), data, [plan] * 5, loss=nn.CrossEntropyLoss(reduction="none"))
>>> len(found), found[0]["weight"].shape
(5, torch.Size([2, 3]))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpfed import checks
from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.local_plan import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import compat, draws, screening
from dpfed.training.clip import Clip
from dpfed.training.descent import Descent
from dpfed.training.ensemble import Ensemble, Loss
from dpfed.training.generators import Generators
from dpfed.training.noise import NoiseSource
from dpfed.training.objective import LocalObjective
from dpfed.training.pace import Pace, Work
from dpfed.training.recipe import Recipe
from dpfed.training.segments import Stacked

MOST_BATCH = 1024
CHUNK = 16  # models at once with a seeded source, whose numbers must not depend on a clock


@dataclass(frozen=True, eq=False)
class Member:
    """One model's records, its plan, where its randomness comes from, and terms that are added to its loss."""

    inputs: Tensor
    targets: Tensor
    plan: LocalPlan
    source: RandomSource
    objective: LocalObjective | None = None  # the loss alone, from the common first parameters

    @property
    def kind(self) -> tuple[Any, ...]:
        """What models must have in common to be trained together; without records and noise nothing is done."""
        is_private = self.plan.noise_multiplier is not None
        pull = 0.0 if self.objective is None else self.objective.pull
        return self.plan.steps, self.plan.learning_rate, is_private, is_private or len(self.inputs) > 0, pull


def can_serve(plan: LocalPlan) -> bool:
    """Whether plans like this one are carried out here: the plain clip of a whole gradient, batches that fit."""
    is_plain = (plan.norm, plan.layers, plan.adaptive, plan.tree) == ("l2", "together", None, None)
    return (is_plain or plan.noise_multiplier is None) and plan.batch_size <= MOST_BATCH


def train_many(
    model: nn.Module,
    datasets: Sequence[tuple[Any, Any]],
    plans: Sequence[LocalPlan],
    *,
    loss: Loss,
    recipe: Recipe | None = None,
    source: RandomSource | None = None,
    chunk: int | None = None,
    one_pass: bool | None = None,
) -> list[Stacked]:
    """The parameters of one model per data set (inputs, targets) after its plan's steps, all from the model's own.

    `loss` takes the model's output and the targets and gives one number per example (reduction="none"). `chunk` pins
    how many models are trained at once, `one_pass` whether their first step, which all take from the same parameters,
    is one pass through one model. The model itself stays as it is.

    Privacy: model k is ``plans[k].event`` for one record of its data where the plan has noise, which must be the
    plan's `unit`, and must be charged before. Without noise nothing is protected.
    """
    if not plans or len(datasets) != len(plans) or not all(isinstance(plan, LocalPlan) for plan in plans):
        message = f"plans must be one LocalPlan for each data set, got {len(plans)} for {len(datasets)}"
        raise InvalidArgument("plans", message)
    first = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    dtype = _dtype(first)
    records = [_records(data, number, dtype) for number, data in enumerate(datasets)]
    _require_alike(records)
    compat.check(model)  # the layer by its name, before it is found by what it does
    screening.require_sound(TensorDataset(*map(torch.cat, zip(*records, strict=True))), model, loss, None)
    origin = or_system(source)
    members = [
        Member(*pair, plan, origin.once(f"model {number}"))
        for number, (pair, plan) in enumerate(zip(records, plans, strict=True))
    ]
    pace = Pace(Ensemble(model, loss, made_up(*records[0])))
    trained: dict[int, Stacked] = {}
    for places, parameters in together(pace, members, first, recipe or Recipe(), chunk=chunk, one_pass=one_pass):
        if not all(bool(value.isfinite().all()) for value in parameters.values()):
            message = "a model is no longer finite: what was charged stays spent; plan with a smaller learning rate"
            raise PrivacyError(message)
        for row, place in enumerate(places):
            trained[place] = {name: value[row] for name, value in parameters.items()}
    return [trained[place] for place in range(len(members))]


def made_up(inputs: Tensor, targets: Tensor, count: int = 4) -> tuple[Tensor, Tensor]:
    """So many examples of that form that tell nothing of any data: random inputs, targets of zero."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *inputs.shape[1:])
    if inputs.is_floating_point():
        like = torch.randn(shape, dtype=inputs.dtype, generator=generator)
    else:  # tokens 0 and 1 are in every vocabulary
        like = torch.randint(0, 2, shape, dtype=inputs.dtype, generator=generator)
    return like, targets.new_zeros(count, *targets.shape[1:])


def together(
    pace: Pace,
    members: Sequence[Member],
    first: Mapping[str, Tensor],
    recipe: Recipe,
    *,
    chunk: int | None = None,
    one_pass: bool | None = None,
) -> Iterator[tuple[list[int], Stacked]]:
    """Groups of places and their trained parameters, stacked; `chunk` and `one_pass` pin what `train_many` says."""
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        if not can_serve(member.plan):
            message = f"this plan is for one model after the other, with make_private: {member.plan}"
            raise InvalidArgument("plans", message)
        groups[member.kind].append(place)
    for (steps, _, is_private, *_), places in groups.items():
        several = CHUNK if chunk is None else checks.count(chunk=chunk)
        is_shared = pace.ensemble.is_better_shared(is_private=is_private) if one_pass is None else one_pass
        if chunk is None and draws.is_one_stream([member.source for member in members]):
            work = Work(steps, max(members[place].plan.batch_size for place in places), is_private, is_shared)
            several = pace.best(len(places), work)
        parts = -(-len(places) // several)
        for part in range(parts):
            some = places[part::parts]  # parts of equal size
            group = _Group(pace.ensemble, [members[place] for place in some], first, recipe)
            yield some, group.trained(is_shared=is_shared and len(some) > 1)


class _Group:
    """Models with the same number of steps and learning rate."""

    def __init__(self, ensemble: Ensemble, members: list[Member], first: Mapping[str, Tensor], recipe: Recipe) -> None:
        self._ensemble = ensemble
        self._plans = [member.plan for member in members]
        self._sources = [member.source for member in members]
        self._sizes = [len(member.inputs) for member in members]
        # The last row is all zeros, and stands wherever a model has fewer examples than another.
        self._inputs = torch.cat([*(member.inputs for member in members), _blank(members[0].inputs)])
        self._targets = torch.cat([*(member.targets for member in members), _blank(members[0].targets)])
        self._first = first
        self._parameters = ensemble.stacked(len(members), first)
        self._recipe = recipe
        self._terms = _AddedTerms([member.objective for member in members], first)
        self._is_private = self._plans[0].noise_multiplier is not None
        self._generators = Generators(self._sources[0])

    def trained(self, *, is_shared: bool) -> Stacked:
        """The parameters after all steps, of which the first is one pass if it is shared."""
        plan = self._plans[0]
        descent = Descent(self._recipe, self._parameters, plan.learning_rate)
        with self._generators.scope():
            for step, found in enumerate(self._noised(is_shared) if self._is_private else self._plain(is_shared)):
                self._terms.add_(found, self._parameters)
                descent.step(found, self._recipe.rate(plan.learning_rate, step, plan.steps))
                self._generators.refresh()
        return self._parameters

    def _plain(self, is_shared: bool) -> Iterator[Stacked]:
        batch_sizes = [plan.batch_size for plan in self._plans]
        steps = self._plans[0].steps if any(self._sizes) else 0
        for step, table in enumerate(draws.shuffled(self._sizes, batch_sizes, steps, self._sources)):
            held, is_first = self._held(step, is_shared)
            yield self._ensemble.mean_gradients(held, *self._fetched(table), is_shared=is_first)

    def _noised(self, is_shared: bool) -> Iterator[Stacked]:
        """Privacy: each model's clipped sum over its Poisson sample with its own noise, over its public batch size."""
        noise = _Noise(self._plans, self._sources, sum(value.numel() for value in self._first.values()))
        rates = {plan: plan.sample_rate for plan in set(self._plans)}
        clip_norms = torch.tensor([plan.clip_norm for plan in self._plans], dtype=torch.float64)
        batches = torch.tensor([plan.batch_size for plan in self._plans])
        tables = draws.poisson(self._sizes, [rates[plan] for plan in self._plans], self._plans[0].steps, self._sources)
        for step, table in enumerate(tables):
            if table.rows.shape[1]:
                held, is_first = self._held(step, is_shared)
                sums = self._ensemble.clipped_sums(held, *self._fetched(table), clip_norms, is_shared=is_first)
            else:  # nobody was drawn, which nobody may see: there is noise all the same
                sums = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
            noisy = noise.add(sums)
            yield {name: value.div_(batches.view(-1, *[1] * (value.dim() - 1))) for name, value in noisy.items()}

    def _held(self, step: int, is_shared: bool) -> tuple[Mapping[str, Tensor], bool]:
        """The parameters for this step, and whether they are those of one model that all still are."""
        return (self._first, True) if is_shared and not step else (self._parameters, False)

    def _fetched(self, table: draws.Table) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.from_numpy(table.rows)
        return self._inputs[places], self._targets[places], torch.from_numpy(table.is_there.astype(np.float64))


class _AddedTerms:
    """The gradients of the terms that each model's objective adds to its loss, pull · (w − anchor) + shift.

    Privacy: added after clipping and noise; `LocalObjective` says what they may depend on.
    """

    def __init__(self, objectives: Sequence[LocalObjective | None], first: Mapping[str, Tensor]) -> None:
        aims = [aim for aim in objectives if aim is not None and not aim.is_plain]
        self._pull = aims[0].pull if aims else 0.0
        anchors = [None if aim is None else aim.anchor for aim in objectives] if self._pull else []
        shifts = [None if aim is None else aim.shift for aim in objectives] if aims else []
        self._anchors = _stacked(anchors, first)
        self._shifts = _stacked(shifts, first) if any(shift is not None for shift in shifts) else {}

    def add_(self, gradients: Stacked, parameters: Stacked) -> None:
        """Add them in place."""
        for name, anchor in self._anchors.items():
            gradients[name].add_(parameters[name] - anchor, alpha=self._pull)
        for name, shift in self._shifts.items():
            gradients[name].add_(shift)


def _stacked(vectors: Sequence[Any], first: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one row for each vector, cut into the parameters' shapes; zeros where there is none.

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
    """The noise of every model's plan; models of one standard deviation take theirs from one stream, if they may.

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
        """The sums of all models with noise."""
        if len(self._parts) == 1:
            noise, std, _ = self._parts[0]
            return noise.add(sums, std)
        noisy = {name: torch.empty_like(value) for name, value in sums.items()}
        for noise, std, places in self._parts:
            for name, value in noise.add({name: value[places] for name, value in sums.items()}, std).items():
                noisy[name][places] = value
        return noisy


def _dtype(parameters: Mapping[str, Tensor]) -> torch.dtype:
    kinds = {value.dtype for value in parameters.values()}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        found = ", ".join(sorted(map(str, kinds))) or "none"
        raise InvalidArgument("model", f"trainable parameters must all be float32 or all float64, got {found}")
    if not all(bool(value.isfinite().all()) for value in parameters.values()):
        raise InvalidArgument("model", "model has parameters that are not finite: start from others")
    return kinds.pop()


def _records(data: Any, number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors; what is not finite is refused here, and not when it is drawn."""
    if not isinstance(data, list | tuple) or len(data) != 2:
        raise InvalidArgument("datasets", f"data set {number} must be a pair of arrays, inputs and targets")
    inputs, targets = (_tensor(part, dtype) for part in data)
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        message = f"inputs and targets of data set {number} must have one leading axis with as many records each"
        raise InvalidArgument("datasets", message)
    if not all(bool(part.isfinite().all()) for part in (inputs, targets)):
        message = "fill or remove them by a rule that looks at one record at a time, or at none"
        raise InvalidArgument("datasets", f"data set {number} has values that are not finite: {message}")
    return inputs, targets


def _require_alike(records: Sequence[tuple[Tensor, Tensor]]) -> None:
    forms = {tuple((part.shape[1:], part.dtype) for part in pair) for pair in records}
    if len(forms) > 1:
        message = "records of all data sets must have one shape and type, inputs and targets: several were found"
        raise InvalidArgument("datasets", message)


def _blank(like: Tensor) -> Tensor:
    return like.new_zeros(1, *like.shape[1:])


def _tensor(part: Any, dtype: torch.dtype) -> Tensor:
    values = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    return values.to(dtype if values.is_floating_point() else torch.long)
