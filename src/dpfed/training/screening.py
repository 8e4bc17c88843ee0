"""Checks of data, model, loss and optimizer before anything is drawn, noised or spent.

A refusal in the middle of training, because of one record, would tell that this record was drawn. So what can be
checked on all data at once is checked here, without sampling; later a record that is not finite counts as zero, and
no message says so. Model and loss are tried on made-up records of the form that the first ones have.

>>> import torch
>>> from torch import nn
>>> from torch.utils.data import TensorDataset
>>> data = TensorDataset(torch.tensor([[1.0], [float("nan")]]), torch.zeros(2))
>>> require_sound(data, nn.Linear(1, 1), None, None)
Traceback (most recent call last):
    ...
dpfed.errors.InvalidArgument: data has values that are not finite: fill or remove them by a rule that looks at one \
record at a time, or at none
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.training.engine.forward import Forward, make_forward, map_tensors, tensors_of
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.generators import pinned
from dpfed.training.layers import compat
from dpfed.training.loading import move
from dpfed.training.reading import Collator

Loss = Callable[[Any, Any], Tensor]
Fetch = Callable[[Tensor], tuple[Any, Any]]  # inputs and targets of the examples with these numbers
TRIED = 3  # made-up examples: enough to change one and to remove one
AT_ONCE = 256
MOST_VALUES = 4096  # of targets that are whole numbers; more are no classes
MOST_NUMBERS = 1 << 20


def require_trainable(model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse an optimizer that trains anything but the model, or that computes gradients again, without noise."""
    trained = {id(value) for value in model.parameters() if value.requires_grad}
    given = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not trained:
        raise InvalidArgument(
            "model",
            "model has no trainable parameter, so nothing can be learned: set requires_grad on some",
        )
    if not trained <= given:
        raise InvalidArgument(
            "optimizer",
            "optimizer lacks trainable parameters of the model, which would get noise and no step: build it from "
            "model.parameters()",
        )
    if given - {id(value) for value in model.parameters()}:
        raise InvalidArgument(
            "optimizer",
            "optimizer has parameters that are not the model's, which no noise covers: build it from "
            "model.parameters()",
        )
    if not all(map(_is_finite, model.parameters())):
        raise InvalidArgument(
            "model",
            "model has parameters that are NaN or infinite, from which nothing is learned: load or initialise it again",
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = f"{type(optimizer).__name__} computes gradients several times a step, without noise: use SGD or Adam"
        raise InvalidArgument("optimizer", message)


def require_sound(
    data: Dataset[Any] | DataLoader[Any], model: nn.Module, loss: Loss | None, device: torch.device | None
) -> Forward | None:
    """Refuse data that are not finite or do not fit the model, and a loss that is not one number for each record.

    A `TensorDataset` is looked at as a whole; of other data sets the first records alone, for their form. Returns the
    pass over a few examples of that form that was tried, if there was one.
    """
    tensors = _find_tensors(data)
    if not all(map(_is_finite, tensors)):
        message = "fill or remove them by a rule that looks at one record at a time, or at none"
        raise InvalidArgument("data", f"data has values that are not finite: {message}")
    if loss is None:
        return None
    if tensors:
        inputs, targets = split_pair(tensors)
        blank = tuple(part.new_zeros((TRIED, *part.shape[1:]), device=device) for part in tensors)
        forward = _require_fitting(model, loss, _make_up_pairs(blank))
        require_in_range(model, loss, inputs, targets, device)
        return forward
    if (records := _find_records(data)) is not None:
        fetch = _read_first(records, data.collate_fn if isinstance(data, DataLoader) else default_collate, device)
        return _require_fitting(model, loss, [*_make_up_pairs(fetch(torch.arange(TRIED))), fetch])
    return None


def require_in_range(
    model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, device: torch.device | None = None
) -> None:
    """Refuse data with a value that has no place in the model or the loss: a token or a label out of range.

    Found only when its record is drawn, it would tell of that draw. Tried are the smallest and the largest value of
    every column of the inputs, and a record with each value of the targets; no message shows a value.
    """
    if not len(inputs):
        return
    rare = _find_each_value(targets)
    extremes = torch.stack([inputs.amin(0), inputs.amax(0)])
    shown = torch.cat([extremes, inputs[rare[:AT_ONCE]]]), targets[torch.cat([rare[:1], rare[:1], rare[:AT_ONCE]])]
    if _runs(model, loss, *shown, device):
        rest = rare[AT_ONCE:]
    else:  # the columns' extremes need not go together: let records decide
        flat = inputs.flatten(1)
        rest = torch.cat([rare, flat.argmin(0), flat.argmax(0)] if flat.shape[1] else [rare])
    for some in torch.split(rest, AT_ONCE) if len(rest) else ():
        rows = some.repeat(2)  # a layer that plain training may have refuses a batch of one
        if not _runs(model, loss, inputs[rows], targets[rows], device):
            message = "the model or the loss fails on a record with some value out of range, and would when it is drawn"
            remedy = "look for labels that are no class of the model, and for tokens outside its table"
            raise InvalidArgument("data", f"{message}: {remedy}")


def split_pair(piece: Any) -> tuple[Any, Any]:
    """Return inputs and targets of collated records; refuse records of another form."""
    if not isinstance(piece, list | tuple) or len(piece) != 2:
        raise InvalidArgument(
            "data",
            "step needs records that are pairs of inputs and target, to call loss(model(inputs), target): give such "
            "data, or compute the losses yourself and call backward(losses)",
        )
    return piece[0], piece[1]


def _find_records(data: Any) -> Any:
    """Return the records if they can be read by number, else None: the loader says what is wrong with others."""
    records: Any = data.dataset if isinstance(data, DataLoader) else data
    is_stream = isinstance(records, IterableDataset) or not (
        hasattr(records, "__len__") and hasattr(records, "__getitem__")
    )
    return None if is_stream or getattr(data, "batch_size", 1) is None or not len(records) else records


def _read_first(records: Any, collate: Callable[[Any], Any], device: torch.device | None) -> Fetch:
    """Read the first records, once; return a function that collates those with given numbers."""
    together = Collator(collate)
    try:
        with pinned():  # an augmentation draws nothing that the script would have drawn
            read = [records[number % len(records)] for number in range(TRIED)]
            collate(read[:1])
            alike = [record for record in read if together([read[0], record])[0].drawn == 2]  # of the first's form
    except Exception as error:
        message = f"the first records cannot be read or collated ({type(error).__name__})"
        raise InvalidArgument("data", f"{message}: try `collate_fn([data[0]])`") from None
    if len(together(read[:1] * TRIED)) > 1:
        message = "the collate_fn must give tensors with the example as first axis, or tuples, lists and dicts of them"
        raise InvalidArgument("data", f"{message}: each record is collated alone, and those alike are joined")

    def fetch(rows: Tensor) -> tuple[Any, Any]:
        (piece,) = together([alike[row % len(alike)] for row in rows.tolist()])
        return split_pair(piece.values if device is None else move(piece.values, device))

    return fetch


def _make_up_pairs(like: Any) -> list[Fetch]:
    """Return made-up examples that share the form of these and nothing else; none if a part is no tensor.

    Whole numbers from 0 on, and from 1 on: torch packs no length 0, and the data are not to decide what is tried.
    """
    kinds = [(least, *varied) for least in (0, 1) for varied in ((True, True), (True, False), (False, False))]
    try:
        parts = [
            (_make_up(like[0], least=least, is_varied=first), _make_up(like[1], is_varied=second))
            for least, first, second in kinds
        ]
    except TypeError:
        return []
    return [partial(_take_rows, part) for part in parts]


def _make_up(part: Any, *, is_varied: bool, least: int = 0) -> Any:
    """Return made-up numbers: between ¼ and ¾, where logarithms exist; if whole, the least and one more, if varied."""
    again = partial(_make_up, is_varied=is_varied, least=least)
    if isinstance(part, dict):
        return {name: again(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        parts = [again(value) for value in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if not isinstance(part, Tensor) or part.shape[:1] != (TRIED,) or part.is_complex():
        raise TypeError(type(part).__name__)
    if part.is_floating_point():
        return torch.linspace(0.25, 0.75, part.numel(), dtype=part.dtype, device=part.device).view(part.shape)
    bits = torch.arange(TRIED).unsqueeze(1) >> (torch.arange(part.numel() // TRIED) % 2) & 1
    return (bits * is_varied + least).to(part).view(part.shape)


def _take_rows(part: Any, rows: Tensor) -> Any:
    """Return these rows of every tensor."""
    return map_tensors(part, lambda value: value[rows.to(value.device)])


def _require_fitting(model: nn.Module, loss: Loss, several: list[Fetch]) -> Forward:
    """Return the first forward pass that runs on these kinds of examples; refuse model and loss if none does.

    Several kinds, because some models know no token 0, and torch packs no length 0.
    """
    errors = []
    for fetch in several:
        try:
            return _try(model, loss, fetch)
        except PrivacyError:
            raise
        except Exception as error:
            errors.append(error)
    if isinstance(several[0], partial):  # made up, so that its error shows nothing of the data
        shapes = [_shape_of(part) for part in several[0](torch.arange(TRIED))]
        what = f"made-up examples of shape {shapes[0]} with targets of shape {shapes[1]}"
        if isinstance(errors[0], _NotFinite):
            raise InvalidArgument("loss", f"the loss is NaN or infinite on {what}: initialise the model again")
        raise InvalidArgument("data", f"the model or the loss fails on {what}: {errors[0]}") from errors[0]
    message = f"the model or the loss fails on the first records ({type(errors[0]).__name__})"
    raise InvalidArgument("data", f"{message}: try `loss(model(inputs), targets)` on them")


class _NotFinite(ValueError):
    """An error for losses that are not finite."""


def probe(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Refuse a model or a loss that mixes these made-up examples, or stores something of them."""
    compat.probe(_Trial(model, loss, partial(_take_rows, (inputs, targets))), torch.arange(len(inputs)))


def try_out(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Refuse a model or a loss that fails on these three made-up examples, mixes them, or stores something."""
    _try(model, loss, partial(_take_rows, (inputs, targets)))


def _try(model: nn.Module, loss: Loss, fetch: Fetch) -> Forward:
    """Return the pass over three examples; refuse losses that mix, or are not one number for each of 1, 2 and 3."""
    rows = _Trial(model, loss, fetch)
    for count in range(1, TRIED + 1):
        compat.run_trial(rows, torch.arange(count))
        require_one_each(rows.losses, count)
        if not _is_finite(rows.losses):
            raise _NotFinite
    compat.probe(rows, torch.arange(TRIED))
    forward = make_forward(model, loss, *fetch(torch.arange(TRIED)))
    with pinned(), ClippedGradients(model, clip_norm=1.0, takes_losses=False) as gradients:
        gradients.clipped(forward)
    return forward


def require_one_each(losses: Any, count: int) -> None:
    """Refuse losses that are not one number for each of `count` examples."""
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        message = f"the loss must give one number per example to clip each, shape ({count},) for {count}, got {shape}"
        remedy = 'use reduction="none", .flatten(1).mean(1) where an example has several values, and no .squeeze()'
        raise InvalidArgument("loss", f"{message}: {remedy}")


def _shape_of(part: Any) -> Any:
    if isinstance(part, Tensor):
        return tuple(part.shape[1:])
    return (
        {name: _shape_of(value) for name, value in part.items()} if isinstance(part, dict) else [*map(_shape_of, part)]
    )


def _find_each_value(targets: Tensor) -> Tensor:
    """Return numbers of records that have each whole number of the targets; or the smallest and the largest."""
    flat = targets.reshape(len(targets), -1)
    if not flat.shape[1]:
        return torch.arange(1)
    if flat.is_floating_point():
        return torch.stack([flat.amin(1).argmin(), flat.amax(1).argmax()])
    found: dict[int, int] = {}
    at_once = max(1, MOST_NUMBERS // flat.shape[1])
    for start in range(0, len(flat), at_once):
        some = flat[start : start + at_once]
        for value in torch.unique(some).tolist():
            if value not in found and len(found) < MOST_VALUES:
                found[value] = start + int((some == value).any(1).int().argmax())
    return torch.tensor(sorted(set(found.values())))


def _runs(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, device: torch.device | None) -> bool:
    pair = (inputs, targets) if device is None else (inputs.to(device), targets.to(device))
    try:
        compat.run_trial(_Trial(model, loss, partial(_take_rows, pair)), torch.arange(len(inputs)))
    except PrivacyError:
        raise
    except Exception:
        return False
    return True


class _Trial(nn.Module):
    """A module that runs model and loss on the examples with given numbers, so that `compat` can try both."""

    def __init__(self, model: nn.Module, loss: Loss, fetch: Fetch) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._fetch = fetch
        self.losses: Any = None

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Return the outputs and the losses, as far as they have one row per example."""
        inputs, targets = self._fetch(rows)
        outputs = self.model(inputs)
        self.losses = self._loss(outputs, targets)
        return [value for value in tensors_of([outputs, self.losses]) if value.shape[:1] == rows.shape]


def _is_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def _find_tensors(data: Dataset[Any] | DataLoader[Any]) -> tuple[Tensor, ...]:
    """Return the tensors that hold all data as the model sees them; () where the data set computes records."""
    is_plain = not isinstance(data, DataLoader) or data.collate_fn is default_collate
    records = data.dataset if isinstance(data, DataLoader) else data
    if is_plain and type(records) is Subset and type(records.dataset) is TensorDataset:
        return tuple(tensor[torch.as_tensor(records.indices)] for tensor in records.dataset.tensors)
    return records.tensors if is_plain and type(records) is TensorDataset else ()
