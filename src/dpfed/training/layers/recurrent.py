"""The twin of nn.LSTM, nn.GRU and nn.RNN: the same numbers, by matrix products that the engine can see.

The states are found step by step without gradients. Then the input product of a layer is one product over all
positions, and so is its hidden product, over the states that are now known; the steps backwards give the gradients of
both. The rule of Linear serves them, so that gradients of single examples cost one batched product for each weight.

>>> import torch
>>> from torch import nn
>>> layer = nn.LSTM(3, 4)
>>> x = torch.randn(5, 2, 3)
>>> torch.allclose(layer(x)[0], RecurrentTwin(layer)(layer, x)[0], atol=1e-6)
True
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch.autograd.function import Function, once_differentiable
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import handle_torch_function, has_torch_function

from dpfed.training.layers import packed
from dpfed.training.layers.cells import CELLS, InitialState, TanhCell, Weights
from dpfed.training.layers.packed import Unpacked
from dpfed.training.layers.projection import KnownProjection, needs_gradient, tie_recurrent

State = Tensor | tuple[Tensor, ...]


class Steps(Function):
    """An autograd function: the states of a run, by its inputs, its first state and its matrix products."""

    @staticmethod
    def forward(ctx: Any, run: TanhCell, *_: Tensor | None) -> tuple[Any, ...]:
        """Return the states after every position and the last cell, which the run has computed."""
        ctx.run = run
        return run.after.clone(), None if run.last_cell is None else run.last_cell.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by the steps of the run in reverse."""
        run: TanhCell = ctx.run
        found = run.backward(*gradients)
        values = found.inputs @ run.weights.ih if ctx.needs_input_grad[1] else None
        # As the rule of Linear reads them: example by example.
        inputs = found.inputs.transpose(0, 1).contiguous()
        hidden = inputs if found.hidden is found.inputs else found.hidden.transpose(0, 1).contiguous()
        projected = [] if found.projected is None else [found.projected.transpose(0, 1).contiguous()]
        return (None, values, found.state, found.cell, inputs, hidden, *projected)


