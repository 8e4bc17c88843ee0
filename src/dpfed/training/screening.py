"""What can be found wrong before anything is drawn, noised or spent.

A refusal in the middle of training, because of one record, would tell that this record was drawn. So what can be
checked on all data at once is checked here, without sampling; later a record that is not finite counts as zero, and
nobody hears of it.

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
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from dpfed.errors import InvalidArgument, PrivacyError
from dpfed.training import compat

Loss = Callable[[Any, Any], Tensor]
PROBED = 8  # examples; more would make the first step slower and find nothing else


def require_trainable(model: nn.Module, optimizer: Optimizer) -> None:
    """Nothing, unless the optimizer would train something else than the model, or with gradients without noise."""
    trained = {id(value) for value in model.parameters() if value.requires_grad}
    given = {id(value) for group in optimizer.param_groups for value in group["params"]}
    if not trained:
        raise InvalidArgument("model", "model has no trainable parameter: set requires_grad on what is to be trained")
    if not trained <= given:
        raise InvalidArgument(
            "optimizer", "optimizer lacks trainable parameters of the model: make it from model.parameters()"
        )
    if given - {id(value) for value in model.parameters()}:
        raise InvalidArgument("optimizer", "optimizer holds parameters that are not the model's, which no noise covers")
    if not all(map(_is_finite, model.parameters())):
        raise InvalidArgument("model", "model has parameters that are not finite: start from others")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        message = f"{type(optimizer).__name__} computes gradients several times a step: use one without a closure"
        raise InvalidArgument("optimizer", message)


def require_sound(
    data: Dataset[Any] | DataLoader[Any], model: nn.Module, loss: Loss | None, device: torch.device | None
) -> None:
    """Nothing, unless tensors given as data are not finite or do not fit the model; other data are not looked at."""
    tensors = _whole(data)
    if not all(map(_is_finite, tensors)):
        message = "fill or remove them by a rule that looks at one record at a time, or at none"
        raise InvalidArgument("data", f"data has values that are not finite: {message}")
    if loss is None or len(tensors) != 2:
        return
    _try(model, loss, *(_made_up(tensor, device) for tensor in tensors))


def _try(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Nothing, unless the model or the loss fails on made-up examples, of which only the shape is that of the data."""
    rows = _Rows(model, loss, inputs, targets)
    what = f"made-up examples of shape {tuple(inputs.shape[1:])} with targets of shape {tuple(targets.shape[1:])}"
    try:
        compat.probe(rows, torch.arange(len(inputs)))
    except PrivacyError:
        raise
    except Exception as error:
        raise InvalidArgument("data", f"the model or the loss fails on {what}: {error}") from error
    if isinstance(rows.losses, Tensor) and not _is_finite(rows.losses):
        raise InvalidArgument("loss", f"the loss is not finite on {what}: start from other parameters or another loss")


def probe(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> bool:
    """Whether it could be tried that examples do not mix; refuses a model or a loss in which they do.

    An example is replaced by its neighbour, and outputs and losses of the others must not move. The model runs in
    its present mode, each time with the same random numbers, so dropout moves nothing by itself.
    """
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor) or len(inputs) != len(targets):
        return False
    rows = [row for row in range(len(inputs)) if _is_finite(inputs[row]) and _is_finite(targets[row])][:PROBED]
    if len(rows) < 2:
        return False
    compat.probe(_Rows(model, loss, inputs[rows], targets[rows]), torch.arange(len(rows)))
    return True


class Watch:
    """Remembers how the model was called last, until it could be tried that its examples do not mix.

    For loops that compute losses themselves: how they do so is not known, so the model alone is tried.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._handle = model.register_forward_pre_hook(self._remember, with_kwargs=True)

    def probe(self, size: int) -> bool:
        """Whether it could be tried with the last call, if so many examples went into it; it is forgotten then."""
        call, self._call = self._call, None
        if call is None or not (rows := _finite_rows(call, size)):
            return False
        self.close()
        compat.probe(_Called(self._model, *call), torch.tensor(rows))
        return True

    def close(self) -> None:
        """Nothing; takes the hook off the model."""
        self._handle.remove()

    def _remember(self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._call = arguments, keywords


def _finite_rows(call: tuple[tuple[Any, ...], dict[str, Any]], size: int) -> list[int]:
    """A few of the examples that went into the call, none of them with NaN or infinity; none at all if below two."""
    given = [value for value in (*call[0], *call[1].values()) if isinstance(value, Tensor)]
    if not given or any(value.shape[:1] != (size,) for value in given):
        return []
    rows = [row for row in range(size) if all(_is_finite(value[row]) for value in given)][:PROBED]
    return rows if len(rows) > 1 else []


class _Called(nn.Module):
    """What the model gives for the examples with the given numbers."""

    def __init__(self, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._arguments, self._keywords = arguments, keywords

    def forward(self, rows: Tensor) -> list[Tensor]:
        """The outputs, as far as they have one row per example."""
        arguments = [value[rows] if isinstance(value, Tensor) else value for value in self._arguments]
        keywords = {name: value[rows] if isinstance(value, Tensor) else value for name, value in self._keywords.items()}
        found = compat.tensors(self.model(*arguments, **keywords))
        return [value for value in found if value.shape[:1] == rows.shape]


class _Rows(nn.Module):
    """Outputs and losses of the examples with the given numbers."""

    def __init__(self, model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._inputs, self._targets = inputs, targets
        self.losses: Tensor | None = None

    def forward(self, rows: Tensor) -> list[Tensor]:
        """The outputs and the losses, as far as they have one row per example."""
        rows = rows.to(self._inputs.device)
        outputs = self.model(self._inputs[rows])
        self.losses = self._loss(outputs, self._targets[rows])
        return [
            value for value in (outputs, self.losses) if isinstance(value, Tensor) and value.shape[:1] == rows.shape
        ]


def _made_up(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Two examples of that shape: zeros of whole numbers; others between ¼ and ¾, so that logarithms and such exist."""
    like = tensor.new_zeros(tensor.shape[1:], device=device)
    if tensor.is_floating_point():
        like = torch.linspace(0.25, 0.75, like.numel(), dtype=like.dtype, device=like.device).view_as(like)
    return torch.stack([like, like])


def _is_finite(values: Tensor) -> bool:
    return bool(torch.isfinite(values).all())


def _whole(data: Dataset[Any] | DataLoader[Any]) -> tuple[Tensor, ...]:
    """The tensors that hold all data as the model will see them; none where something comes between."""
    is_plain = not isinstance(data, DataLoader) or data.collate_fn is default_collate
    records = data.dataset if isinstance(data, DataLoader) else data
    return records.tensors if is_plain and type(records) is TensorDataset else ()
