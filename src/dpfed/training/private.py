"""DP-SGD around a model and an optimizer you have: Poisson draws, clipped sums, noise, and the charge before it.

The plan says what a step is, and the same object is what is executed and charged. Training looks as ever::

    plan = LocalPlan(size=60_000, batch_size=256, epochs=10, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
    private = make_private(model, optimizer, data, plan, loss=nn.CrossEntropyLoss(reduction="none"))
    for batch in private.loader:  # a Poisson sample: its size varies, and may be 0
        private.step(batch)

>>> import torch
>>> from torch import nn
>>> from torch.utils.data import TensorDataset
>>> from dpfed.guarantee import Guarantee
>>> from dpfed.plan.plan import LocalPlan
>>> data = TensorDataset(torch.randn(50, 3), torch.zeros(50))
>>> plan = LocalPlan(size=50, batch_size=10, steps=5, clip_norm=1.0).calibrated(Guarantee(3.0, 1e-5))
>>> model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
>>> private = make_private(
...     model,
...     torch.optim.SGD(model.parameters(), lr=0.1),
...     data,
...     plan,
...     loss=nn.BCEWithLogitsLoss(reduction="none"),
... )
>>> for batch in private.loader:
...     private.step(batch)
>>> private.steps_taken, private.spent().epsilon <= 3.0
(5, True)
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dpfed import checks
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Account
from dpfed.plan.plan import LocalPlan
from dpfed.randomness import RandomSource, or_system
from dpfed.training import memory, screening, slowness
from dpfed.training.correlated import require_floats
from dpfed.training.engine import programs
from dpfed.training.engine.clip import MOST_EXACT
from dpfed.training.extra import Canaries
from dpfed.training.generators import Generators, devices_of
from dpfed.training.layers import compat
from dpfed.training.loading import Loader
from dpfed.training.loop import Private
from dpfed.training.noise import FLOAT, GRID, NoiseSource
from dpfed.training.optimizing import Schedule
from dpfed.training.paid import reserve_steps
from dpfed.training.sampling import sampler_of
from dpfed.training.screening import Loss

__all__ = ["Private", "make_private"]

OWN_LOOP_ROWS = 256  # of a micro-batch of an own loop, whose losses cannot be tried, if the user asks for none


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Dataset[Any] | DataLoader[Any],
    plan: LocalPlan,
    *,
    loss: Loss | None = None,
    account: Account | None = None,
    run: str | None = None,
    source: RandomSource | None = None,
    noise: str = FLOAT,
    max_physical_batch: int | None = None,
    ahead: int | None = None,
    schedule: Schedule | None = None,
    device: torch.device | str | None = None,
    canaries: Canaries | None = None,
) -> Private:
    """Check model, data and plan, reserve the plan's steps, and return the model in private training.

    `loss` takes the model's output and the targets and gives one number per example (reduction="none"). `data` is
    a Dataset or a DataLoader, whose collate_fn and workers are kept: each record is collated alone, and those alike are
    joined. A data set must not put something of one record into another (the same record twice): that happens before
    anything here can see it. Without a `loss` the loop computes losses itself and calls `backward`: its micro-batches
    have all the same size, and rows beyond those of the draw count as zero. With an `account` all steps
    are reserved under the name `run`, and blocks of `ahead` steps (a hundredth of the plan, at most 32) are committed
    before the first noise of the block is drawn.
    Draws come in micro-batches of at most `max_physical_batch` examples; without it as many as fit into a gigabyte, by
    the shapes of a pass over made-up records (`dpfed.training.memory`), and at most 1024, or 256 in a loop of your own.
    `schedule` multiplies the optimizer's learning rates (`dpfed.training.optimizing`). The model and all batches are
    moved to the `device`; only the CPU is tested.

    `canaries` is for audits only, and each one is ONE MORE RECORD for the accounting: by the number of the step, extra
    gradients that are clipped like an example's and added to the sum before the noise; see
    `dpfed.audit.canaries`.
    """
    wanted = _require_rows(max_physical_batch)
    programs.forget(model)  # what was found on the records of an earlier run must not show in this one
    screening.require_trainable(model, optimizer)
    compat.check(model)
    place = None if device is None else torch.device(device)
    if place is not None:
        model.to(place)
    tried = screening.require_sound(data, model, loss, place)
    is_written = plan.norm == "l1" or noise == GRID
    physical = wanted or (OWN_LOOP_ROWS if tried is None else memory.count_rows(model, tried, is_written=is_written))
    origin = or_system(source)
    noises = NoiseSource(origin, noise)
    if plan.tree:
        require_floats(noises)
    if noises.mode == GRID:
        _require_exact(plan, data)
    generators = Generators(origin, devices_of(model))
    rows, parts = (physical, 0) if loss is not None else _plan_parts(plan, physical)
    served = partial(_make_loader, data, plan, origin, generators, rows, parts, place)
    served(plan.steps)  # what it refuses must not have been reserved
    paid = reserve_steps(plan, account, run, ahead)
    loader = served(paid.left)
    private = Private(
        model,
        optimizer,
        loader,
        plan,
        noises,
        paid,
        generators,
        loss=loss,
        schedule=schedule,
        canaries=canaries,
    )
    # Of made-up records, so that it says nothing of those that are drawn.
    slowness.warn(model, private.slow_reasons, stacklevel=2)
    return private


def _make_loader(
    data: Dataset[Any] | DataLoader[Any],
    plan: LocalPlan,
    source: RandomSource,
    generators: Generators,
    rows: int,
    parts: int,
    device: torch.device | None,
    steps: int,
) -> Loader:
    records = data.dataset if isinstance(data, DataLoader) else data
    sampler = sampler_of(plan, _count_records(records), steps, source)
    return Loader(
        data,
        sampler,
        max_physical_batch=rows,
        device=device,
        generators=generators,
        parts=parts,
    )


def _require_rows(max_physical_batch: int | None) -> int:
    """Return the rows of a micro-batch that the user asks for, 0 if none; refuse more than float32 sums allow."""
    wanted = 0 if max_physical_batch is None else checks.count(max_physical_batch=max_physical_batch)
    if wanted > memory.MOST:
        message = (
            f"max_physical_batch must be at most {memory.MOST}, or rounding could exceed the clip norm, got {wanted}: "
            "leave it out; larger draws come in several micro-batches"
        )
        raise InvalidArgument("max_physical_batch", message)
    return wanted


def _require_exact(plan: LocalPlan, data: Dataset[Any] | DataLoader[Any]) -> None:
    """Refuse a plan whose draws may be too large to add up exactly; refused later, a draw would tell its size."""
    records = _count_records(data.dataset if isinstance(data, DataLoader) else data)
    drawn = plan.sample_rate * records
    if min(records, drawn + 10 * math.sqrt(drawn)) > MOST_EXACT:
        message = f"draws may have more than {MOST_EXACT} records, which are not added up exactly, as the grid promises"
        raise InvalidArgument("plan", f'{message}: plan smaller batches, or use noise="float"')


def _plan_parts(plan: LocalPlan, physical: int) -> tuple[int, int]:
    """Return the rows of each micro-batch of an own loop, and the least number of micro-batches.

    Four standard deviations more than planned, so that all but one draw of thirty thousand look alike, and nothing in
    such a loop can follow from how many records were drawn.
    """
    # In a pass as well: each record draws its batch on its own.
    most = plan.batch_size + 4 * math.sqrt(plan.batch_size * (1 - plan.sample_rate))
    parts = math.ceil(most / physical)
    return 1 if physical == 1 else max(2, math.ceil(most / parts)), parts


def _count_records(records: Any) -> int:
    return len(records) if hasattr(records, "__len__") else 0  # what has no length is refused by the loader
