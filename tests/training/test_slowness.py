from __future__ import annotations

import warnings

import pytest
from torch import nn

from dpfed.errors import SlowModelWarning
from dpfed.training.slowness import REMEDIES, explain, find_remedy, warn


@pytest.mark.parametrize("words", REMEDIES)
def test_every_reason_has_its_remedy_in_the_warning(words):
    model = nn.Linear(2, 2)
    why = f"something {words}"
    assert find_remedy(model, why) == REMEDIES[words]
    assert explain(model, [why, "an unknown reason"]).endswith(f"{why} ({REMEDIES[words]}); an unknown reason")


def test_a_layer_with_a_twin_is_named_with_what_its_twin_needs():
    model = nn.Sequential(nn.LSTM(2, 3), nn.GRUCell(3, 3))
    assert "let pack_padded_sequence sort" in find_remedy(model, "0.weight_ih_l0 is used outside its layer")
    cell = find_remedy(model, "1.weight_ih is used outside its layer")
    assert "give the GRUCell inputs" in cell
    assert "let pack_padded_sequence sort" not in cell
    assert "let pack_padded_sequence sort" in find_remedy(model, "a mask lets the examples decide")


def test_a_fast_model_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn(nn.Linear(2, 2), [], 1)
    with pytest.warns(SlowModelWarning, match="one example at a time"):
        warn(nn.Linear(2, 2), ["it keeps something for later"], 1)
