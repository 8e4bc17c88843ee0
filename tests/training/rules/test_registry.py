"""The choice between methods: tried once for a shape, on a few examples, and used for all of them."""

from __future__ import annotations

import torch
from torch import nn

from dpfed.training.rules.pieces import Call, Materialised, rows_of
from dpfed.training.rules.registry import EXAMPLES, TRIALS, Rule, made


def a_call(batch):
    x, g = torch.randn(batch, 3), torch.randn(batch, 2)
    return Call("0", nn.Linear(3, 2), (x,), {}, x, 0, ("bias",), None, g.shape, gradient=g)


def test_methods_are_tried_on_a_few_examples_and_the_chosen_one_gets_all_of_them():
    sizes = []

    def noting(call):
        sizes.append(len(call.pair[1]))
        return Materialised({"bias": rows_of(call.pair[1])})

    rule = Rule("noting", lambda call: {"one": noting, "other": noting}, noting)
    chosen = {}
    piece = made(a_call(4 * EXAMPLES), rule, None, chosen)
    assert sizes == [EXAMPLES] * 2 * TRIALS + [4 * EXAMPLES]
    assert len(piece.norms()) == 4 * EXAMPLES
    made(a_call(4 * EXAMPLES + 1), rule, None, chosen)
    assert sizes[-1] == 4 * EXAMPLES + 1
    assert len(sizes) == 2 * TRIALS + 2
