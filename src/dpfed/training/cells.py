"""The gates of an LSTM, a GRU and a plain recurrent layer, and their steps backwards.

Once the state before every position is known, all gates are found at once; only the gradient has to go position by
position. What does not depend on the step after it is computed for the whole sequence before, so that a step backwards
is one matrix product and a few products element by element. All sequences are (B, T, ·).

>>> import torch
>>> states = torch.tensor([[[0.5], [0.25]]])
>>> run = Plain(Sequence(states, states, before=states, after=states), torch.eye(1), None)
>>> inputs, *_ = run.backwards(torch.ones(1, 2, 1), None)
>>> [round(float(value), 4) for value in inputs.flatten()]      # 1 − h², and that of the next position through it
[1.4531, 0.9375]
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


class Sequence(NamedTuple):
    """What the two matrix products put into the gates, and the states before and after every position."""

    inputs: Tensor
    hidden: Tensor
    before: Tensor
    after: Tensor


class Plain:
    """h' = tanh(input + W h + b)."""

    def __init__(self, run: Sequence, weight: Tensor, cell: Tensor | None) -> None:
        self.weight = weight
        self.find(run, cell)

    def find(self, run: Sequence, _: Tensor | None) -> None:
        """Sets all that the steps backwards need."""
        self.slope = 1 - run.after.square()

    def backwards(self, gradient: Tensor, _: Tensor | None) -> Gradients:
        """The gradient of the input products, of the hidden ones, of the first state and of the first cell."""
        found = torch.empty_like(self.slope)
        state = torch.zeros_like(found[:, 0])
        steps = (gradient.unbind(1), self.slope.unbind(1), found.unbind(1))
        for g, slope, row in reversed(list(zip(*steps, strict=True))):
            torch.mul(state.add_(g), slope, out=row)
            state = row @ self.weight
        return found, found, state, None


class Rectified(Plain):
    """h' = max(0, input + W h + b)."""

    def find(self, run: Sequence, _: Tensor | None) -> None:
        """Sets all that the steps backwards need."""
        self.slope = (run.after > 0).to(run.after.dtype)


class Long(Plain):
    """The LSTM: gates i, f, g, o; c' = f·c + i·g, h' = o·tanh c'."""

    def find(self, run: Sequence, cell: Tensor | None) -> None:
        """Sets all that the steps backwards need: for each gate, how far it moves the cell or the state."""
        if cell is None:
            raise TypeError("an LSTM starts from a cell state as well")
        gates = run.inputs + run.hidden
        width = cell.shape[1]
        gates[:, :, : 2 * width].sigmoid_()
        i, f, g, o = gates.chunk(4, 2)
        g.tanh_()
        o.sigmoid_()
        before, curved = self._cells(f, i * g, cell)
        self.factors = gates.new_empty(*gates.shape[:2], 4, width)
        by_i, by_f, by_g, by_o = self.factors.unbind(2)
        _sloped(torch.mul(g, i, out=by_i), i)
        _sloped(torch.mul(before, f, out=by_f), f)
        torch.addcmul(i, i * g, g, value=-1, out=by_g)
        _sloped(torch.mul(curved, o, out=by_o), o)
        self.forget, self.slope = f, torch.addcmul(o, o * curved, curved, value=-1)

    def _cells(self, forget: Tensor, added: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """The cell state before every position, and tanh of that after it."""
        cells = cell.new_empty(len(cell), added.shape[1] + 1, cell.shape[1])
        cells[:, 0] = cell
        steps = (forget.unbind(1), added.unbind(1), cells.unbind(1)[1:])
        for f, new, row in zip(*steps, strict=True):
            cell = torch.addcmul(new, f, cell, out=row)
        return cells[:, :-1], cells[:, 1:].tanh()

    def backwards(self, gradient: Tensor, last: Tensor | None) -> Gradients:
        """By the cell: its gradient reaches three gates, that of the state the fourth."""
        rows = torch.empty_like(self.factors)
        found = rows.flatten(2)
        state = torch.zeros_like(self.slope[:, 0])
        cell = torch.zeros_like(state) if last is None else last
        steps = (gradient, self.factors, self.slope, self.forget, rows, found)
        for g, factors, slope, forget, row, flat in reversed(list(zip(*(s.unbind(1) for s in steps), strict=True))):
            state.add_(g)
            cell = torch.addcmul(cell, state, slope)
            torch.mul(factors[:, :3], cell.unsqueeze(1), out=row[:, :3])
            torch.mul(factors[:, 3], state, out=row[:, 3])
            cell.mul_(forget)
            state = flat @ self.weight
        return found, found, state, cell


class Gated(Plain):
    """The GRU: r, z from both products; n = tanh(input + r·(W h + b)); h' = n + z·(h − n)."""

    def find(self, run: Sequence, _: Tensor | None) -> None:
        """Sets all that the steps backwards need; in the third gate the two products differ by r."""
        width = run.before.shape[2]
        r, z = (run.inputs + run.hidden)[:, :, : 2 * width].sigmoid_().chunk(2, 2)
        hidden = run.hidden[:, :, 2 * width :]
        n = torch.addcmul(run.inputs[:, :, 2 * width :], r, hidden).tanh_()
        self.keep, self.inner = z, (1 - z) * (1 - n * n)
        parts = (self.inner * hidden * r * (1 - r), (run.before - n) * z * (1 - z), self.inner * r)
        self.factors = torch.stack(parts, 2)

    def backwards(self, gradient: Tensor, _: Tensor | None) -> Gradients:
        """All gates by the state's gradient."""
        hidden = torch.empty_like(self.factors)
        totals = torch.empty_like(self.inner)
        state = torch.zeros_like(totals[:, 0])
        steps = (gradient, self.factors, self.keep, totals, hidden, hidden.flatten(2))
        for g, factors, keep, total, row, flat in reversed(list(zip(*(s.unbind(1) for s in steps), strict=True))):
            torch.add(state, g, out=total)
            torch.mul(factors, total.unsqueeze(1), out=row)
            state = torch.addmm(total * keep, flat, self.weight)
        inputs = hidden.clone()
        torch.mul(self.inner, totals, out=inputs[:, :, 2])
        return inputs.flatten(2), hidden.flatten(2), state, None


def _sloped(values: Tensor, gate: Tensor) -> None:
    """Nothing; multiplies the values by 1 − gate, in one pass."""
    values.addcmul_(values, gate, value=-1)


CELLS: dict[str, type[Plain]] = {"LSTM": Long, "GRU": Gated, "RNN_TANH": Plain, "RNN_RELU": Rectified}
