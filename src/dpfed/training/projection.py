"""A Linear layer over parameters that belong to another module, under that module's own names.

torch's recurrent layers and its attention hold the weights of several matrix products under flat names and use them
as functions, where no hook sees them. Their twins here run each product through a projection, which the rule of
Linear serves; the parameters, their names and the state_dict stay those of torch's layer.

>>> import torch
>>> from torch import nn
>>> owner = nn.Linear(2, 3)
>>> owner.product = Projection(owner.weight, owner.bias)
>>> list(owner.state_dict()), [name for name, _ in owner.named_parameters()]
(['weight', 'bias'], ['weight', 'bias'])
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import nn


class Tied(Protocol):
    """A module with projections of its own parameters."""

    def tie(self) -> None:
        """Nothing; makes the projections those of the present parameters."""

    def register_load_state_dict_post_hook(self, hook: Callable[[Tied, object], None]) -> object:
        """As nn.Module has it."""


Twin = TypeVar("Twin", bound=Tied)


class Projection(nn.Linear):
    """A Linear whose weight and bias are its parent's: it saves and loads nothing."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, *_: Any) -> None:
        pass


def adopted(kind: type[Twin], module: nn.Module) -> Twin:
    """A module of the kind with all that the given one holds; parameters and children are the same objects."""
    twin = kind.__new__(kind)
    twin.__dict__.update({name: copy.copy(value) for name, value in module.__dict__.items()})
    twin.tie()
    # Loading with assign=True puts other parameters in place.
    twin.register_load_state_dict_post_hook(_tie)
    return twin


def _tie(module: Tied, _: object) -> None:
    module.tie()
