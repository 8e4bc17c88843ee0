"""All rows of a person as one example: one loss, the mean of its rows' losses, and so one gradient to clip.

Persons have different numbers of rows, and a tensor has one. So a batch is as wide as its longest person, and a shorter
one's first row stands, with a share of zero, in the places that are left. The model runs once for each place: every
layer then sees one example a person, as clipping needs it, whatever the layer is.

>>> from dpfed.federated.torch.losses import mse
>>> rows = Tensors(torch.tensor([[1.0], [3.0], [5.0]]), torch.zeros(3))
>>> visits = PersonRows(rows, torch.tensor([2, 1]))
>>> inputs, (targets, shares) = visits.fetch(torch.tensor([0, 1]))
>>> inputs.squeeze(2).tolist(), shares.tolist()
([[1.0, 3.0], [5.0, 5.0]], [[0.5, 0.5], [1.0, 0.0]])
>>> by_person(mse)(ByPerson(nn.Identity())(inputs), (targets, shares))
tensor([ 5., 25.])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfed.errors import InvalidArgument
from dpfed.federated.torch.examples import Form, Tensors
from dpfed.federated.torch.losses import Loss

Part = tuple[Tensor, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False, repr=False)
class PersonRows:
    """Rows person by person, and how many each person has."""

    rows: Tensors
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def form(self) -> Form:
        """Shape and type of a row."""
        return self.rows.form

    def fetch(self, numbers: Tensor) -> Part:
        """Return the persons' rows, (person, place, …), their targets, and each row's share of its person's loss."""
        counts = self.counts[numbers].unsqueeze(1)
        starts = (torch.cumsum(self.counts, 0) - self.counts)[numbers].unsqueeze(1)
        place = torch.arange(int(counts.max()) if len(numbers) else 1)
        is_there = place < counts
        # A row of the same person, not zeros: what a model makes of zeros need not be finite.
        inputs, targets = self.rows.fetch(starts + torch.where(is_there, place, 0))
        return inputs, (targets, is_there / counts)


class ByPerson(nn.Module):
    """The model on each place of a batch of persons: (person, place, …) in, (person, place, …) out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs, with the person first as in the inputs."""
        outputs = [self.model(inputs[:, place]) for place in range(inputs.shape[1])]
        if not isinstance(outputs[0], Tensor):
            message = f"a model that is trained by person must give one tensor, got {type(outputs[0]).__name__}"
            raise InvalidArgument("model", f"{message}: return that one")
        return torch.stack(outputs, 1)


def by_person(loss: Loss) -> Loss:
    """Return the loss of a person: the mean of its rows' losses, so fifty rows weigh as much as one.

    Privacy: it depends on that person's rows alone, so that clipping its gradient bounds what the person adds.
    """

    def mean(outputs: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
        targets, shares = wanted
        found = torch.stack([loss(outputs[:, place], targets[:, place]) for place in range(outputs.shape[1])], 1)
        return torch.where(shares > 0, found * shares.to(found), 0.0).sum(1)

    return mean
