"""Every example's gradient of the whole model by vmap(grad), as in a textbook: for programs that have no rules.

>>> import torch
>>> from torch import nn
>>> from dpfed.training.engine.forward import make_forward
>>> model, loss = nn.Linear(1, 1, bias=False), lambda output, _: output.squeeze(1)
>>> forward = make_forward(model, loss, torch.tensor([[1.0], [5.0]]), torch.zeros(2))
>>> compute_rows(model, forward, dict(model.named_parameters()))["weight"].flatten().tolist()
[1.0, 5.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from dpfed.training.engine.forward import Forward

CHUNK_BYTES = 2**28  # of gradients that are written out at a time


class _Pass(nn.Module):
    """A pass as a module, so that the parameters of its model can be exchanged for a call."""

    def __init__(self, model: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, *values: Any) -> Tensor:
        """Return the loss of one example."""
        return self._function(*values).sum()


def compute_rows(model: nn.Module, forward: Forward, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every example's gradient of a pass by vmap(grad); torch raises where it cannot do that.

    The model sees one example, and nothing of it can reach Python. As many are computed at a time as fit into memory.
    """
    whole = _Pass(model, forward.function)
    held = {f"model.{name}": value.detach() for name, value in parameters.items()}
    size = sum(value.numel() * value.element_size() for value in held.values())

    def one(held: dict[str, Tensor], values: tuple[Any, ...]) -> Tensor:
        alone = tree_map(lambda value: value.unsqueeze(0), values)
        loss: Tensor = functional_call(whole, held, alone)
        return loss

    over = vmap(grad(one), in_dims=(None, 0), randomness="different", chunk_size=max(1, CHUNK_BYTES // size))
    found: dict[str, Tensor] = over(held, forward.values)
    return {name: found[f"model.{name}"] for name in parameters}
