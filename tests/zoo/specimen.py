"""What a specimen of the zoo is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

Loss = Callable[[Any, Any], Tensor]
Inputs = Tensor | dict[str, Tensor]

TRAINS = "trains"
REFUSED = "refused"
EITHER = "trains or refused"


@dataclass(frozen=True)
class Specimen:
    """A small model with its loss and data, and what may come of training it privately.

    `operations` are those that stand between parameters, inputs and loss, and `layout` says which axis holds the
    examples where parameters are used. It *trains* if what is released is the clipped sum of the gradients of each
    record alone, and is *refused* if `make_private` or its first step says so for every batch.

    A model with a method `loss` is trained with that one. What is random of itself (`is_random`) has no gradient that
    a loop could repeat.
    """

    name: str
    operations: frozenset[str]
    layout: str
    build: Callable[[], nn.Module]
    loss: Loss
    data: Callable[[], tuple[Inputs, Tensor]]
    outcome: str = TRAINS
    is_random: bool = False

    @property
    def may_train(self) -> bool:
        """Whether training it is right."""
        return self.outcome in (TRAINS, EITHER)

    @property
    def may_be_refused(self) -> bool:
        """Whether a refusal is right."""
        return self.outcome in (REFUSED, EITHER)

    def make(self) -> nn.Module:
        """A new one, always with the same parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return self.build()

    def loss_of(self, model: nn.Module) -> Loss:
        """The loss for that model."""
        return getattr(model, "loss", self.loss)

    def batch(self, records: Sequence[int]) -> tuple[Any, Tensor]:
        """Inputs and targets of these records."""
        inputs, targets = self.data()
        rows = torch.tensor(records, dtype=torch.int64)
        return _rows(inputs, rows), targets[rows]

    def dataset(self, records: Sequence[int]) -> Dataset[Any]:
        """These records as make_private takes them."""
        inputs, targets = self.batch(records)
        if isinstance(inputs, Tensor):
            return TensorDataset(inputs, targets)
        return Named(inputs, targets)

    def __str__(self) -> str:
        return self.name


class Named(Dataset[Any]):
    """Records whose inputs are a dict."""

    def __init__(self, inputs: dict[str, Tensor], targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return {name: values[index] for name, values in self._inputs.items()}, self._targets[index]


def _rows(inputs: Inputs, rows: Tensor) -> Inputs:
    if isinstance(inputs, Tensor):
        return inputs[rows]
    return {name: values[rows] for name, values in inputs.items()}
