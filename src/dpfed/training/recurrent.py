"""nn.LSTM, nn.GRU and nn.RNN whose matrix products the engine can see, with the same parameters and state_dict.

torch's own kernel finds the states, without gradients. Then the input product of a layer is one Linear over all
positions, and so is its hidden product, over the states that are now known; the steps backwards give the gradients of
both. The rule of Linear serves them, so that gradients of single examples cost one batched product for each weight.

>>> import torch
>>> from torch import nn
>>> layer = nn.LSTM(3, 4, batch_first=True)
>>> x, twin = torch.randn(2, 5, 3), unrolled(layer)
>>> torch.allclose(layer(x)[0], twin(x)[0], atol=1e-6), list(twin.state_dict()) == list(layer.state_dict())
(True, True)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dpfed.errors import InvalidArgument
from dpfed.training.cells import CELLS, Plain, Sequence
from dpfed.training.projection import Projection, adopted

State = Tensor | tuple[Tensor, ...]


class Steps(torch.autograd.Function):
    """The states of a run as a function of both matrix products and of the first state."""

    @staticmethod
    def forward(ctx: Any, run: Plain, states: Tensor, cell: Tensor | None, *_: Tensor | None) -> tuple[Any, ...]:
        """The states after every position and the last cell, which are known."""
        ctx.run = run
        return states.clone(), None if cell is None else cell.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """What the steps backwards give."""
        return (None, None, None, *ctx.run.backwards(*gradients))


class Unrolled(nn.RNNBase):
    """A recurrent layer of torch, run step by step."""

    def tie(self) -> None:
        """Nothing; makes the projections those of the present parameters."""
        found = {}
        for layer, suffix in self._directions():
            for kind in ("ih", "hh"):
                name = f"{kind}_l{layer}{suffix}"
                bias = self._parameters.get(f"bias_{name}")
                found[name] = Projection(self.get_parameter(f"weight_{name}"), bias)
        self.projections = nn.ModuleDict(found)

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """What torch's layer gives: the last layer's states, and the state at the end."""
        starts = self._starts(input, hx)
        values, ends = input, []
        for layer in range(self.num_layers):
            if layer:
                values = functional.dropout(values, self.dropout, self.training)
            sides = [self._side(values, *place, *starts.pop(0)) for place in self._directions() if place[0] == layer]
            values = torch.cat([outputs for outputs, _, _ in sides], 2)
            ends += [(state, cell) for _, state, cell in sides]
        states = torch.stack([state for state, _ in ends])
        cells = [cell for _, cell in ends if cell is not None]
        return values, (states, torch.stack(cells)) if cells else states

    def _directions(self) -> list[tuple[int, str]]:
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        return [(layer, suffix) for layer in range(self.num_layers) for suffix in suffixes]

    def _side(
        self, values: Tensor, layer: int, suffix: str, start: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """One direction of one layer: its outputs, and its state and cell at the end."""
        inputs, hidden = (self.projections[f"{kind}_l{layer}{suffix}"] for kind in ("ih", "hh"))
        values = values.flip(1) if suffix else values
        states, end = self._states(values, [inputs, hidden], start, cell)
        if not torch.is_grad_enabled():
            return states.flip(1) if suffix else states, states[:, -1], end
        before = torch.cat([start.detach().unsqueeze(1), states[:, :-1]], 1)
        products = inputs(values), hidden(before)
        with torch.no_grad():
            run = CELLS[self.mode](Sequence(*products, before, states), hidden.get_parameter("weight"), cell)
        outputs, last = Steps.apply(run, states, end, *products, start, cell)  # type: ignore[no-untyped-call]
        return outputs.flip(1) if suffix else outputs, outputs[:, -1], last

    @torch.no_grad()
    def _states(
        self, values: Tensor, layers: list[nn.Module], start: Tensor, cell: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The state after every position, and the last cell, by torch's own kernel."""
        names = ("weight", "bias") if self.bias else ("weight",)
        weights: list[Tensor] = [layer.get_parameter(name) for name in names for layer in layers]
        options = (weights, bool(self.bias), 1, 0.0, False, False, True)
        if cell is not None:
            states, _, end = torch.lstm(values, (start.unsqueeze(0), cell.unsqueeze(0)), *options)
            return states, end[0]
        kernel = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}[self.mode]
        return kernel(values, start.unsqueeze(0), *options)[0], None

    def _starts(self, x: Tensor, given: State | None) -> list[tuple[Tensor, Tensor | None]]:
        """State and cell that each direction of each layer starts from."""
        if not isinstance(x, Tensor) or x.dim() != 3 or not x.shape[1]:
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            message = f"a recurrent layer takes (examples, positions, features), got {shape}: pad sequences"
            raise InvalidArgument("model", f"{message}, and leave padding out of the loss")
        size = self.num_layers * (2 if self.bidirectional else 1)
        shape = (size, len(x), self.hidden_size)
        kinds = 2 if self.mode == "LSTM" else 1
        if given is None:
            given = (x.new_zeros(shape),) * kinds
        states = given if isinstance(given, tuple) else (given,)
        if len(states) != kinds or any(state.shape != shape for state in states):
            found = [tuple(state.shape) for state in states]
            raise InvalidArgument("model", f"a {self.mode} starts from {kinds} states of {shape}, got {found}")
        cells = states[1] if len(states) == 2 else [None] * size
        return list(zip(states[0], cells, strict=True))


def unrolled(module: nn.RNNBase) -> Unrolled:
    """A twin of torch's layer over the same parameters that computes the same, by products that the engine sees."""
    if module.proj_size:
        raise InvalidArgument("model", "an LSTM with proj_size has no twin: leave proj_size out, and add a Linear")
    if not module.batch_first:
        raise InvalidArgument("model", f"this {module.mode} takes the position first: make it with batch_first=True")
    return adopted(Unrolled, module)
