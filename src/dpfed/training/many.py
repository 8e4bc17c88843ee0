"""Many models of one architecture, each on its own data: clients of a cohort, teachers, shadow models.

Models with as many steps and the same learning rate are trained together, a few at a time: as many as fit into the
processor's caches. Each has its own sample, clip norm, denominator and noise; one model's data never touch another's
numbers.

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
from torch.optim import Optimizer

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.local_plan import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import draws
from dpfed.training.ensemble import Ensemble, Loss, Stacked
from dpfed.training.noise import NoiseSource
from dpfed.training.recipe import Recipe

CACHE = 4 << 20  # bytes of parameters that are trained together
MOST_MODELS = 4096
MOST_RECORDS = 1 << 14  # of all models' batches together


@dataclass(frozen=True, eq=False)
class Member:
    """One model's records, its plan, and where its randomness comes from."""

    inputs: Tensor
    targets: Tensor
    plan: LocalPlan
    source: RandomSource

    @property
    def kind(self) -> tuple[Any, ...]:
        """What models must have in common to be trained together."""
        return self.plan.steps, self.plan.learning_rate, self.plan.noise_multiplier is None


def can_serve(plan: LocalPlan) -> bool:
    """Whether plans like this one are carried out here: the plain clip of a whole gradient, batches that fit."""
    is_plain = (plan.norm, plan.layers, plan.adaptive) == ("l2", "together", None)
    return (is_plain or plan.noise_multiplier is None) and plan.batch_size <= MOST_RECORDS // 16


def train_many(
    model: nn.Module,
    datasets: Sequence[tuple[Any, Any]],
    plans: Sequence[LocalPlan],
    *,
    loss: Loss,
    recipe: Recipe | None = None,
    source: RandomSource | None = None,
    chunk: int | None = None,
) -> list[Stacked]:
    """The parameters of one model per data set (inputs, targets) after its plan's steps, all from the model's own.

    Privacy: model k is ``plans[k].event`` for one record of its data where the plan has noise, and must be charged
    before. Without noise nothing is protected.
    """
    if len(datasets) != len(plans) or not plans:
        raise InvalidArgument("plans", f"plans must be one for each data set, got {len(plans)} for {len(datasets)}")
    origin = or_system(source)
    dtype = next(model.parameters()).dtype
    members = [
        Member(_tensor(inputs, dtype), _tensor(targets, dtype), plan, origin.once(f"model {number}"))
        for number, ((inputs, targets), plan) in enumerate(zip(datasets, plans, strict=True))
    ]
    first = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    first_member = members[0]
    ensemble = Ensemble(model, loss, made_up(first_member.inputs, first_member.targets))
    trained: dict[int, Stacked] = {}
    for places, parameters in together(ensemble, members, first, recipe or Recipe(), chunk=chunk):
        for row, place in enumerate(places):
            trained[place] = {name: value[row] for name, value in parameters.items()}
    return [trained[place] for place in range(len(members))]


