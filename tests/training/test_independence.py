"""The allow-list: what is said to keep examples apart and in their places really does, and what does not is noticed.

The truth is plain: without one example, all others must come out as before.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpfed.training.independence import Watch

SIZES = (5, 3)
TABLE = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
Function = Callable[[Tensor], Tensor]


def examples(size: int) -> Tensor:
    """Examples of three positions with four numbers each, no two alike and the second one the largest."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(max(SIZES), 3, 4, generator=generator)
    x[1] *= 10
    return x[:size]


def is_apart(function: Function) -> bool:
    """Return whether leaving out any one example leaves the results of all others as they are."""
    x = examples(max(SIZES))
    whole = function(x)
    for gone in range(len(x)):
        kept = [row for row in range(len(x)) if row != gone]
        rest = function(x[kept])
        if len(whole) != len(x) or len(rest) != len(kept) or not torch.allclose(whole[kept], rest, atol=1e-5):
            return False
    return True


def is_said_apart(function: Function) -> bool:
    """Return whether two passes, watched, are taken for one that keeps examples apart."""
    watches = []
    for size in SIZES:
        x = examples(size)
        with Watch(size, [x]) as watch:
            output = function(x)
        if watch.escaped is not None or not watch.marks.is_in_front(output):
            return False
        watches.append(watch)
    return watches[0].agrees_with(watches[1])


def tokens(x: Tensor) -> Tensor:
    return (x[..., 0].abs() * 3).long().clamp(max=6)


def order(x: Tensor) -> Tensor:
    return x.sum((1, 2)).argsort()


APART: dict[str, Function] = {
    "pointwise": lambda x: (x * 2 + 1).relu(),
    "sum over positions": lambda x: x.sum(1),
    "softmax over positions": lambda x: x.softmax(1),
    "cumulated positions": lambda x: x.cumsum(1),
    "flipped positions": lambda x: x.flip(1),
    "rolled positions": lambda x: x.roll(1, 1),
    "sorted positions": lambda x: x.sort(1).values,
    "largest of each": lambda x: x.topk(2, 2).values,
    "transposed and back": lambda x: x.transpose(0, 1).exp().transpose(0, 1),
    "folded and back": lambda x: x.flatten(0, 1).tanh().view(x.shape),
    "a matrix of its own": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "one matrix for all": lambda x: x @ TABLE[:4],
    "chosen positions": lambda x: x[:, [2, 0]],
    "chosen positions by number": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "a position of each": lambda x: x[torch.arange(len(x)), tokens(x)[:, 0] % 3],
    "gathered inside": lambda x: x.gather(2, tokens(x).unsqueeze(2) % 4),
    "words": lambda x: functional.embedding(tokens(x), TABLE),
    "a bias for each position": lambda x: x + torch.arange(12.0).view(3, 4),
    "norm of each": lambda x: functional.layer_norm(x, (3, 4)),
    "joined positions": lambda x: torch.cat([x, x * 2], 1),
    "a loss for each": lambda x: functional.mse_loss(x, x * 0.5, reduction="none").mean((1, 2)),
}
CROSSING: dict[str, Function] = {
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "sort": lambda x: x.sort(0).values,
    "order of all": lambda x: x.argsort(0).float(),
    "ranked": lambda x: x[order(x)],
    "shuffled": lambda x: x[torch.arange(len(x)).flip(0)],
    "the next one's position": lambda x: x[(torch.arange(len(x)) + 1) % len(x), tokens(x)[:, 0] % 3],
    "index_select": lambda x: x.index_select(0, torch.arange(len(x)).flip(0)),
    "gathered across": lambda x: x.gather(0, torch.zeros(x.shape, dtype=torch.long)),
    "scattered across": lambda x: x.scatter_add(0, torch.zeros(x.shape, dtype=torch.long), x),
    "centred": lambda x: x - x.mean(0),
    "sum of all": lambda x: x.sum((0, 1, 2), keepdim=True).expand_as(x) * 1.0,
    "scaled by the largest": lambda x: x / x.amax((0, 1, 2), keepdim=True),
    "softmax over examples": lambda x: x.softmax(0),
    "cumulated examples": lambda x: x.cumsum(0),
    "largest of all": lambda x: x.topk(2, 0).values,
    "gram": lambda x: (x.flatten(1) @ x.flatten(1).T).sum(1),
    "matrices of the next": lambda x: torch.bmm(x, x.roll(1, 0).transpose(1, 2)),
    "norm of the batch": lambda x: functional.layer_norm(x.movedim(0, 2), (len(x),)).movedim(2, 0),
    "batch norm": lambda x: functional.batch_norm(x.flatten(1), None, None, training=True),
    "ramp over the batch": lambda x: x * torch.linspace(1, 2, len(x)).view(-1, 1, 1),
    "a bias for each place": lambda x: x + torch.arange(float(len(x))).view(-1, 1, 1),
    "matrices for each place": lambda x: torch.bmm(x, torch.arange(4.0 * len(x)).view(-1, 4, 1)),
    "rows of a table by place": lambda x: x[:, 0, :3] + functional.embedding(torch.arange(len(x)), TABLE),
    "all but the first": lambda x: x[1:],
    "each twice": lambda x: x.repeat(2, 1, 1),
    "the first for all": lambda x: x[:1].expand_as(x) * 1.0,
    "those that are large": lambda x: x[x.sum((1, 2)) > 0],
    "folded otherwise": lambda x: x.reshape(3, len(x), 4).cumsum(1).reshape(x.shape),
    "a mean loss": lambda x: functional.mse_loss(x, x * 0.5).expand(len(x)),
    "written in place": lambda x: x.clone().copy_(x.flip(0)),
    "a number of the batch": lambda x: x / x.max().item(),
    "a branch of the batch": lambda x: x * 2 if bool((x.abs() > 9).any()) else x,
    "numpy": lambda x: x * float(x.numpy().max()),
    "lists": lambda x: x * max(x.flatten().tolist()),
    "data": lambda x: x * float(x.data.max()),
    "divided by the number of examples": lambda x: x / len(x),
    "times the number, as a tensor": lambda x: x * torch.tensor(float(len(x))),
    "to the power of the number": lambda x: x.abs() ** len(x),
    "weights by the number": lambda x: x @ torch.full((4, 2), 1.0 / len(x)),
}


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_what_keeps_examples_apart_is_recognised(function):
    assert is_apart(function)
    assert is_said_apart(function)


@pytest.mark.parametrize("function", CROSSING.values(), ids=CROSSING)
def test_what_moves_or_mixes_examples_or_counts_them_is_never_taken_for_apart(function):
    assert not is_apart(function)
    assert not is_said_apart(function)
