"""Every way in which a clipped sum of gradients is made somewhere in dpfed, behind one call, for `checking`.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.forward import of_model
>>> model = nn.Linear(2, 1, bias=False)
>>> pool = of_model(model, lambda output, _: output.squeeze(1), torch.tensor([[3.0, 4.0], [0.0, 0.5]]), torch.zeros(2))
>>> with ExitStack() as stack:
...     modes = found(model, lambda output, _: output.squeeze(1), 1.0, pool, stack)
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
from dpfed.references import words_of
from dpfed.training.ensemble import Ensemble, Unsupported
from dpfed.training.forward import Forward
from dpfed.training.gradients import ClippedGradients
from dpfed.training.own_loop import OwnLoop
from dpfed.training.reading import Piece

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
    """A name, the norm that is clipped, and the sum over the rows with the given numbers, as one vector in float64."""

    name: str
    sums: Summed
    norm: str = "l2"


@dataclass(frozen=True)
class Unused:
    """A mode that is not open to the model, and why."""

    name: str
    why: str


def found(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], clip_norm: float, pool: Forward, stack: ExitStack
) -> list[Mode | Unused]:
    """Return all modes, each tried once on the pool; of those that refuse the model, the reason.

    Refuses a model that a plain step refuses. Hooks are taken off the model when the stack is closed.
    """

    def clipped(*, takes_losses: bool = False, **settings: Any) -> ClippedGradients:
        made = ClippedGradients(model, clip_norm=clip_norm, takes_losses=takes_losses, **settings)
        return stack.enter_context(made)

    loop = stack.enter_context(closing(OwnLoop(model)))

    first = Mode("all at once", partial(_sums, clipped()))
    first.sums(pool, range(pool.size))
    alone = [
        Mode("in micro-batches", partial(_in_pieces, clipped(), PIECE)),
        Mode("record by record", partial(_in_pieces, clipped(), 1)),
        Mode("a loop of your own", partial(_by_losses, clipped(takes_losses=True), loop)),
        *(
            Mode(name, partial(_sums, clipped(**settings)), settings.get("norm", "l2"))
            for name, settings in GRADIENTS.items()
        ),
    ]
    return [first, *(_tried(mode, pool) for mode in alone), *_at_once(model, loss, clip_norm, pool)]


def _tried(mode: Mode, pool: Forward) -> Mode | Unused:
    try:
        mode.sums(pool, range(pool.size))
    except InvalidArgument as error:
        return Unused(mode.name, str(error))
    except Exception as error:
        return Unused(mode.name, f"it fails ({type(error).__name__}: {words_of(error)})")
    return mode


def _at_once(
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
    sums = partial(_of_two, ensemble, model, clip_norm)
    equal, apart = Mode("several equal models at once", partial(sums, True)), Mode(TOGETHER, partial(sums, False))
    return [_tried(apart, pool), _tried(equal, pool)]


def _sums(gradients: ClippedGradients, pool: Forward, rows: Sequence[int]) -> Tensor:
    return vector(gradients.clipped(pool.rows(rows))[0])


def _in_pieces(gradients: ClippedGradients, size: int, pool: Forward, rows: Sequence[int]) -> Tensor:
    pieces = [rows[start : start + size] for start in range(0, len(rows), size)] or [rows]
    return torch.stack([_sums(gradients, pool, piece) for piece in pieces]).sum(0)


def _by_losses(gradients: ClippedGradients, loop: OwnLoop, pool: Forward, rows: Sequence[int]) -> Tensor:
    filled = pool.rows([*rows, *[rows[0] if rows else 0] * (pool.size - len(rows))])
    loop.begin(Piece(filled.values, len(rows)))
    try:
        losses = filled.losses()
        loop.require_apart(losses)
    finally:
        loop.end()
    return vector(gradients.sum(losses, weights=torch.arange(len(losses)) < len(rows)))


def _of_two(
    ensemble: Ensemble, model: nn.Module, clip_norm: float, is_shared: bool, pool: Forward, rows: Sequence[int]
) -> Tensor:
    """Return the sums of two models, behind each other: one has the rows, the other all of the pool.

    The second must not move at all, so both together move as far as the first alone.
    """
    padded = [*rows, *[pool.size] * (pool.size - len(rows))]
    table = torch.tensor([padded, list(range(pool.size))])
    inputs, targets = (torch.cat([part, part.new_zeros(1, *part.shape[1:])])[table] for part in pool.values)
    own = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    weights = own if is_shared else {name: torch.stack([value, 0.9 * value]) for name, value in own.items()}
    mask = (table < pool.size).float()
    clip_norms = torch.full((2,), clip_norm)
    return vector(ensemble.clipped_sums(weights, inputs, targets, mask, clip_norms, is_shared=is_shared))


def vector(sums: Mapping[str, Tensor]) -> Tensor:
    """Return all numbers of all parameters behind each other, in float64."""
    return torch.cat([sums[name].detach().double().flatten() for name in sorted(sums)])
