"""Bare parameters of a module with children (a class token, a layer scale): vmap of the owner.

The owner's own parameters are differentiated, those of its children are constants here: each child has its rule.
The price is the owner's forward pass once more, so a scale that is used often belongs in a small module of its own.

>>> import torch
>>> from torch import nn
>>> class Scaled(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.scale, self.inner = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
...     def forward(self, x):
...         return self.inner(x) * self.scale
>>> owns_bare_parameters(Scaled()), owns_bare_parameters(nn.Linear(2, 2))
(True, False)
"""

from __future__ import annotations

from torch import nn

from dpfed.training.rules import leaf
from dpfed.training.rules.pieces import Call, Method


def owns_bare_parameters(module: nn.Module) -> bool:
    """Whether the module has parameters of its own beside children."""
    has_children = next(module.children(), None) is not None
    return has_children and any(True for _ in module.parameters(recurse=False))


def methods(_: Call) -> dict[str, Method]:
    """The one way."""
    return {"parameter": leaf.direct}