class RecurrentTwin:
    """A replacement for the forward pass of a recurrent layer; `products` are the layers that it runs."""

    def __init__(self, owner: nn.RNNBase) -> None:
        kinds = ("ih", "hh", "hr") if owner.proj_size else ("ih", "hh")
        self.products = {_name(kind, *place): KnownProjection() for place in _directions(owner) for kind in kinds}

    def __call__(self, owner: nn.RNNBase, input: Any, hx: Any = None) -> Any:
        """Return what torch's layer would return; NotImplemented where torch has to compute it."""
        if isinstance(input, PackedSequence):
            # For `calls` this is one call, of all tensors that the layer is given, and its results are known by it.
            call = (self, owner, input, hx)
            found = (
                handle_torch_function(_run_packed, input, *call) if has_torch_function(input) else _run_packed(*call)
            )
            if found is None:
                return NotImplemented
            data, *states = found
            return input._replace(data=data), states[0] if len(states) == 1 else tuple(states)
        if not isinstance(input, Tensor) or input.dim() != 3 or not self._tie(owner):
            return NotImplemented
        values = input.transpose(0, 1) if owner.batch_first else input
        starts = _split_states(owner, values, hx)
        if starts is None or not len(values):
            return NotImplemented
        if not needs_gradient(self.products, values, *(part for start in starts for part in start)):
            return NotImplemented
        values, states = self._run(owner, values, starts)
        return (values.transpose(0, 1) if owner.batch_first else values), states

    def run_packed(self, owner: nn.RNNBase, given: PackedSequence, hx: Any) -> tuple[Tensor, ...] | None:
        """Return packed outputs and the states at the end, by padded sequences; None where torch has to compute it."""
        unpacked = packed.unpack(given)
        if unpacked is None or not self._tie(owner):
            return None
        starts = _split_states(owner, unpacked.values, hx)
        if starts is None:
            return None
        values, states = self._run(owner, unpacked.values, starts, unpacked)
        return unpacked.pack(values), *(states if isinstance(states, tuple) else (states,))

    def _run(
        self, owner: nn.RNNBase, values: Tensor, starts: list[InitialState], unpacked: Unpacked | None = None
    ) -> tuple[Tensor, Any]:
        """Run all layers; return the outputs of the last, and the states of all at the end."""
        ends: list[tuple[Tensor, Tensor | None]] = []
        for layer in range(owner.num_layers):
            if layer:
                values = functional.dropout(values, owner.dropout, owner.training)
            # Hundreds of small operations, none of them a decision of the model, so `calls` need not note each.
            with DisableTorchFunction():
                sides = [
                    self._run_direction(owner, values, place, starts.pop(0), unpacked)
                    for place in _directions(owner, layer)
                ]
            values = sides[0][0] if len(sides) == 1 else torch.cat([outputs for outputs, _, _ in sides], 2)
            ends += [(state, cell) for _, state, cell in sides]
        states = torch.stack([state for state, _ in ends])
        cells = [cell for _, cell in ends if cell is not None]
        return values, (states, torch.stack(cells)) if cells else states

    def _tie(self, owner: nn.RNNBase) -> bool:
        return tie_recurrent(self.products, owner)

    def _run_direction(
        self,
        owner: nn.RNNBase,
        values: Tensor,
        place: tuple[int, str],
        start: InitialState,
        unpacked: Unpacked | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Run one direction of one layer; return its outputs, and its state and cell at the end.

        Backwards over sequences of unequal lengths is forwards over each of them turned, so that padding is at the end.
        """
        inputs, hidden = (self.products[_name(kind, *place)] for kind in ("ih", "hh"))
        projection = self.products.get(_name("hr", *place))
        own = None if projection is None else projection.weight
        is_turned = unpacked is not None and bool(place[1])
        values = unpacked.turn(values) if unpacked is not None and is_turned else values
        with torch.no_grad():
            weights = Weights(inputs.weight, hidden.weight, inputs.bias, hidden.bias, own)
            run = CELLS[owner.mode](values, weights, start, is_reverse=bool(place[1]) and not is_turned)
            if unpacked is not None:
                run.freeze_(unpacked.padding, unpacked.last)
            gates, before = run.gates.transpose(0, 1), run.before.transpose(0, 1).contiguous()
        products = [inputs(values.transpose(0, 1), gates), hidden(before, gates)]
        if projection is not None and run.inner is not None:
            products.append(projection(run.inner.transpose(0, 1), run.after.transpose(0, 1)))
        outputs, last = Steps.apply(run, values, *start, *products)  # type: ignore[no-untyped-call]
        if unpacked is None:
            return outputs, outputs[0 if run.is_reverse else -1], last
        return (unpacked.turn(outputs) if is_turned else outputs), unpacked.take_last(outputs), last


def _run_packed(twin: RecurrentTwin, *given: Any) -> tuple[Tensor, ...] | None:
    with DisableTorchFunction():
        return twin.run_packed(*given)


def _name(kind: str, layer: int, suffix: str) -> str:
    return f"{kind}_l{layer}{suffix}"


def _directions(owner: nn.RNNBase, layer: int | None = None) -> list[tuple[int, str]]:
    suffixes = ("", "_reverse") if owner.bidirectional else ("",)
    layers = range(owner.num_layers) if layer is None else (layer,)
    return [(number, suffix) for number in layers for suffix in suffixes]


def _split_states(owner: nn.RNNBase, values: Tensor, given: Any) -> list[InitialState] | None:
    """Return the initial state of each direction of each layer; None for states of a wrong shape."""
    count = owner.num_layers * (2 if owner.bidirectional else 1)
    shapes = [(count, values.shape[1], owner.proj_size or owner.hidden_size)]
    if owner.mode == "LSTM":
        shapes.append((count, values.shape[1], owner.hidden_size))
    if given is None:
        given = tuple(values.new_zeros(shape) for shape in shapes)
    states = tuple(given) if isinstance(given, list | tuple) else (given,)
    if len(states) != len(shapes) or any(getattr(s, "shape", None) != n for s, n in zip(states, shapes, strict=True)):
        return None
    return [InitialState(*each) for each in zip(*states, strict=True)]
