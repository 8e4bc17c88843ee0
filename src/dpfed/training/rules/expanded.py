"""A parameter that was expanded to all examples: the gradient of what each was given is the gradient of each.

>>> import torch
>>> from dpfed.training.projection import Expanded
>>> layer = Expanded()
>>> layer.weight = torch.nn.Parameter(torch.zeros(2))
>>> layer(torch.zeros(3, 1)).shape
torch.Size([3, 2])
"""

from __future__ import annotations

from torch import nn

from dpfed.training.projection import Expanded
from dpfed.training.rules.pieces import Call, Materialised, Method, rows_of


def methods(_: Call) -> dict[str, Method]:
    """Return the one way."""
    return {"expanded": direct}


def direct(call: Call) -> Materialised:
    """Return the gradients as they are."""
    return Materialised({"weight": rows_of(call.pair[1])})


KINDS: tuple[type[nn.Module], ...] = (Expanded,)
