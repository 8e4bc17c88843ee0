"""Models of sequences: recurrent layers in both layouts, packed and sorted ones, encoders with decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def lengths_of(x: Tensor) -> Tensor:
    """How many positions of each example are not padding."""
    return x.flatten(2).abs().sum(2).ne(0).sum(1) if x.dim() > 2 else x.ne(0).sum(1)


class Recurrent(nn.Module):
    """A recurrent layer, and a head on what it gives last."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), 2)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class PositionFirst(Recurrent):
    """The same on (T, B, F), torch's own layout."""

    def forward(self, x):
        return self.head(self.layer(x.transpose(0, 1))[0][-1])


class FinalState(Recurrent):
    """A head on the last hidden state, which has layers in front: (layers, B, F)."""

    def forward(self, x):
        return self.head(self.layer(x)[1][-1])


class Projected(nn.Module):
    """An LSTM whose hidden state is projected."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 4, proj_size=3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.layer(x)[1][0][-1])


class GivenState(Recurrent):
    """A first state that is a parameter, the same for all examples."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__(layer)
        self.first = nn.Parameter(torch.randn(1, 1, layer.hidden_size))

    def forward(self, x):
        return self.head(self.layer(x, self.first.expand(-1, len(x), -1).contiguous())[0].mean(1))


class Packed(Recurrent):
    """Packed sequences, sorted by torch."""

    def forward(self, x):
        packed = pack_padded_sequence(x, lengths_of(x), batch_first=True, enforce_sorted=False)
        values, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True)
        return self.head(values.sum(1))


class PackedSorted(Recurrent):
    """Packed sequences that the model sorts, the longest in front, and puts back."""

    def forward(self, x):
        lengths, order = lengths_of(x).sort(descending=True)
        packed = pack_padded_sequence(x[order], lengths, batch_first=True)
        return self.head(self.layer(packed)[1][-1][order.argsort()])


class PackedInside(nn.Module):
    """A layer used on the packed values themselves: all positions of all examples in one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        packed = pack_padded_sequence(x, lengths_of(x), batch_first=True, enforce_sorted=False)
        mapped = packed._replace(data=self.embed(packed.data).tanh())
        return self.head(pad_packed_sequence(mapped, batch_first=True)[0].sum(1))


class Sorted(nn.Module):
    """Rows sorted by length and put back, without packing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        order = lengths_of(x).argsort(descending=True, stable=True)
        hidden = self.embed(x[order]).tanh().sum(1)
        return self.head(hidden[order.argsort()])


class SortedWords(nn.Module):
    """Ids, which have no gradient, sorted by length; what was made of them is put back."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids):
        order = lengths_of(ids).argsort(descending=True, stable=True)
        return self.head(self.table(ids[order]).tanh().sum(1))[order.argsort()]


class SortedAway(nn.Module):
    """Rows sorted by length for one layer; the targets are sorted along with them in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        self.order = lengths_of(x).argsort(descending=True, stable=True)
        return self.layer(x[self.order]).sin().sum((1, 2))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets[self.order]).square()


class TrimmedToLongest(nn.Module):
    """Positions behind the longest sequence of the batch are cut off before the mean: others decide its divisor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x[:, : int(lengths_of(x).max())]).sigmoid().mean(1)


class Masked(nn.Module):
    """A mean over the positions that are there, from a dict of values and lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch):
        values = self.layer(batch["values"]).relu()
        is_there = torch.arange(values.shape[1]) < batch["lengths"].unsqueeze(1)
        return (values * is_there.unsqueeze(2)).sum(1) / batch["lengths"].unsqueeze(1)


class LastValid(nn.Module):
    """What a layer gives at each example's last position, found by two lists of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.layer(x)[0][torch.arange(len(x)), lengths_of(x) - 1])


class CellLoop(nn.Module):
    """An LSTMCell in a loop, its states written into slices in place."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        state = x.new_zeros(len(x), 3), x.new_zeros(len(x), 3)
        out = x.new_zeros(*x.shape[:2], 3)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            out[:, step] = state[0]
        return self.head(out).mean(1)


