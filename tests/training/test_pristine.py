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


class Number(int):
    """A number that can have attributes."""


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
        self.bare, self.pair, self.unregistered = torch.zeros(2), (torch.zeros(2), [0.0]), [nn.Linear(2, 1)]
        self.named, self.kinds, self.number = {1: 0.0}, {1}, Number(3)
        self.locked = {"lock": self.lock, "seen": [0.0]}
        self.frozen.notes = []

    def facts(self):
        numbers = [self.frozen, self.mean, self.array, self.bare, self.pair[0], self.unregistered[0].weight]
        flags = [self.training, self.linear.weight.requires_grad, len(self.linear._forward_hooks)]
        places = [
            (p.shape, p.stride(), p.dtype, p.grad, len(p._backward_hooks or ()), vars(p))
            for p in self.linear.parameters()
        ]
        notes = [self.pair[1], self.locked["seen"], self.frozen.notes, vars(self.number), self.unregistered[0].training]
        known = [self.seen, self.history, self.deep, self.thing, self.named, self.kinds, notes, len(vars(self))]
        return [each.tolist() for each in numbers], flags, str(places), str(known)


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
    "a tensor that is no buffer": lambda m: m.bare.add_(1.0),
    "another tensor in its place": lambda m: setattr(m, "bare", m.bare + 1.0),
    "a view of a tensor that is no buffer": lambda m: m.bare[:1].fill_(1.0),
    "a tensor in a tuple": lambda m: m.pair[0].data.add_(1.0),
    "a list in a tuple": lambda m: m.pair[1].append(1.0),
    "weights of a module in a list": lambda m: m.unregistered[0].weight.data.add_(1.0),
    "the mode of a module in a list": lambda m: m.unregistered[0].eval(),
    "an attribute of a number": lambda m: setattr(m.number, "seen", 1.0),
    "a list beside a lock": lambda m: m.locked["seen"].append(1.0),
    "a list that a parameter has": lambda m: m.frozen.notes.append(1.0),
    "a zero with another sign": lambda m: m.deep["a"]["b"].__setitem__(0, -0.0),
    "a number that is no number": lambda m: m.named.__setitem__(1, float("nan")),
    "a key that is equal": lambda m: (m.named.clear(), m.named.__setitem__(True, 0.0)),
    "a member that is equal": lambda m: (m.kinds.clear(), m.kinds.add(True)),
    "all attributes at once": lambda m: setattr(m, "__dict__", {**vars(m), "seen": 1.0}),
    "a parameter of another shape": lambda m: setattr(m.linear.weight, "data", torch.ones(3, 2)),
    "a parameter in other memory": lambda m: setattr(m.linear.weight, "data", torch.zeros(2, 1).t()),
    "the precision of a parameter": lambda m: m.linear.double(),
    "a gradient": lambda m: m.linear(torch.ones(1, 2)).sum().backward(),
    "a hook of a parameter": lambda m: m.linear.weight.register_hook(lambda g: g),
    "an attribute of a parameter": lambda m: setattr(m.linear.weight, "seen", 1.0),
}


def test_memory_that_somebody_has_cut_off_is_there_again():
    model = nn.Linear(2, 1)
    row = in_one_row(model)
    kept = Pristine(model.modules(), list(model.parameters()))
    row.untyped_storage().resize_(0)
    kept.bring_back()
    assert row.untyped_storage().nbytes() == 12
    assert model(torch.ones(1, 2)).shape == (1, 1)


def test_parameters_are_windows_on_their_row_again_and_have_the_values_that_are_written_there():
    model = nn.Linear(2, 1)
    row = in_one_row(model)
    kept = Pristine(model.modules(), list(model.parameters()))
    for value in (1.0, 2.0):
        model.weight.data, model.bias.data = torch.zeros(1, 2), row[:1].clone()
        kept.bring_back()
        row.fill_(value)
        assert [parameter.tolist() for parameter in model.parameters()] == [[[value, value]], [value]]


def test_values_of_written_parameters_are_left_to_whoever_writes_them():
    model = nn.Linear(2, 1)
    row = in_one_row(model)
    kept = Pristine(model.modules(), list(model.parameters()))
    row.fill_(3.0)
    kept.bring_back()
    assert row.tolist() == [3.0, 3.0, 3.0]


def test_attributes_of_other_objects_are_restored_too():
    loss, model = SimpleNamespace(seen=0.0, thing=SimpleNamespace(largest=[]), sums=torch.zeros(1)), nn.Linear(2, 1)
    kept = Pristine([model], others=[loss, print, None])
    for _ in range(2):
        loss.seen, loss.more = 1.0, 1.0
        loss.thing.largest.append(1.0)
        loss.sums += 1.0
        kept.bring_back()
        assert str(loss) == "namespace(seen=0.0, thing=namespace(largest=[]), sums=tensor([0.]))"


def test_a_container_that_two_modules_share_stays_one():
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    first.cache = second.cache = {"thing": SimpleNamespace(seen=[])}
    first.plain = second.plain = []
    kept = Pristine([first, second])
    for _ in range(2):
        first.cache["thing"].seen.append(1.0)
        first.plain.append(1.0)
        kept.bring_back()
        assert first.cache is second.cache
        assert first.plain is second.plain
        assert (second.cache["thing"].seen, second.plain) == ([], [])


def in_one_row(model: nn.Linear) -> torch.Tensor:
    """The row of which weight and bias are windows from here on."""
    row = torch.zeros(3)
    model.weight.data, model.bias.data = row[:2].view(1, 2), row[2:]
    return row


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_noted_anywhere_in_a_module_is_undone_again_and_again(change, is_written):
    model = Notes()
    written = model.linear.parameters() if is_written else ()
    kept, before = Pristine(model.modules(), list(written)), model.facts()
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
