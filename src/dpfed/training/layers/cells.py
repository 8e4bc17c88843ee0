"""The steps of an LSTM, a GRU and a plain recurrent layer, forwards and backwards.

The input product of a whole sequence is one matrix product, and what a step backwards does not need of the step after
it is computed for all of them at once; a step itself is one small product and a few operations element by element. All
sequences have the position first, (T, B, ·), so that a step reads and writes one block of memory.

>>> import torch
>>> weights = Weights(torch.eye(1), torch.eye(1))
>>> run = TanhCell(torch.tensor([[[0.5]], [[0.25]]]), weights, InitialState(torch.zeros(1, 1)), is_reverse=False)
>>> [round(float(value), 4) for value in run.after.flatten()]      # tanh 0.5, tanh(0.25 + that)
[0.4621, 0.612]
>>> found = run.backward(torch.ones(2, 1, 1), None)
>>> [round(float(value), 4) for value in found.inputs.flatten()]      # 1 − h², and that of the next position through it
[1.2783, 0.6255]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dpfed.training.layers.packed import take_last

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Weights(NamedTuple):
    """The weights of one direction of one layer, under torch's names; `hr` is the projection of an LSTM."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None


class InitialState(NamedTuple):
    """The state before the first position, and the cell of an LSTM."""

    state: Tensor
    cell: Tensor | None = None


class CellGradients(NamedTuple):
    """The gradients of both products, of a projection's result, of the first state and of the first cell."""

    inputs: Tensor
    hidden: Tensor
    projected: Tensor | None
    state: Tensor
    cell: Tensor | None