class CellPositionFirst(nn.Module):
    """A GRUCell over (T, B, F), with states stacked position by position."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        state, states = x.new_zeros(len(x), 3), []
        for values in x.transpose(0, 1):
            state = self.cell(values, state)
            states.append(state)
        return self.head(torch.stack(states)).mean(0)


class StackedCells(nn.Module):
    """Two LSTMCells one above the other, from a first state that is learned, the first of them without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.LSTMCell(4, 3, bias=False), nn.LSTMCell(3, 3)
        self.start, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 1)

    def forward(self, x):
        below, above, outputs = None, (self.start.expand(len(x), -1), x.new_zeros(len(x), 3)), []
        for values in x.split(1, dim=1):
            below = self.below(values.squeeze(1), below)
            above = self.above(below[0], above)
            outputs.append(self.head(above[0]))
        return torch.cat(outputs, dim=1)


class RectifiedCell(nn.Module):
    """An RNNCell with ReLU in both directions of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(4, 3, nonlinearity="relu")

    def forward(self, x):
        one = two = x.new_zeros(len(x), 3)
        for before, after in zip(x.unbind(1), x.flip(1).unbind(1), strict=True):
            one, two = self.cell(before, one), self.cell(after, two)
        return one * two


class StateByPlace(nn.Module):
    """A GRUCell that starts from a row of a buffer for each place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 3)
        self.register_buffer("starts", torch.linspace(-1, 1, 96).view(32, 3))

    def forward(self, x):
        return self.cell(x[:, 1], self.cell(x[:, 0], self.starts[: len(x)]))


class StepsUntilLongest(nn.Module):
    """A loop that ends with the longest sequence of the batch; examples that ended keep their state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNNCell(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        lengths, state = lengths_of(x), x.new_zeros(len(x), 3)
        for step in range(int(lengths.max())):
            goes_on = (step < lengths).unsqueeze(1)
            state = torch.where(goes_on, self.cell(x[:, step], state), state)
        return self.head(state)


class Seq2Seq(nn.Module):
    """Words in, words out: an encoder, a decoder that attends to it, and teacher forcing."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.encoder, self.decoder = nn.GRU(4, 3, batch_first=True), nn.GRUCell(4 + 3, 3)
        self.score, self.head = nn.Linear(3, 3, bias=False), nn.Linear(6, 7)

    def forward(self, ids):
        words = self.table(ids)
        memory, last = self.encoder(words)
        state, outputs = last[0], []
        for word in words.unbind(1):
            weights = (self.score(memory) * state.unsqueeze(1)).sum(2).softmax(1)
            context = (weights.unsqueeze(2) * memory).sum(1)
            state = self.decoder(torch.cat([word, context], dim=1), state)
            outputs.append(self.head(torch.cat([state, context], dim=1)))
        return torch.stack(outputs, dim=1)


class LanguageModel(nn.Module):
    """Words that follow, with the table as output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 3), nn.LSTM(3, 3, batch_first=True)
        self.head = nn.Linear(3, 7)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.layer(self.table(ids))[0])


class Scanned(nn.Module):
    """A linear recurrence over time by cumulative sums, as in state-space models."""

    def __init__(self) -> None:
        super().__init__()
        self.decay, self.read = nn.Parameter(torch.zeros(3)), nn.Linear(4, 3)

    def forward(self, x):
        steps = torch.arange(x.shape[1]).view(1, -1, 1)
        weights = (-self.decay.exp() * 0.1 * steps).exp()
        return ((self.read(x) / weights).cumsum(1) * weights).tanh()


class Speller(nn.Module):
    """Letters at each position, for a loss that aligns them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.RNN(4, 3, batch_first=True, nonlinearity="relu"), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0])
