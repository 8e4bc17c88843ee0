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


@pytest.mark.parametrize("batch", [4 * EXAMPLES, EXAMPLES - 1, 1])
def test_methods_are_tried_on_made_up_examples_and_the_chosen_one_gets_all_that_there_are(monkeypatch, batch):
    monkeypatch.setattr(registry, "_CHOICES", {})
    seen = []

    def noting(call):
        seen.append(call.pair[1])
        return Materialised({"bias": rows_of(call.pair[1])})

    rule = Rule("noting", lambda call: {"one": noting, "other": noting}, noting)
    chosen = {}
    piece = choose_contribution(a_call(batch), rule, None, chosen)
    assert [len(each) for each in seen] == [EXAMPLES] * 2 * TRIALS + [batch]
    assert all(bool((each == 1).all()) for each in seen[:-1])
    assert len(piece.norms()) == batch
    choose_contribution(a_call(batch + 1), rule, None, chosen)
    assert len(seen) == 2 * TRIALS + 2


def test_of_a_layer_too_large_for_many_examples_one_is_tried(monkeypatch):
    monkeypatch.setattr(registry, "NUMBERS", 7)
    assert len(registry._make_up(a_call(5)).pair[0]) == 1


@pytest.mark.parametrize("order", [(16, 15), (15, 16)])
def test_one_record_less_does_not_change_the_method_for_all_others(monkeypatch, order):
    monkeypatch.setattr(registry, "_CHOICES", {})
    monkeypatch.setattr(registry, "_find_fastest", lambda call, *_: "grouped" if len(call.pair[1]) > 15 else "shift")
    torch.manual_seed(0)
    model, x = nn.Conv2d(3, 8, 3, bias=False), (torch.rand(16, 3, 1, 1) + 0.5).expand(16, 3, 12, 12).contiguous()
    slopes = torch.randn(16, 8, 10, 10).double()
    slopes = (slopes - slopes.mean((2, 3), keepdim=True)).float()  # positions cancel: what is left is rounding
    with ClippedGradients(model, clip_norm=1e-6) as gradients:
        sums = [gradients.sum((model(x[:n]) * slopes[:n]).flatten(1).sum(1))["weight"] for n in order]
    assert float((sums[0] - sums[1]).norm()) <= 1e-6
