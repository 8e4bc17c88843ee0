"""The twin of nn.LSTMCell, nn.GRUCell and nn.RNNCell: the same numbers, by matrix products that the engine can see.

A cell is called once for each position, by a loop of the model's own, so that nothing is known of later positions. Each
call is two Linear layers and what is done to their results number by number. All calls of a cell share its weights, and
gradients of single examples come from all positions together (`shared`).

>>> import torch
>>> from torch import nn
>>> cell = nn.GRUCell(3, 4)
>>> x, state = torch.randn(2, 3), torch.randn(2, 4)
>>> torch.allclose(cell(x, state), CellTwin(cell)(cell, x, state), atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.nn.modules.rnn import RNNCellBase

from dpfed.training.layers.projection import Projection, needs_gradient, tie_recurrent


class CellTwin:
    """A replacement for the forward pass of a recurrent cell; `products` are the layers that it runs."""

    def __init__(self, owner: RNNCellBase) -> None:
        self.products = {"ih": Projection(), "hh": Projection()}

    def __call__(self, owner: RNNCellBase, input: Any, hx: Any = None) -> Any:
        """Return what torch's cell would return; NotImplemented where torch has to compute it."""
        step = _STEPS.get((type(owner), getattr(owner, "nonlinearity", None)))
        if step is None or not isinstance(input, Tensor) or input.dim() != 2 or not self._tie(owner):
            return NotImplemented
        states = _require_states(owner, input, hx)
        # A dozen small operations, none of them a decision of the model, so `calls` need not note each. Which
        # tensors it was given is one, and was noted when their shapes were asked for.
        with DisableTorchFunction():
            if states is None or not needs_gradient(self.products, input, *states):
                return NotImplemented
            return step(self.products["ih"](input), self.products["hh"](states[0]), *states)

    def _tie(self, owner: RNNCellBase) -> bool:
        return tie_recurrent(self.products, owner)


def _require_states(owner: RNNCellBase, x: Tensor, given: Any) -> tuple[Tensor, ...] | None:
    """Return the state before this position, and the cell of an LSTM; None for states of a wrong shape."""
    count, shape = 2 if isinstance(owner, nn.LSTMCell) else 1, (x.shape[0], owner.hidden_size)
    if given is None:
        return (x.new_zeros(shape),) * count
    states = tuple(given) if isinstance(given, list | tuple) else (given,)
    are_fit = all(isinstance(state, Tensor) and state.shape == shape for state in states)
    return states if are_fit and len(states) == count and isinstance(given, Tensor) == (count == 1) else None


def _step_lstm(inputs: Tensor, hidden: Tensor, _: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return state and cell by the gates i, f, g, o: c' = f·c + i·g, h' = o·tanh c'."""
    i, f, g, o = (inputs + hidden).chunk(4, 1)
    cell = torch.addcmul(f.sigmoid() * cell, i.sigmoid(), g.tanh())
    return o.sigmoid() * cell.tanh(), cell


def _step_gru(inputs: Tensor, hidden: Tensor, state: Tensor) -> Tensor:
    """Return the state by the gates r and z and the new value n: h' = n + z·(h − n)."""
    (own_r, own_z, own_n), (r, z, n) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    fresh = torch.addcmul(own_n, (own_r + r).sigmoid(), n).tanh()
    return torch.addcmul(fresh, (own_z + z).sigmoid(), state - fresh)


def _step_tanh(inputs: Tensor, hidden: Tensor, _: Tensor) -> Tensor:
    """Return the tanh of the sum."""
    return (inputs + hidden).tanh()


def _step_relu(inputs: Tensor, hidden: Tensor, _: Tensor) -> Tensor:
    """Return the positive part of the sum."""
    return (inputs + hidden).relu()


# By the kind of cell and its nonlinearity: how the new state is made of both products and of the state before.
_STEPS: dict[tuple[type[nn.Module], str | None], Callable[..., Any]] = {
    (nn.LSTMCell, None): _step_lstm,
    (nn.GRUCell, None): _step_gru,
    (nn.RNNCell, "tanh"): _step_tanh,
    (nn.RNNCell, "relu"): _step_relu,
}
