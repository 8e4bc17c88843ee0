"""Models that gather, scatter, sort or choose inside an example, or choose examples by what they are."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Neighbours(nn.Module):
    """Message passing: each node takes the mean of its two neighbours, whose numbers are in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other, self.head = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        places = (x[..., :2] * 10).long().abs() % x.shape[1]
        found = x.gather(1, places.flatten(1).unsqueeze(2).expand(-1, -1, x.shape[2]))
        messages = self.other(found.unflatten(1, places.shape[1:]).mean(2))
        return self.head((self.own(x) + messages).relu().sum(1))


class NeighboursByNumber(nn.Module):
    """The same with nodes of all examples in one axis, as graph libraries lay them: edges carry offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        size, nodes, _ = x.shape
        flat = x.reshape(size * nodes, -1)
        targets = (torch.arange(size * nodes) // nodes) * nodes + (torch.arange(size * nodes) + 1) % nodes
        summed = torch.zeros(size * nodes, 3).index_add(0, targets, self.message(flat).relu())
        return self.head(summed.view(size, nodes, 3).sum(1))


class Adjacency(nn.Module):
    """A graph convolution by a dense matrix made from the example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        distances = torch.cdist(x, x)
        return (-distances).softmax(2) @ self.layer(x)


class Scattered(nn.Module):
    """What a layer gives is added up in bins that the example names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(9, 2)

    def forward(self, x):
        bins = (x[..., :1] > 0).long() + (x[..., 1:2] > 0).long()
        summed = x.new_zeros(len(x), 3, 3).scatter_add(1, bins.expand(-1, -1, 3), self.layer(x))
        return self.head(summed.flatten(1))


class Permuted(nn.Module):
    """A fixed permutation of the features, and every other one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(4))
        self.a, self.b = nn.Linear(4, 4), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a(x).index_select(1, self.order)[:, ::2])


class Largest(nn.Module):
    """The three largest hidden values of an example, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(self.a(x).topk(3, dim=1).values)


class SortedInside(nn.Module):
    """Each channel's values sorted within the example, as in set networks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.weights = nn.Linear(4, 3), nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return (self.layer(x).sort(dim=1).values * self.weights).sum(1)


class OneHot(nn.Module):
    """The largest input as a one-hot code, beside the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(torch.cat([x, functional.one_hot(x.argmax(1), 4).to(x.dtype)], dim=1))


class Binned(nn.Module):
    """Numbers become ids of a table by rounding down, as categories and times do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(12, 2)

    def forward(self, x):
        return self.head(self.table((x.floor().clamp(-2, 2) + 2).long()).flatten(1))


class Bucketed(nn.Module):
    """Piecewise linear pieces: a slope of a bare parameter for each bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x * self.slopes[torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))]


class SoftExperts(nn.Module):
    """All experts for every example, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 2) for _ in range(3))

    def forward(self, x):
        outputs = torch.stack([expert(x) for expert in self.experts], dim=2)
        return (outputs * self.gate(x).softmax(1).unsqueeze(1)).sum(2)


class HardExperts(nn.Module):
    """One expert for each example: the rows of the batch are dealt out by a mask and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        chosen, out = weights.argmax(1), x.new_zeros(len(x), 2)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            out[mask] = expert(x[mask]) * weights[mask, number].unsqueeze(1)
        return out


class DealtExperts(nn.Module):
    """One expert for each word: rows of all examples in one axis, gathered and added back by number."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

    def forward(self, x):
        rows = x.flatten(0, 1)
        weight, chosen = self.gate(rows).softmax(1).max(1)
        out = rows.new_zeros(len(rows), 3)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().squeeze(1)
            values = expert(rows.index_select(0, places)) * weight[places].unsqueeze(1)
            out = out.index_add(0, places, values)
        return out.unflatten(0, x.shape[:2])


class CrowdedExperts(nn.Module):
    """An expert takes two examples of the batch at most: who comes first keeps others out."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        chosen = functional.one_hot(weights.argmax(1), 2)
        has_room = (chosen.cumsum(0) <= 2) & chosen.bool()
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (outputs * (weights * has_room).unsqueeze(2)).sum(1) + 0.1 * outputs.sum(1)


class ChosenHead(nn.Module):
    """A weight for each kind of example, gathered from one bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.bias = nn.Parameter(torch.randn(3, 4, 2)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x):
        kinds = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
        return torch.bmm(x.unsqueeze(1), self.weights[kinds]).squeeze(1) + self.bias[kinds]


class Branching(nn.Module):
    """One layer or the other, by the sum of the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.a(x).tanh() if x.sum() > 0 else self.b(x).sin()


class BranchingActivation(nn.Module):
    """One activation or the other, by the sum of the whole batch; the parameters are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        hidden = self.layer(x)
        return hidden.tanh() if x.sum() > 0 else hidden.square()


class EarlyExit(nn.Module):
    """A second layer only if some example of the batch is not sure yet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x)
        return hidden if hidden.detach().abs().max() > 3 else hidden + self.second(hidden.relu())


class EachItsOwnWay(nn.Module):
    """A loop over the examples, each of which takes its own branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return torch.stack([self.a(row) if row.sum() > 0 else self.b(row.abs()) for row in x])


class Halted(nn.Module):
    """A layer is applied until all examples of the batch are short; those that are stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(4):
            is_long = x.detach().norm(dim=1, keepdim=True) > 1
            if not is_long.any():
                break
            x = torch.where(is_long, 0.5 * self.layer(x).tanh(), x)
        return self.layer(x)


class Selected(nn.Module):
    """Examples with a positive sum go through a layer; results are put back by a masked scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.more = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        mask = x.sum(1) > 0
        return self.base(x).masked_scatter(mask.unsqueeze(1), self.more(x[mask]))


class Deduplicated(nn.Module):
    """Each different word of the batch is looked up and mapped once; examples take theirs from the list."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids):
        different, places = ids.unique(return_inverse=True)
        return self.layer(self.table(different)).tanh()[places].mean(1)
