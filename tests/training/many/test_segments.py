from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpfed.training.engine.clip import TOLERANCE
from dpfed.training.engine.rules.registry import LINEAR
from dpfed.training.many.segments import Layer, average, make_call, sum_clipped

MODULE = nn.Linear(2, 3)
LAYER = Layer("out", MODULE, LINEAR, {"weight": "out.weight", "bias": "out.bias"}, (3,))
X, G = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(1)), torch.ones(2, 4, 3)
MASK = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


def clipped(x=X, g=G, mask=MASK, clip_norms=(0.5, 3.0)):
    return sum_clipped([LAYER], [make_call(LAYER, x, g)], mask, torch.tensor(clip_norms))


def by_hand(x, g, mask, clip_norms):
    weights, biases = torch.zeros(2, 3, 2), torch.zeros(2, 3)
    for model in range(2):
        for row in range(4):
            gradient = torch.cat([torch.outer(g[model, row], x[model, row]).flatten(), g[model, row]])
            gradient *= mask[model, row] * min(1.0, clip_norms[model] * (1 - TOLERANCE) / float(gradient.norm()))
            weights[model] += gradient[:6].view(3, 2)
            biases[model] += gradient[6:]
    return {"out.weight": weights, "out.bias": biases}


def test_each_models_sum_is_that_of_its_own_examples_at_its_own_clip_norm():
    expected = by_hand(X, G, MASK, (0.5, 3.0))
    for name, value in clipped().items():
        torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_one_example_moves_its_own_models_sum_by_the_clip_norm_at_most_whatever_it_is(value):
    changed = X.clone()
    changed[0, 1] = value
    before, after = clipped(), clipped(changed)
    moved = [torch.cat([(after[n] - before[n])[k].flatten() for n in before]).norm() for k in range(2)]
    assert float(moved[0]) <= 2 * 0.5
    assert float(moved[1]) == 0.0


def test_plain_gradients_are_averaged_over_those_in_the_mask():
    found = average([LAYER], [make_call(LAYER, X, G)], MASK)
    torch.testing.assert_close(found["out.weight"][1], torch.outer(G[1, 0], X[1, 0]))
    torch.testing.assert_close(found["out.bias"], torch.ones(2, 3))


def test_what_a_layer_holds_for_one_example_is_its_outputs_and_what_is_written_out():
    assert (LAYER.is_written, LAYER.numbers) == (False, 6)
    positions = Layer("out", MODULE, LINEAR, LAYER.names, (5, 3))
    assert (positions.is_written, positions.numbers) == (True, 2 * 15 + 9)
