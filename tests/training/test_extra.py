"""Canaries are clipped like the one record that each of them is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed.errors import InvalidArgument
from dpfed.training.engine.clip import TOLERANCE, Clip
from dpfed.training.extra import clip_canary

PARAMETERS = {"a": torch.zeros(2, 2), "b": torch.zeros(3)}


@given(st.lists(st.floats(-1e200, 1e200), min_size=7, max_size=7), st.floats(1e-3, 1e3))
def test_a_canary_is_never_longer_than_the_clip_and_shorter_ones_are_kept_bit_by_bit(values, clip_norm):
    vector = torch.tensor(values, dtype=torch.float64)
    canary = {"a": vector[:4].view(2, 2), "b": vector[4:]}
    found = clip_canary(canary, PARAMETERS, Clip(clip_norm))
    length = float(torch.cat([value.flatten() for value in found.values()]).norm())
    assert length <= clip_norm * (1 + 1e-12)
    if float(vector.norm()) < clip_norm * (1 - TOLERANCE) * (1 - 1e-12):
        assert all(torch.equal(found[name], canary[name]) for name in canary)


def test_a_canary_may_leave_parameters_out_and_is_not_changed_itself():
    canary = {"b": torch.tensor([3.0, 0.0, 4.0], requires_grad=True)}
    found = clip_canary(canary, PARAMETERS, Clip(1.0))
    assert list(found) == ["b"]
    assert found["b"].tolist() == pytest.approx([0.6, 0.0, 0.8], rel=2 * TOLERANCE)
    assert canary["b"].tolist() == [3.0, 0.0, 4.0]


@pytest.mark.parametrize("canary", [{"c": torch.zeros(1)}, {"a": torch.zeros(4)}, {"b": 1.0}])
def test_a_canary_of_another_form_is_refused(canary):
    with pytest.raises(InvalidArgument, match="not a trainable parameter with a tensor of its shape"):
        clip_canary(canary, PARAMETERS, Clip(1.0))


@pytest.mark.parametrize(("norm", "share"), [("l2", 0.9 / math.sqrt(3)), ("l1", 0.3)])
def test_a_canary_is_cut_by_layer_and_in_the_norm_of_the_plan(norm, share):
    parameters = {
        "0.weight": torch.zeros(2),
        "0.bias": torch.zeros(1),
        "2.weight": torch.zeros(2),
        "scale": torch.zeros(1),
    }
    canary = {
        "0.weight": torch.tensor([30.0, 0.0]),
        "0.bias": torch.tensor([40.0]),
        "2.weight": torch.tensor([0.1, 0.1]),
    }
    found = clip_canary(canary, parameters, Clip(0.9, norm, "each"))
    layer = torch.cat([found["0.weight"], found["0.bias"]])
    assert float(layer.norm(p=int(norm[1]))) == pytest.approx(share, rel=2 * TOLERANCE)
    assert found["2.weight"].tolist() == pytest.approx([0.1, 0.1])
    together = clip_canary(canary, parameters, Clip(0.9, norm))
    assert float(torch.cat(list(together.values())).norm(p=int(norm[1]))) == pytest.approx(0.9, rel=2 * TOLERANCE)
