"""Made-up records with the form of an example: they share its shapes, types and range of whole numbers, and no value.

>>> import torch
>>> made_up = MadeUp((torch.zeros(3, 4), torch.tensor([0, 7, -100])))
>>> inputs, targets = made_up.draw(50, torch.Generator().manual_seed(0))
>>> inputs.shape, sorted(set(targets.tolist())) == [-100, 0, 1, 2, 3, 4, 5, 6, 7]
(torch.Size([50, 4]), True)
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import default_collate, default_convert

from dpfed.errors import InvalidArgument
from dpfed.training.engine.forward import map_tensors, tensors_of

# How far numbers are from zero: a record that is unlike the others shows what is wrong soonest.
SCALES = (0.1, 1.0, 1.0, 10.0)
CHANGED = 0.1  # of all whole numbers, where records are changed a little


class MadeUp:
    """A generator of records: real numbers are normal; whole ones go from 0 to the largest in the example.

    Of negative whole numbers only those in the example are used (-100, for what a loss leaves out). Real numbers of the
    `bounded` ones (of inputs, 0, and of targets, 1) are between 0 and 1, where logarithms and such exist.
    """

    def __init__(self, example: Any, bounded: Collection[int] = ()) -> None:
        self._example = _as_batch(example)
        self.bounded = bounded
        self._kinds = [_kind_of(part, n in bounded) for n in (0, 1) for part in tensors_of(self._example[n])]

    @property
    def shapes(self) -> str:
        """The shapes of one record, in words."""
        inputs, targets = (", ".join(str(tuple(p.shape[1:])) for p in tensors_of(part)) for part in self._example)
        return f"of shape {inputs} with targets of shape {targets}"

    def draw(self, count: int, generator: Generator) -> Any:
        """Return `count` new records, some of them much larger than others."""
        kinds = iter(self._kinds)
        scales = torch.tensor(SCALES)[torch.randint(len(SCALES), (count,), generator=generator)]
        return map_tensors(self._example, lambda part: next(kinds).draw(part, scales, generator))

    def perturb(self, records: Any, step: float, generator: Generator) -> Any:
        """Return the records with every real number, and some of the whole ones, changed a little."""
        kinds = iter(self._kinds)
        return map_tensors(records, lambda part: next(kinds).perturb(part, step, generator))


class _Normal:
    """Real numbers of all sizes."""

    def draw(self, part: Tensor, scales: Tensor, generator: Generator) -> Tensor:
        values = torch.randn((len(scales), *part.shape[1:]), dtype=part.dtype, generator=generator)
        return values * scales.to(part.dtype).view(-1, *[1] * (part.dim() - 1))

    def perturb(self, part: Tensor, step: float, generator: Generator) -> Tensor:
        return part + step * torch.randn(part.shape, dtype=part.dtype, generator=generator)


class _Bounded(_Normal):
    """Real numbers from 0 to 1."""

    def draw(self, part: Tensor, scales: Tensor, generator: Generator) -> Tensor:
        return torch.rand((len(scales), *part.shape[1:]), dtype=part.dtype, generator=generator)

    def perturb(self, part: Tensor, step: float, generator: Generator) -> Tensor:
        return super().perturb(part, step, generator).clamp(0, 1)


class _Whole:
    """Whole numbers of a table; the first record has the last of them, so that one out of range shows at once."""

    def __init__(self, values: Tensor) -> None:
        self._values = values

    def draw(self, part: Tensor, scales: Tensor, generator: Generator) -> Tensor:
        found = self._values[torch.randint(len(self._values), (len(scales), *part.shape[1:]), generator=generator)]
        found[:1] = self._values[-1]
        return found

    def perturb(self, part: Tensor, step: float, generator: Generator) -> Tensor:
        fresh = self._values[torch.randint(len(self._values), part.shape, generator=generator)]
        return torch.where(torch.rand(part.shape, generator=generator) < CHANGED, fresh, part)


def _kind_of(part: Tensor, is_bounded: bool) -> _Normal | _Whole:
    if part.is_floating_point() or part.is_complex():
        return _Bounded() if is_bounded else _Normal()
    if part.dtype == torch.bool:
        return _Whole(torch.tensor([False, True]))
    seen = set(part.flatten().tolist())
    values = [*sorted(value for value in seen if value < 0), *range(max({0, *seen}) + 1)]
    return _Whole(torch.tensor(values, dtype=part.dtype))


def _as_batch(example: Any) -> Any:
    """Return the example as a batch; if its tensors differ in their first axis it is one record, and is collated."""
    if not isinstance(example, list | tuple) or len(example) != 2:
        message = "example must be a pair of inputs and targets, which are what a loss takes"
        raise InvalidArgument("example", f"{message}: give (inputs, targets) of a small batch, or one record, data[0]")
    converted: Any = default_convert(example)  # type: ignore[no-untyped-call]
    sizes = {part.shape[:1] for part in tensors_of(converted)}
    has_numbers = any(isinstance(part, int | float) for part in example)
    is_batch = len(sizes) == 1 and () not in sizes and not has_numbers
    batch: Any = converted if is_batch else default_collate([tuple(example)])
    if not all(len(part) for part in tensors_of(batch)):
        raise InvalidArgument("example", "example has no record, and its shape is what is tried: give at least one")
    return tuple(batch)
