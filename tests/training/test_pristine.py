"""Whatever was done to modules and to what they hold is undone; what they share with others stays shared."""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.training.pristine import Pristine


class Notes(nn.Module):
    """A module that can note things in many places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.register_buffer("mean", torch.zeros(2))
        self.seen, self.history, self.deep = 0.0, [], {"a": {"b": [0.0]}}
        self.array, self.thing = np.zeros(2), SimpleNamespace(largest=0.0)
        self.layers, self.lock = [self.linear], threading.Lock()

    def facts(self):
        numbers = [self.frozen.tolist(), self.mean.tolist(), self.array.tolist()]
        flags = [self.training, self.linear.weight.requires_grad, len(self.linear._forward_hooks)]
        return numbers, flags, self.seen, list(self.history), str(self.deep), self.thing.largest, hasattr(self, "more")


CHANGES = {
    "a number": lambda m: setattr(m, "seen", 1.0),
    "a new attribute": lambda m: setattr(m, "more", 1.0),
    "a list": lambda m: m.history.append(1.0),
    "a list in a dict in a dict": lambda m: m.deep["a"]["b"].append(1.0),
    "an array of numpy": lambda m: m.array.fill(1.0),
    "an object": lambda m: setattr(m.thing, "largest", 1.0),
    "a buffer": lambda m: m.mean.add_(1.0),
    "a frozen parameter": lambda m: m.frozen.data.add_(1.0),
    "a mode": lambda m: m.eval(),
    "whether it trains": lambda m: m.linear.requires_grad_(False),
    "a hook": lambda m: m.linear.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_noted_anywhere_in_a_module_is_undone_again_and_again(change):
    model = Notes()
    kept, before = Pristine(model.modules()), model.facts()
    for _ in range(2):
        change(model)
        assert model.facts() != before
        kept.bring_back()
        assert model.facts() == before


def test_modules_and_tensors_that_attributes_name_stay_the_same_objects():
    model = Notes()
    parameters = OrderedDict(model.named_parameters())
    kept = Pristine(model.modules())
    kept.bring_back()
    assert model.layers[0] is model.linear
    assert all(value is parameters[name] for name, value in model.named_parameters())
    assert model.lock.acquire(blocking=False)  # it cannot be copied, and is left
