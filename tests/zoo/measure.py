"""What one private step releases at next to no noise, and what a loop over single records says it should be."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpfed import LocalPlan, make_private
from dpfed.errors import InvalidArgument
from dpfed.training.loop import Private
from zoo.records import SIZE
from zoo.specimen import Specimen

EVERYONE = tuple(range(SIZE))


@dataclass(frozen=True)
class Released:
    """The sum that a step gave away, in clip norms, and what the model keeps beside its parameters."""

    total: Tensor
    buffers: dict[str, Tensor]


def release(specimen: Specimen, records: Sequence[int], clip_norm: float) -> Released | None:
    """What one step over exactly these records releases; None if the model was refused and nothing charged."""
    try:
        private = prepare(specimen, records, clip_norm)
    except InvalidArgument:
        return None
    before = flat(trained(private.model))
    try:
        for batch in private.loader:
            private.step(batch)
    except InvalidArgument:
        if private.steps_taken:
            raise
        return None
    finally:
        private.close()
    total = before - flat(trained(private.model))
    return Released(total, {name: value.clone() for name, value in private.model.named_buffers()})


def prepare(specimen: Specimen, records: Sequence[int], clip_norm: float) -> Private:
    """A run of one step over exactly these records, in which the parameters move by the sum in clip norms.

    Everybody is drawn, as the rate is batch_size/size = 1 for a size that is declared and not counted; noise is 1e-9
    of the clip.
    """
    model = specimen.make()
    plan = LocalPlan(size=SIZE, batch_size=SIZE, steps=1, clip_norm=clip_norm, noise_multiplier=1e-9)
    optimizer = torch.optim.SGD(trained(model), lr=SIZE / clip_norm)
    return make_private(model, optimizer, specimen.dataset(records), plan, loss=specimen.loss_of(model))


def alone(specimen: Specimen) -> Tensor:
    """The gradient of each record's loss, by plain autograd on a batch of that record alone: (B, parameters)."""
    rows = []
    for record in EVERYONE:
        model = specimen.make()
        inputs, targets = specimen.batch([record])
        loss = specimen.loss_of(model)(model(inputs), targets).sum()
        found = torch.autograd.grad(loss, trained(model), allow_unused=True, materialize_grads=True)
        rows.append(flat(found))
    return torch.stack(rows)


def clip_norms(gradients: Tensor) -> tuple[float, float]:
    """One clip that cuts every record, and one that cuts none and is not much longer than the longest."""
    norms = gradients.norm(dim=1)
    return 0.1 * float(norms[norms > 0].min()), 1.05 * float(norms.max())


def clipped_sum(gradients: Tensor, clip_norm: float) -> Tensor:
    """The sum of the rows, each cut to the clip, in clip norms."""
    norms = gradients.norm(dim=1, keepdim=True)
    return (gradients / norms.clamp(min=clip_norm)).sum(0)


def without(record: int) -> list[int]:
    """All records but one."""
    return [other for other in EVERYONE if other != record]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that a step moves."""
    return [value for value in model.parameters() if value.requires_grad]


def flat(values: Sequence[Tensor]) -> Tensor:
    """All values in one row, in float64."""
    return torch.cat([value.detach().to_dense().double().flatten() for value in values])


@dataclass(frozen=True)
class Seeded:
    """The sum of a step in a program that seeded all public generators, and whether these stand where they did."""

    total: Tensor
    is_given_back: bool


def seeded_step(specimen: Specimen, seed: int) -> Seeded | None:
    """One step after seeds were set at the top of the script; None if the model was refused."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        private = prepare(specimen, EVERYONE, 1e3)
        before = flat(trained(private.model))
        batch = next(private.loader)
        states = _public_states()
        private.step(batch)
    except InvalidArgument:
        return None
    return Seeded(before - flat(trained(private.model)), _public_states() == states)


def _public_states() -> tuple[bytes, ...]:
    return bytes(torch.get_rng_state().tolist()), pickle.dumps(np.random.get_state()), pickle.dumps(random.getstate())
