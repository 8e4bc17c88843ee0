"""Layers whose examples are not the first axis, and parameters that no layer has, are served as fast and as exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clipped import distance
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.placing import move_examples_first
from dpfed.training.engine.watch.marks import Place

SIZE, LENGTH, WIDTH = 5, 4, 3


class Placed(nn.Module):
    """Words, a layer at every position and a norm, with the examples where `arrange` puts them."""

    def __init__(self, arrange, collect) -> None:
        super().__init__()
        self.table, self.layer, self.norm = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.scaled = nn.RMSNorm(WIDTH)
        self.arrange, self.collect = arrange, collect

    def forward(self, ids):
        return self.collect(self.scaled(self.norm(self.layer(self.table(self.arrange(ids))))))


class Bare(nn.Module):
    """Words and a head, between which `meet` puts parameters that belong to no layer."""

    def __init__(self, meet) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 2)
        self.positions, self.token = nn.Parameter(torch.randn(LENGTH, WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.looked_up = nn.Embedding(LENGTH + 2, WIDTH)
        self.meet = meet
        for name in {"positions", "token", "looked_up"} - set(meet.__code__.co_names):
            delattr(self, name)

    def forward(self, ids):
        return self.head(self.meet(self, self.table(ids))).tanh().mean(1)


PLACES = {
    "positions first": (lambda ids: ids.t(), lambda out: out.mean(0)),
    "examples before positions in one axis": (
        lambda ids: ids.reshape(-1),
        lambda out: out.view(-1, LENGTH, WIDTH).mean(1),
    ),
    "positions before examples in one axis": (
        lambda ids: ids.t().reshape(-1),
        lambda out: out.view(LENGTH, -1, WIDTH).mean(0),
    ),
    "between two axes of positions": (
        lambda ids: ids.view(-1, 2, LENGTH // 2).transpose(0, 1),
        lambda out: out.mean((0, 2)),
    ),
}
MEETINGS = {
    "added": lambda self, x: x + self.positions,
    "added with a factor": lambda self, x: torch.add(x, self.positions, alpha=-0.7),
    "taken away from": lambda self, x: torch.sub(self.positions, x, alpha=2),
    "subtracted": lambda self, x: x - self.positions,
    "multiplied": lambda self, x: x * self.positions,
    "one number for all": lambda self, x: x * self.token.mean(),
    "in another form": lambda self, x: x + self.positions.tanh().flip(0)[:, [1, 0, 2]],
    "used twice": lambda self, x: x * self.positions + self.positions,
    "a token": lambda self, x: torch.cat([self.token.expand(len(x), -1, -1), x], 1),
    "a token that is copied": lambda self, x: torch.cat([self.token.repeat(len(x), 1, 1), x], 1),
    "looked up for all": lambda self, x: x + self.looked_up(torch.arange(x.shape[1])),
    "multiplied by a matrix": lambda self, x: x @ self.positions[1:],
    "multiplied by a matrix that comes first": lambda self, x: (
        (self.positions @ x.reshape(-1, WIDTH).t()).t().view(-1, LENGTH, LENGTH)[:, :, 1:]
    ),
    "positions first, multiplied by a matrix": lambda self, x: (x.transpose(0, 1) @ self.positions[1:]).transpose(0, 1),
    "multiplied by a matrix that is made": lambda self, x: x @ (self.positions.t() @ self.positions.sin()),
    "multiplied by a matrix twice": lambda self, x: (x @ self.positions.t()).tanh() @ self.positions,
    "multiplied by matrices": lambda self, x: (
        x.unsqueeze(1).expand(-1, 2, -1, -1).matmul(self.positions.view(2, 2, WIDTH)[:, [0, 1, 0]]).sum(1)
    ),
    "a matrix on the left": lambda self, x: self.positions @ x[:, 1:],
    "an example's own matrix": lambda self, x: torch.bmm(x, self.positions[1:].expand(len(x), -1, -1)),
    "one matrix of many": lambda self, x: torch.bmm(x.reshape(1, -1, WIDTH), self.positions[None, 1:]).view_as(x),
    "one matrix of many on the left": lambda self, x: torch.bmm(
        self.positions[None, 1:], x.reshape(-1, WIDTH).t()[None]
    ).mT.reshape(x.shape),
    "in another sum of products": lambda self, x: torch.einsum("bti,ij->btj", x, self.positions[1:]),
    "multiplied by a vector": lambda self, x: x + (x @ self.token.flatten()).unsqueeze(2),
    "a vector for every example": lambda self, x: (
        x[:, :1] + (x.flatten(1)[:, :WIDTH] @ self.token[0, 0])[:, None, None]
    ),
    "as a linear layer": lambda self, x: nn.functional.linear(x, self.positions[1:], self.token[0, 0]),
    "as a linear layer without positions": lambda self, x: (
        x + nn.functional.linear(x[:, 0], self.positions[1:], self.token[0, 0]).unsqueeze(1)
    ),
    "with factors": lambda self, x: (
        x + torch.addmm(self.token[0], x[:, 0], self.positions[1:], beta=0.3, alpha=-2).unsqueeze(1)
    ),
    "a product added to examples": lambda self, x: (
        x + torch.addmm(x[:, 1], x[:, 0], self.positions[1:], beta=0.3, alpha=-2).unsqueeze(1)
    ),
    "a constant product added to examples": lambda self, x: (
        x + torch.addmm(x[:, 1], torch.ones(len(x), LENGTH), self.positions).unsqueeze(1)
    ),
    "added to examples and positions in one axis": lambda self, x: (
        x.reshape(-1, WIDTH) * self.token[0] + self.token[0, 0]
    ).view_as(x),
    "a convolution": lambda self, x: (
        nn.functional.conv1d(x.mT, torch.stack((self.positions[:3], self.positions[1:]), 2), self.token.flatten()).mT
    ),
    "a convolution in groups": lambda self, x: (
        nn.functional.conv1d(x.mT, self.positions.mT.unsqueeze(1)[..., :3], padding=2, dilation=2, groups=WIDTH).mT
    ),
    "a convolution in two dimensions": lambda self, x: nn.functional.conv2d(
        x.unsqueeze(1), self.positions[None, None, :3], stride=1, padding=1
    ).squeeze(1),
    "a normed weight": lambda self, x: nn.functional.linear(
        x, torch._weight_norm(self.positions[1:], self.token.mT[0], 0)
    ),
    "looked up twice": lambda self, x: x + self.looked_up(torch.arange(4)) + self.looked_up(torch.arange(2, 6)).sin(),
}


def squares(output, targets):
    return (output - targets).square().sum(1)


def forward_of(model, size=SIZE):
    ids = torch.randint(9, (size, LENGTH), generator=torch.Generator().manual_seed(1))
    return make_forward(model, squares, ids, torch.linspace(-1, 1, size).unsqueeze(1))


def built(kind, build):
    torch.manual_seed(0)
    return build(*PLACES[kind]) if kind in PLACES else build(MEETINGS[kind])


CASES = [*((kind, Placed) for kind in PLACES), *((kind, Bare) for kind in MEETINGS)]


@pytest.mark.parametrize(("kind", "build"), CASES, ids=[kind for kind, _ in CASES])
@pytest.mark.parametrize("settings", [{}, {"layers": "each"}, {"norm": "l1"}, {"is_exact": True}], ids=str)
def test_it_is_fast_and_gives_what_single_examples_give(kind, build, settings):
    model = built(kind, build)
    for clip_norm in (0.05, 1.0, 1e6):
        with (
            ClippedGradients(model, clip_norm=clip_norm, **settings) as fast,
            ClippedGradients(model, clip_norm=clip_norm, methods={"": "whole"}, **settings) as slow,
        ):
            for size in (SIZE, 1, 2):
                found, norms = fast.clipped(forward_of(model, size))
                wanted, lengths = slow.clipped(forward_of(model, size))
                assert distance(found, wanted) < 1e-5
                assert torch.allclose(norms, lengths, rtol=1e-5)
            assert fast.slow_reasons == ()


@pytest.mark.parametrize(("kind", "build"), CASES, ids=[kind for kind, _ in CASES])
def test_a_record_more_moves_the_sum_by_at_most_the_clip_norm(kind, build):
    model = built(kind, build)
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        whole = forward_of(model)
        sums, _ = gradients.clipped(whole)
        for gone in range(SIZE):
            less, _ = gradients.clipped(whole.rows([row for row in range(SIZE) if row != gone]))
            moved = torch.cat([(sums[name] - less[name]).flatten() for name in sums])
            assert float(torch.linalg.vector_norm(moved)) <= 0.1


@pytest.mark.parametrize("kind", MEETINGS)
def test_a_record_that_is_not_finite_counts_as_zero(kind):
    model = built(kind, Bare)
    whole = forward_of(model)
    whole.values[1][2] = torch.nan
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        sums, norms = gradients.clipped(whole)
        less, _ = gradients.clipped(whole.rows([0, 1, 3, 4]))
    assert norms.isinf().tolist() == [False, False, True, False, False]
    assert distance(sums, less) < 1e-5


def test_a_parameter_that_meets_other_parameters_and_examples_by_a_product_of_matrices_is_right():
    model = Bare(lambda self, x: x @ (self.positions.t() @ self.positions))
    with (
        ClippedGradients(model, clip_norm=0.1) as found,
        ClippedGradients(model, clip_norm=0.1, methods={"": "whole"}) as wanted,
    ):
        assert distance(found.clipped(forward_of(model))[0], wanted.clipped(forward_of(model))[0]) < 1e-5


def test_a_use_that_is_not_served_sends_the_parameter_another_way():
    model = Bare(lambda self, x: (x + self.positions) / (self.positions + 3))
    with (
        ClippedGradients(model, clip_norm=0.1) as found,
        ClippedGradients(model, clip_norm=0.1, methods={"": "whole"}) as wanted,
    ):
        assert distance(found.clipped(forward_of(model))[0], wanted.clipped(forward_of(model))[0]) < 1e-5


def test_a_layer_that_is_not_the_same_at_each_position_is_not_served_with_examples_elsewhere():
    class Product(nn.Module):
        """A module of one's own that adds up over its first axis, which has the positions."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, 2))

        def forward(self, x):
            return (x.cumsum(0).unsqueeze(-1) / (2 + self.weight.square())).sum(-2)

    class Across(nn.Module):
        """Positions first."""

        def __init__(self) -> None:
            super().__init__()
            self.product = Product()

        def forward(self, x):
            return self.product(x.transpose(0, 1)).sin().mean(0)

    class Folded(nn.Module):
        """Positions folded into the batch of a convolution."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(1, 2, WIDTH)

        def forward(self, x):
            return self.conv(x.reshape(-1, 1, WIDTH)).view(-1, LENGTH, 2).mean(1)

    for model in (Across(), Folded()):
        x = torch.randn(SIZE, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))
        whole = make_forward(model, squares, x, torch.zeros(SIZE, 1))
        with (
            ClippedGradients(model, clip_norm=0.1) as found,
            ClippedGradients(model, clip_norm=0.1, methods={"": "whole"}) as wanted,
        ):
            assert distance(found.clipped(whole)[0], wanted.clipped(whole)[0]) < 1e-5


def test_a_batch_may_have_more_positions_than_the_one_that_was_looked_at():
    rows = torch.arange(12).view(2, 6)
    assert move_examples_first(rows.reshape(-1), Place(0, inner=3), size=2).flatten(1).equal(rows)
    assert move_examples_first(rows.t().reshape(-1), Place(0, outer=3), size=2).flatten(1).equal(rows)


def test_a_factor_that_is_changed_in_place_stops_nobody():
    """Its gradient cannot be had, by whatever way, so that the records count as zero."""

    class Overwritten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.ones(2)), nn.Linear(WIDTH, 2)

        def forward(self, x):
            hidden = self.layer(x)
            product = hidden * self.scale
            hidden.mul_(2)
            return product

    model = Overwritten()
    whole = make_forward(model, squares, torch.ones(SIZE, WIDTH), torch.zeros(SIZE, 1))
    with ClippedGradients(model, clip_norm=0.1, is_tried=True) as gradients:
        sums, norms = gradients.clipped(whole)
    assert norms.isinf().all()
    assert all(not value.any() for value in sums.values())
