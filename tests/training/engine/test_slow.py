"""Programs that keep examples apart and that no rule explains are computed by vmap, all examples in one call."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from clipped import distance, expected_sum, flat, squares
from dpfed.training.engine.forward import make_forward
from dpfed.training.engine.gradients import ClippedGradients

SIZE = 6


class Attention(nn.Module):
    """A layer that is never called: its weight is used as it is, and in a quotient."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layer = nn.Linear(4, 5, bias=False)
        self.layer.weight.data = torch.randn(5, 4, generator=generator)
        self.call = nn.Parameter(torch.randn(5, 1, generator=generator))

    def forward(self, x):
        hidden = torch.matmul(x, self.layer.weight.t())
        return (torch.softmax(torch.matmul(hidden, self.call), 1) * hidden).sum(1) / self.layer.weight.square().sum()


def convolved():
    torch.manual_seed(0)
    return nn.Sequential(
        weight_norm(nn.ConvTranspose1d(3, 4, 2, dilation=2)), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)
    )


def attended():
    return Attention(), torch.randn(SIZE, 3, 4)


def normed():
    model, x = convolved(), torch.randn(SIZE, 3, 4)
    model(x)
    return model, x


CASES = {"a layer that is not called": attended, "weight norm of a layer that is transposed": normed}


@pytest.mark.parametrize("clip_norm", [1e-3, 0.5, 1e3])
@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_that_of_a_loop(case, clip_norm):
    model, x = CASES[case]()
    y = torch.zeros(SIZE)
    with ClippedGradients(model, clip_norm=clip_norm) as gradients:
        found, norms = gradients.clipped(make_forward(model, squares, x, y))
        assert gradients.slow_reasons
    assert distance(found, expected_sum(model, x, y, clip_norm)) < 1e-5
    assert len(norms) == SIZE


@pytest.mark.parametrize("case", CASES)
def test_removing_an_example_moves_the_sum_by_at_most_the_clip(case):
    model, x = CASES[case]()
    x[2] *= 1e4
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        whole = flat(gradients.clipped(make_forward(model, squares, x, torch.zeros(SIZE)))[0])
        for place in range(SIZE):
            rest = x[[row for row in range(SIZE) if row != place]]
            one = flat(gradients.clipped(make_forward(model, squares, rest, torch.zeros(SIZE - 1)))[0])
            assert float((whole - one).norm()) <= 0.1


def test_all_examples_are_in_one_call():
    model, x = attended()
    sizes = []
    model.register_forward_pre_hook(lambda module, arguments: sizes.append(len(arguments[0])))
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        forward = make_forward(model, squares, x, torch.zeros(SIZE))
        gradients.clipped(forward)
        sizes.clear()
        gradients.clipped(forward)
    assert sizes == [SIZE, 1]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e30])
def test_an_example_that_is_not_finite_counts_as_zero(value):
    model, x = attended()
    x[1] = value
    kept = [0, 2, 3, 4, 5]
    with ClippedGradients(model, clip_norm=0.1) as gradients:
        found, norms = gradients.clipped(make_forward(model, squares, x, torch.zeros(SIZE)))
        rest, _ = gradients.clipped(make_forward(model, squares, x[kept], torch.zeros(5)))
    assert distance(found, rest) < 1e-5
    assert norms[1] == torch.inf


@pytest.mark.parametrize("mode", [{"norm": "l1"}, {"layers": "each"}])
def test_other_ways_to_clip_are_those_of_one_example_at_a_time(mode):
    model, x = attended()
    forward = make_forward(model, squares, x, torch.zeros(SIZE))
    with ClippedGradients(model, clip_norm=0.1, **mode) as together:
        found, norms = together.clipped(forward)
    with ClippedGradients(model, clip_norm=0.1, methods={"": "whole"}, **mode) as alone:
        expected, lengths = alone.clipped(forward)
    assert distance(found, expected) < 1e-5
    assert torch.allclose(norms, lengths, rtol=1e-4)


def test_each_example_has_random_numbers_of_its_own():
    class Dropped(Attention):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5)

    model = Dropped()
    x = torch.ones(64, 3, 4)
    with ClippedGradients(model, clip_norm=1e6) as gradients:
        _, norms = gradients.clipped(make_forward(model, squares, x, torch.zeros(64)))
    assert len(set(norms.tolist())) > 8
