"""The choice between methods: tried once for a shape, on a few examples, and used for all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpfed.training.engine.gradients import ClippedGradients
from dpfed.training.engine.rules import registry
from dpfed.training.engine.rules.contributions import Call, Materialised, rows_of
from dpfed.training.engine.rules.registry import EXAMPLES, TRIALS, Rule, choose_contribution


def a_call(batch):
    x, g = torch.randn(batch, 3), torch.randn(batch, 2)
    return Call("0", nn.Linear(3, 2), (x,), {}, x, 0, ("bias",), None, g.shape, gradient=g)


@pytest.mark.parametrize(("batch", "tried"), [(4 * EXAMPLES, EXAMPLES), (20, 10), (1, 1)])
def test_methods_are_tried_on_a_few_examples_and_the_chosen_one_gets_all_of_them(batch, tried):
    sizes = []

    def noting(call):
        sizes.append(len(call.pair[1]))
        return Materialised({"bias": rows_of(call.pair[1])})

    rule = Rule("noting", lambda call: {"one": noting, "other": noting}, noting)
    chosen = {}
    piece = choose_contribution(a_call(batch), rule, None, chosen)
    assert sizes == [tried] * 2 * TRIALS + [batch]
    assert len(piece.norms()) == batch
    choose_contribution(a_call(batch), rule, None, chosen)
    assert len(sizes) == 2 * TRIALS + 2


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="methods are chosen anew at powers of two")
def test_one_record_less_does_not_change_the_method_for_all_others(monkeypatch):
    monkeypatch.setattr(registry, "_CHOICES", {})
    monkeypatch.setattr(registry, "_find_fastest", lambda call, *_: "grouped" if len(call.pair[1]) > 15 else "shift")
    torch.manual_seed(0)
    model, x = nn.Conv2d(3, 8, 3, bias=False), (torch.rand(16, 3, 1, 1) + 0.5).expand(16, 3, 12, 12).contiguous()
    slopes = torch.randn(16, 8, 10, 10).double()
    slopes = (slopes - slopes.mean((2, 3), keepdim=True)).float()  # positions cancel: what is left is rounding
    with ClippedGradients(model, clip_norm=1e-6) as gradients:
        sums = [gradients.sum((model(x[:n]) * slopes[:n]).flatten(1).sum(1))["weight"] for n in (16, 15)]
    assert float((sums[0] - sums[1]).norm()) <= 1e-6
