"""The modes in which dpfed computes a clipped sum of gradients, each behind one call, for `checking`.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.forward import make_forward
>>> model = nn.Linear(2, 1, bias=False)
>>> inputs = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
>>> pool = make_forward(model, lambda output, _: output.squeeze(1), inputs, torch.zeros(2))
>>> with ExitStack() as stack:
...     modes = list_modes(model, lambda output, _: output.squeeze(1), 1.0, pool, stack)
...     print(modes[0].name, [round(value, 3) for value in modes[0].sums(pool, [0, 1]).tolist()])
all at once [0.6, 1.3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.references import explain_torch_error
from dpfed.training.engine.forward import Forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.many.ensemble import Ensemble, Unsupported
from dpfed.training.own_loop import OwnLoop
from dpfed.training.reading import MicroBatch

Summed = Callable[[Forward, Sequence[int]], Tensor]
PIECE = 3  # records of a micro-batch
TOGETHER = "several models at once"
SLOWLY = "one example at a time"
GRADIENTS: dict[str, dict[str, Any]] = {
    "on the grid": {"is_exact": True},
    "each layer clipped": {"layers": "each"},
    "L1 norm": {"norm": "l1"},
    "L1 norm, each layer clipped": {"norm": "l1", "layers": "each"},
    SLOWLY: {"methods": {"": "whole"}},
}


@dataclass(frozen=True, eq=False)
class Mode:
    """One way to compute a clipped sum: its name, its norm, and the sum over given rows as a float64 vector."""

    name: str
    sums: Summed
    norm: str = "l2"


@dataclass(frozen=True)
class Unused:
    """A mode that refuses the model, and why."""

    name: str
    why: str


def list_modes(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], clip_norm: float, pool: Forward, stack: ExitStack
) -> list[Mode | Unused]:
    """Return all modes, each tried once on the pool; those that refuse the model are `Unused`, with the reason.

    Refuses a model that a plain step refuses. Hooks are removed from the model when the stack is closed.
    """

    def make(*, takes_losses: bool = False, **settings: Any) -> ClippedGradients:
        gradients = ClippedGradients(model, clip_norm=clip_norm, takes_losses=takes_losses, **settings)
        return stack.enter_context(gradients)

    loop = stack.enter_context(closing(OwnLoop(model)))

    first = Mode("all at once", partial(_sum_rows, make()))
    first.sums(pool, range(pool.size))
    alone = [
        Mode("in micro-batches", partial(_sum_in_pieces, make(), PIECE)),
        Mode("record by record", partial(_sum_in_pieces, make(), 1)),
        Mode("a loop of your own", partial(_sum_by_losses, make(takes_losses=True), loop)),
        *(
            Mode(name, partial(_sum_rows, make(**settings)), settings.get("norm", "l2"))
            for name, settings in GRADIENTS.items()
        ),
    ]
    return [first, *(_try(mode, pool) for mode in alone), *_list_ensemble_modes(model, loss, clip_norm, pool)]


def _try(mode: Mode, pool: Forward) -> Mode | Unused:
    try:
        mode.sums(pool, range(pool.size))
    except InvalidArgument as error:
        return Unused(mode.name, str(error))
    except Exception as error:
        return Unused(mode.name, f"it fails ({type(error).__name__}: {explain_torch_error(error)})")
    return mode


def _list_ensemble_modes(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], clip_norm: float, pool: Forward
) -> list[Mode | Unused]:
    """Return the modes in which several models are trained at once."""
    if not all(isinstance(part, Tensor) for part in pool.values):
        return [Unused(TOGETHER, "inputs and targets must be one tensor each")]
    try:
        ensemble = Ensemble(model, loss, pool.values)
    except Unsupported as error:
        return [Unused(TOGETHER, error.why)]
    except InvalidArgument as error:
        return [Unused(TOGETHER, str(error))]
    sums = partial(_sum_of_two, ensemble, model, clip_norm)
    equal, apart = Mode("several equal models at once", partial(sums, True)), Mode(TOGETHER, partial(sums, False))
    return [_try(apart, pool), _try(equal, pool)]


def _sum_rows(gradients: ClippedGradients, pool: Forward, rows: Sequence[int]) -> Tensor:
    return flatten(gradients.clipped(pool.rows(rows))[0])


def _sum_in_pieces(gradients: ClippedGradients, size: int, pool: Forward, rows: Sequence[int]) -> Tensor:
    pieces = [rows[start : start + size] for start in range(0, len(rows), size)] or [rows]
    return torch.stack([_sum_rows(gradients, pool, piece) for piece in pieces]).sum(0)


def _sum_by_losses(gradients: ClippedGradients, loop: OwnLoop, pool: Forward, rows: Sequence[int]) -> Tensor:
    filled = pool.rows([*rows, *[rows[0] if rows else 0] * (pool.size - len(rows))])
    loop.begin(MicroBatch(filled.values, len(rows)))
    try:
        losses = filled.losses()
        loop.require_apart(losses)
    finally:
        loop.end()
    return flatten(gradients.sum(losses, weights=torch.arange(len(losses)) < len(rows)))


def _sum_of_two(
    ensemble: Ensemble, model: nn.Module, clip_norm: float, is_shared: bool, pool: Forward, rows: Sequence[int]
) -> Tensor:
    """Return the concatenated sums of two models: one has the rows, the other all of the pool.

    The second must not move at all, so both together move as far as the first alone.
    """
    padded = [*rows, *[pool.size] * (pool.size - len(rows))]
    table = torch.tensor([padded, list(range(pool.size))])
    inputs, targets = (torch.cat([part, part.new_zeros(1, *part.shape[1:])])[table] for part in pool.values)
    own = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    weights = own if is_shared else {name: torch.stack([value, 0.9 * value]) for name, value in own.items()}
    mask = (table < pool.size).float()
    clip_norms = torch.full((2,), clip_norm)
    return flatten(ensemble.clipped_sums(weights, inputs, targets, mask, clip_norms, is_shared=is_shared))


def flatten(sums: Mapping[str, Tensor]) -> Tensor:
    """Return all numbers of all parameters as one vector, in float64."""
    return torch.cat([sums[name].detach().double().flatten() for name in sorted(sums)])