class TanhCell:
    """A plain recurrent layer, h' = tanh(input + W h + b), and what all cells have in common.

    `before` and `after` are the states around every position, `inner` is the input of a projection, and `last_cell`
    the cell of an LSTM at the end.
    """

    last_cell: Tensor | None = None
    inner: Tensor | None = None

    def __init__(self, values: Tensor, weights: Weights, start: InitialState, *, is_reverse: bool) -> None:
        self.weights, self.is_reverse = weights, is_reverse
        self.gates = self.multiply_inputs(values)
        self.states = self.allocate(start.state)
        self.run(start)

    @property
    def before(self) -> Tensor:
        """The state before every position."""
        return self.states[1:] if self.is_reverse else self.states[:-1]

    @property
    def after(self) -> Tensor:
        """The state after every position."""
        return self.states[:-1] if self.is_reverse else self.states[1:]

    def multiply_inputs(self, values: Tensor) -> Tensor:
        """Return the input product of all positions, with both biases."""
        one, two = self.weights.bias_ih, self.weights.bias_hh
        return functional.linear(values, self.weights.ih, one if one is None or two is None else one + two)

    def allocate(self, start: Tensor) -> Tensor:
        """Return memory for the states before and after every position, with the first one in it."""
        room = start.new_empty(len(self.gates) + 1, *start.shape)
        room[-1 if self.is_reverse else 0] = start
        return room

    def run(self, start: InitialState) -> None:
        """Compute the states, step by step."""
        weight = self.weights.hh.t()
        for gate, before, after in self.iterate(self.gates, self.before, self.after):
            self.activate_(torch.addmm(gate, before, weight, out=after))

    def activate_(self, values: Tensor) -> None:
        """Apply the nonlinearity in place."""
        values.tanh_()

    def differentiate(self) -> Tensor:
        """Return the nonlinearity's derivative at every position."""
        return 1 - self.after.square()

    def freeze_(self, padding: Tensor, last: Tensor) -> None:
        """Let nothing change any more after the last position of each example; the steps after it were for nothing.

        What those have computed may not be finite, and the gradients there are zero: their product has to be zero.
        """
        self.after.masked_fill_(padding, 0)

    def backward(self, gradient: Tensor, _: Tensor | None) -> CellGradients:
        """Return the gradients, given that of all states."""
        slope = self.differentiate()
        found = torch.empty_like(slope)
        state = torch.zeros_like(self.states[0])
        for g, own, row in self.iterate_backward(gradient, slope, found):
            torch.mul(state.add_(g), own, out=row)
            state = row @ self.weights.hh
        return CellGradients(found, found, None, state, None)

    def iterate(self, *sequences: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rows of the sequences at each position, in the order of the steps."""
        rows = list(zip(*(each.unbind(0) for each in sequences), strict=True))
        return reversed(rows) if self.is_reverse else iter(rows)

    def iterate_backward(self, *sequences: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rows of the sequences at each position, from the last step to the first."""
        rows = list(zip(*(each.unbind(0) for each in sequences), strict=True))
        return iter(rows) if self.is_reverse else reversed(rows)


class ReluCell(TanhCell):
    """A plain recurrent layer with ReLU: h' = max(0, input + W h + b)."""

    def activate_(self, values: Tensor) -> None:
        """Apply the nonlinearity in place."""
        values.relu_()

    def differentiate(self) -> Tensor:
        """Return the nonlinearity's derivative at every position."""
        return (self.after > 0).to(self.after.dtype)


class LstmCell(TanhCell):
    """The LSTM: gates i, f, g, o; c' = f·c + i·g, h' = o·tanh c', or a projection of that."""

    def run(self, start: InitialState) -> None:
        """Compute the states, the gates and the cells, step by step."""
        if start.cell is None:
            raise TypeError("an LSTM starts from a cell state as well: give InitialState(state, cell)")
        cells = self.allocate(start.cell)
        self.cells, after = (cells[1:], cells[:-1]) if self.is_reverse else (cells[:-1], cells[1:])
        self.curved, fresh = torch.empty_like(after), torch.empty_like(start.cell)
        weight, projection = self.weights.hh.t(), self.weights.hr
        self.inner = None if projection is None else torch.empty_like(after)
        i, f, g, o = self.gates.chunk(4, 2)
        both = self.gates[:, :, : 2 * i.shape[2]]
        state, cell = start.state, start.cell
        steps = (self.gates, both, i, f, g, o, after, self.curved, self.after)
        for gates, opened, i, f, g, o, new, curved, row, *output in self.iterate(
            *steps, *([] if self.inner is None else [self.inner])
        ):
            gates.addmm_(state, weight)
            opened.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            cell = torch.addcmul(torch.mul(i, g, out=fresh), f, cell, out=new)
            state = torch.mul(o, torch.tanh(new, out=curved), out=output[0] if output else row)
            if projection is not None:
                state = torch.mm(state, projection.t(), out=row)
        self.cells_after, self.last_cell = after, after[0 if self.is_reverse else -1]

    def freeze_(self, padding: Tensor, last: Tensor) -> None:
        """Let nothing change any more after the last position of each example: gates i, g, o are 0, and f is 1."""
        super().freeze_(padding, last)
        self.last_cell = take_last(self.cells_after, last)
        self.gates.masked_fill_(padding, 0)
        self.gates.chunk(4, 2)[1].masked_fill_(padding, 1)
        for values in (self.cells, self.curved, self.inner):
            if values is not None:
                values.masked_fill_(padding, 0)

    def backward(self, gradient: Tensor, last: Tensor | None) -> CellGradients:
        """Return the gradients: the cell's reaches three gates, the state's the fourth."""
        factors, slope, forget = self._compute_factors()
        found = factors.flatten(2)  # each position's factors become its gradients
        projection = self.weights.hr
        totals = None if projection is None else torch.empty_like(self.after)
        state = torch.zeros_like(self.states[0])
        cell = torch.zeros_like(self.cells[0]) if last is None else last
        steps = (gradient, factors[:, :, :3], factors[:, :, 3], slope, forget, found)
        for g, by_cell, by_state, bent, keep, flat, *total in self.iterate_backward(
            *steps, *([] if totals is None else [totals])
        ):
            state.add_(g)
            if projection is not None:
                state = total[0].copy_(state) @ projection
            cell = torch.addcmul(cell, state, bent)
            by_cell.mul_(cell.unsqueeze(1))
            by_state.mul_(state)
            cell.mul_(keep)
            state = torch.mm(flat, self.weights.hh)
        return CellGradients(found, found, totals, state, cell)

    def _compute_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives of cell or state by each gate, of the state by the cell, and the forget gate."""
        i, f, g, o = self.gates.chunk(4, 2)
        factors = self.gates.new_empty(*self.gates.shape[:2], 4, i.shape[2])
        by_i, by_f, by_g, by_o = factors.unbind(2)
        _sigmoid_backward(g, i, grad_input=by_i)
        _sigmoid_backward(self.cells, f, grad_input=by_f)
        _tanh_backward(i, g, grad_input=by_g)
        _sigmoid_backward(self.curved, o, grad_input=by_o)
        return factors, _tanh_backward(o, self.curved, grad_input=torch.empty_like(self.curved)), f


class GruCell(TanhCell):
    """The GRU: r, z from both products; n = tanh(input + r·(W h + b)); h' = n + z·(h − n)."""

    def multiply_inputs(self, values: Tensor) -> Tensor:
        """Return the input product of all positions, with its own bias."""
        return functional.linear(values, self.weights.ih, self.weights.bias_ih)

    def run(self, _: InitialState) -> None:
        """Compute the states and the gates; in the third, r multiplies the hidden product."""
        width = self.states.shape[2]
        self.hidden = torch.empty_like(self.gates)
        weight, bias = self.weights.hh.t(), self.weights.bias_hh
        bias = weight.new_zeros(1) if bias is None else bias
        both, n = self.gates[:, :, : 2 * width], self.gates[:, :, 2 * width :]
        r, z = both.chunk(2, 2)
        inner = self.hidden[:, :, 2 * width :]
        steps = (self.hidden, self.hidden[:, :, : 2 * width], inner, both, r, z, n, self.before, self.after)
        for hidden, opening, own, opened, r, z, n, before, after in self.iterate(*steps):
            torch.addmm(bias, before, weight, out=hidden)
            opened.add_(opening).sigmoid_()
            n.addcmul_(r, own).tanh_()
            torch.lerp(n, before, z, out=after)

    def freeze_(self, padding: Tensor, last: Tensor) -> None:
        """Let nothing change any more after the last position of each example."""
        super().freeze_(padding, last)
        self.gates.masked_fill_(padding, 0)
        self.hidden.masked_fill_(padding, 0)

    def backward(self, gradient: Tensor, _: Tensor | None) -> CellGradients:
        """Return the gradients, of all gates by that of the state."""
        hidden, inner, keep = self._compute_factors()  # each position's factors become its gradients
        totals = torch.empty_like(inner)
        state = torch.zeros_like(self.states[0])
        steps = (gradient, hidden, keep, totals, hidden.flatten(2))
        for g, row, kept, total, flat in self.iterate_backward(*steps):
            torch.add(state, g, out=total)
            row.mul_(total.unsqueeze(1))
            state = torch.addmm(total * kept, flat, self.weights.hh)
        inputs = hidden.clone()
        torch.mul(inner, totals, out=inputs[:, :, 2])
        return CellGradients(inputs.flatten(2), hidden.flatten(2), None, state, None)

    def _compute_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives of the state by each gate of the hidden product, and by n's input, and the gate z."""
        width = self.states.shape[2]
        r, z, n = self.gates.chunk(3, 2)
        factors = self.gates.new_empty(*self.gates.shape[:2], 3, width)
        by_r, by_z, by_n = factors.unbind(2)
        inner = _tanh_backward(1 - z, n, grad_input=torch.empty_like(self.after))
        _sigmoid_backward(inner * self.hidden[:, :, 2 * width :], r, grad_input=by_r)
        _sigmoid_backward(self.before - n, z, grad_input=by_z)
        torch.mul(inner, r, out=by_n)
        return factors, inner, z


CELLS: dict[str, type[TanhCell]] = {"LSTM": LstmCell, "GRU": GruCell, "RNN_TANH": TanhCell, "RNN_RELU": ReluCell}