def made_up(inputs: Tensor, targets: Tensor, count: int = 4) -> tuple[Tensor, Tensor]:
    """So many examples of that form that tell nothing of any data."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, *inputs.shape[1:])
    if inputs.is_floating_point():
        return torch.randn(shape, dtype=inputs.dtype, generator=generator), targets.new_zeros(count, *targets.shape[1:])
    return torch.randint(0, 2, shape, dtype=inputs.dtype, generator=generator), targets.new_zeros(
        count, *targets.shape[1:]
    )


def together(
    ensemble: Ensemble,
    members: Sequence[Member],
    first: Mapping[str, Tensor],
    recipe: Recipe,
    *,
    proximal: float = 0.0,
    chunk: int | None = None,
) -> Iterator[tuple[list[int], Stacked]]:
    """Groups of places and their trained parameters, stacked; `chunk` pins how many models are trained at once."""
    for plan in {member.plan for member in members}:
        if not can_serve(plan):
            raise InvalidArgument("plans", f"this plan is for one model after the other: {plan}")
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, member in enumerate(members):
        groups[member.kind].append(place)
    bytes_each = sum(value.numel() * value.element_size() for value in first.values())
    for places in groups.values():
        several = chunk or models_at_once(bytes_each, max(members[place].plan.batch_size for place in places))
        for start in range(0, len(places), checks.count(chunk=several)):
            some = places[start : start + several]
            yield some, _Group(ensemble, [members[place] for place in some], first, recipe, proximal).trained()


def models_at_once(bytes_each: int, batch_size: int) -> int:
    """How many models are trained together: parameters and batches of all of them stay in the caches."""
    return max(1, min(CACHE // bytes_each, MOST_RECORDS // batch_size, MOST_MODELS))


class _Group:
    """Models with the same number of steps and learning rate."""

    def __init__(
        self, ensemble: Ensemble, members: list[Member], first: Mapping[str, Tensor], recipe: Recipe, proximal: float
    ) -> None:
        self._ensemble = ensemble
        self._plans = [member.plan for member in members]
        self._sources = [member.source for member in members]
        self._sizes = [len(member.inputs) for member in members]
        # The last row is all zeros, and stands wherever a model has fewer examples than another.
        self._inputs = torch.cat([*(member.inputs for member in members), _blank(members[0].inputs)])
        self._targets = torch.cat([*(member.targets for member in members), _blank(members[0].targets)])
        self._starts = np.cumsum([0, *self._sizes])
        self._first = first
        self._parameters = ensemble.stacked(len(members), first)
        self._recipe = recipe
        self._proximal = proximal

    def trained(self) -> Stacked:
        """The parameters after all steps."""
        plan = self._plans[0]
        optimizer = self._recipe.optimizer_of(list(self._parameters.values()), plan.learning_rate)  # type: ignore[arg-type]
        is_private = plan.noise_multiplier is not None
        for step, table in enumerate(self._tables(is_private=is_private)):
            for group in optimizer.param_groups:
                group["lr"] = self._recipe.rate(plan.learning_rate, step, plan.steps)
            self._take(optimizer, self._noised(table) if is_private else self._plain(table))
        return self._parameters

    def _tables(self, *, is_private: bool) -> list[draws.Table]:
        steps = self._plans[0].steps
        if is_private:
            return draws.poisson(self._sizes, [plan.sample_rate for plan in self._plans], steps, self._sources)
        return draws.shuffled(self._sizes, [plan.batch_size for plan in self._plans], steps, self._sources)

    def _take(self, optimizer: Optimizer, gradients: Stacked) -> None:
        for name, value in self._parameters.items():
            value.grad = gradients[name]
            if self._proximal:
                value.grad.add_(value - self._first[name], alpha=self._proximal)
        optimizer.step()

    def _plain(self, table: draws.Table) -> Stacked:
        return self._ensemble.mean_gradients(self._parameters, *self._fetched(table))

    def _noised(self, table: draws.Table) -> Stacked:
        """Privacy: each model's clipped sum over its Poisson sample with its own noise, over its public batch size."""
        clip_norms = torch.tensor([plan.clip_norm for plan in self._plans], dtype=torch.float64)
        if table.rows.shape[1]:
            sums = self._ensemble.clipped_sums(self._parameters, *self._fetched(table), clip_norms)
        else:
            sums = {name: torch.zeros_like(value) for name, value in self._parameters.items()}
        noisy = self._with_noise(sums)
        batches = torch.tensor([plan.batch_size for plan in self._plans], dtype=torch.float64)
        return {name: value / _along(batches.to(value.dtype), value) for name, value in noisy.items()}

    def _with_noise(self, sums: Stacked) -> Stacked:
        dimension = sum(value[0].numel() for value in sums.values())
        noises = [NoiseSource(source) for source in self._sources[: 1 if self._is_one_stream else None]]
        stds = [noises[0].std(plan.noise, plan.clip_norm, dimension) for plan in self._plans]
        if not self._is_one_stream:
            rows = [
                noise.add({name: value[number] for name, value in sums.items()}, std)
                for number, (noise, std) in enumerate(zip(noises, stds, strict=True))
            ]
            return {name: torch.stack([row[name] for row in rows]) for name in sums}
        scale = torch.tensor(stds, dtype=torch.float64)
        drawn = noises[0].add({name: torch.zeros_like(value) for name, value in sums.items()}, 1.0)
        return {name: value + drawn[name] * _along(scale.to(value.dtype), value) for name, value in sums.items()}

    @property
    def _is_one_stream(self) -> bool:
        return all(source.is_private for source in self._sources)

    def _fetched(self, table: draws.Table) -> tuple[Tensor, Tensor, Tensor]:
        rows = np.where(table.is_there, table.rows + self._starts[:-1, None], self._starts[-1])
        places = torch.from_numpy(rows)
        return self._inputs[places], self._targets[places], torch.from_numpy(table.is_there.astype(np.float64))


def _along(values: Tensor, like: Tensor) -> Tensor:
    """One number per model, to be multiplied with stacked tensors."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _blank(like: Tensor) -> Tensor:
    return like.new_zeros(1, *like.shape[1:])


def _tensor(part: Any, dtype: torch.dtype) -> Tensor:
    values = torch.as_tensor(np.array(part) if not isinstance(part, Tensor) else part)
    return values.to(dtype if values.is_floating_point() else torch.long)
