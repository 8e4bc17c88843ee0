"""The step of an LSTM, a GRU and a plain recurrent layer, forwards and backwards over all positions.

Book-keeping needs the gradient with respect to what each matrix product put into the gates, at every position. All
that does not depend on the step after it is computed for the whole sequence at once; a step backwards is then one
matrix product and a few products element by element. Sequences are (B, T, ·) outside and (T, B, ·) inside.

>>> import torch
>>> run = Plain(torch.zeros(1, 2, 1), torch.eye(1), None, torch.full((1, 1), 0.5), None)
>>> [round(float(value), 4) for value in run.outputs.flatten()]      # tanh(0.5), tanh of that
[0.4621, 0.4318]
"""

from __future__ import annotations

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Plain:
    """h' = tanh(input + W h + b), or ReLU."""

    gates = 1

    def __init__(self, inputs: Tensor, weight: Tensor, bias: Tensor | None, start: Tensor, cell: Tensor | None) -> None:
        size, length, width = inputs.shape
        self.weight = weight
        self.products = inputs.new_empty(length, size, width)
        self.states = inputs.new_empty(length + 1, size, start.shape[1])
        self.states[0] = start
        self.forwards(inputs, bias, cell)

    @property
    def before(self) -> Tensor:
        """The state that each position starts from: (B, T, H)."""
        return self.states[:-1].transpose(0, 1)

    @property
    def outputs(self) -> Tensor:
        """The state after each position, in a tensor of its own: (B, T, H)."""
        return self.states[1:].transpose(0, 1).clone(memory_format=torch.contiguous_format)

    @property
    def cell(self) -> Tensor | None:
        """The last cell state, of an LSTM only."""
        return None

    def forwards(self, inputs: Tensor, bias: Tensor | None, _: Tensor | None) -> None:
        """Sets the state at every position."""
        weight, shifted = self.weight.t(), inputs if bias is None else inputs + bias
        for product, x, state, new in zip(self.products, shifted.unbind(1), self.states, self.states[1:], strict=False):
            self.activate(torch.addmm(x, state, weight, out=product), new)

    def activate(self, product: Tensor, new: Tensor) -> None:
        """Sets the new state."""
        torch.tanh(product, out=new)

    def slope(self) -> Tensor:
        """The derivative of the activation at every position."""
        return 1 - self.states[1:].square()

    def backwards(self, gradient: Tensor, _: Tensor | None) -> Gradients:
        """The gradient of the input products, of the hidden ones, of the first state and of the first cell."""
        slope, found = self.slope(), torch.empty_like(self.products)
        state = torch.zeros_like(self.states[0])
        for g, factor, row in reversed(list(zip(gradient.unbind(1), slope, found, strict=True))):
            torch.mul(state.add_(g), factor, out=row)
            state = row @ self.weight
        found = found.transpose(0, 1)
        return found, found, state, None


class Rectified(Plain):
    """h' = max(0, input + W h + b)."""

    def activate(self, product: Tensor, new: Tensor) -> None:
        """Sets the new state."""
        torch.clamp(product, min=0, out=new)

    def slope(self) -> Tensor:
        """1 where the state is not cut."""
        return (self.states[1:] > 0).to(self.states.dtype)


class Long(Plain):
    """The LSTM: gates i, f, g, o; c' = f·c + i·g, h' = o·tanh c'."""

    gates = 4

    def forwards(self, inputs: Tensor, bias: Tensor | None, cell: Tensor | None) -> None:
        """Sets gates, cell and state at every position."""
        if cell is None:
            raise TypeError("an LSTM needs a cell state")
        width = cell.shape[1]
        self.cells = torch.empty_like(self.states)
        self.cells[0] = cell
        self.curved = torch.empty_like(self.states[1:])
        weight, shifted = self.weight.t(), inputs if bias is None else inputs + bias
        for t, x in enumerate(shifted.unbind(1)):
            gates = torch.addmm(x, self.states[t], weight, out=self.products[t])
            gates[:, : 2 * width].sigmoid_()
            i, f, g, o = gates.chunk(4, 1)
            torch.mul(f, self.cells[t], out=self.cells[t + 1]).addcmul_(i, g.tanh_())
            torch.tanh(self.cells[t + 1], out=self.curved[t])
            torch.mul(o.sigmoid_(), self.curved[t], out=self.states[t + 1])

    @property
    def cell(self) -> Tensor | None:
        """The last cell state."""
        return self.cells[-1].clone()

    def backwards(self, gradient: Tensor, last: Tensor | None) -> Gradients:
        """By the cell: its gradient reaches three gates, that of the state the fourth."""
        i, f, g, o = self.products.chunk(4, 2)
        parts = (g * i * (1 - i), self.cells[:-1] * f * (1 - f), i * (1 - g * g), self.curved * o * (1 - o))
        factors = torch.stack(parts, 2)
        slope = o * (1 - self.curved.square())
        found = torch.empty_like(self.products)
        rows = found.view_as(factors)
        state = torch.zeros_like(self.states[0])
        cell = torch.zeros_like(state) if last is None else last
        for t in reversed(range(len(found))):
            state += gradient[:, t]
            cell = torch.addcmul(cell, state, slope[t])
            torch.mul(factors[t, :, :3], cell.unsqueeze(1), out=rows[t, :, :3])
            torch.mul(factors[t, :, 3], state, out=rows[t, :, 3])
            cell.mul_(f[t])
            state = found[t] @ self.weight
        found = found.transpose(0, 1)
        return found, found, state, cell


class Gated(Plain):
    """The GRU: r, z from both products; n = tanh(input + r·(W h + b)); h' = n + z·(h − n)."""

    gates = 3

    def forwards(self, inputs: Tensor, bias: Tensor | None, _: Tensor | None) -> None:
        """Sets gates and state at every position; the third gate's hidden product is kept apart."""
        width = self.states.shape[2]
        self.hidden = torch.empty_like(self.states[1:])
        weight = self.weight.t()
        for t, x in enumerate(inputs.unbind(1)):
            state, gates = self.states[t], self.products[t]
            product = state @ weight if bias is None else torch.addmm(bias, state, weight)
            torch.add(x[:, : 2 * width], product[:, : 2 * width], out=gates[:, : 2 * width]).sigmoid_()
            r, z, n = gates.chunk(3, 1)
            self.hidden[t] = product[:, 2 * width :]
            torch.addcmul(x[:, 2 * width :], r, self.hidden[t], out=n).tanh_()
            torch.lerp(n, state, z, out=self.states[t + 1])

    def backwards(self, gradient: Tensor, _: Tensor | None) -> Gradients:
        """All gates by the state's gradient; the third differs between the two products by r."""
        r, z, n = self.products.chunk(3, 2)
        inner = (1 - z) * (1 - n * n)
        parts = (inner * self.hidden * r * (1 - r), (self.states[:-1] - n) * z * (1 - z), inner * r)
        factors = torch.stack(parts, 2)
        found = torch.empty_like(factors)
        totals = torch.empty_like(self.hidden)
        state = torch.zeros_like(self.states[0])
        for t in reversed(range(len(found))):
            torch.add(state, gradient[:, t], out=totals[t])
            torch.mul(factors[t], totals[t].unsqueeze(1), out=found[t])
            state = torch.addmm(totals[t] * z[t], found[t].flatten(1), self.weight)
        inputs = found.clone()
        torch.mul(inner, totals, out=inputs[:, :, 2])
        return inputs.flatten(2).transpose(0, 1), found.flatten(2).transpose(0, 1), state, None


CELLS: dict[str, type[Plain]] = {"LSTM": Long, "GRU": Gated, "RNN_TANH": Plain, "RNN_RELU": Rectified}
