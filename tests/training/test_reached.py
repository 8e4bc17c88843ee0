"""What attributes lead to is found through containers, tensors and modules, and sorted by how it is restored."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from enum import Enum
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from dpfed.training.reached import Container, find_reached, list_containers

Pair = namedtuple("Pair", "first second")
Mode = Enum("Mode", "FAST SLOW")


def reach(**attributes):
    return find_reached([(attributes, ())])


ATOMS = (1, True, 1.0, "a", b"a", None, ..., torch.float32, torch.Size([2]), torch.device("cpu"), Mode.FAST, int, print)
FIXED = ((1, ("a",)), frozenset({1}), Pair(1, 2), range(2), np.float64(1.0))


@pytest.mark.parametrize("value", [*ATOMS, *FIXED], ids=repr)
def test_what_nobody_writes_into_is_left(value):
    found = reach(value=value)
    assert not (found.containers)
    assert not (found.tensors)
    assert not (found.modules)
    assert not (found.opaque)


@pytest.mark.parametrize(
    "value",
    [np.zeros(2), SimpleNamespace(), OrderedDict(), type("Text", (str,), {})("a"), type("Row", (tuple,), {})((1,))],
    ids=["an array", "an object", "a dict with attributes", "a text with attributes", "a tuple with attributes"],
)
def test_what_has_other_places_to_write_into_is_opaque_also_inside_containers(value):
    assert [name for _, name in reach(bare=value, inside=({"a": [value]},), plain=1).opaque] == ["bare", "inside"]


def test_tensors_and_modules_are_found_wherever_they_are_each_once():
    tensor, module = torch.zeros(1), nn.Sequential(nn.Linear(1, 1))
    tensor.other = [torch.ones(1)]
    module[0].noted = {"a": torch.ones(1)}
    found = reach(pair=(tensor, {"b": [module]}), again=[tensor, module], opaque=[SimpleNamespace(), module[0].weight])
    own = [tensor, *tensor.other, *module.parameters(), module[0].noted["a"]]
    assert {id(each) for each in found.tensors} == {id(each) for each in own}
    assert len(found.tensors) == len(own)
    assert found.modules == [module, module[0]]
    assert any(each.value is module[0].noted for each in found.containers)


def test_a_container_that_holds_itself_is_walked_once():
    value: list = []
    value.append(value)
    found = reach(value=value)
    value.append(1)
    (container,) = found.containers
    container.bring_back()
    assert len(value) == 1
    assert value[0] is value


@pytest.mark.parametrize("value", [{1: [0.0]}, [1, 2], {1, 2}, deque([1, 2], maxlen=3)], ids=repr)
def test_a_container_holds_the_same_objects_in_the_same_order_again(value):
    before, container = value.copy(), Container(value)
    value.clear()
    container.bring_back()
    assert value == before
    assert all(one is two for one, two in zip(value, before, strict=True))


@pytest.mark.parametrize(("one", "two"), [([1], [True]), ({1: 0}, {True: 0}), ({1: 0}, {1: False}), ({1}, {1.0})])
def test_what_is_equal_and_another_is_a_change(one, two):
    container, before = Container(one), repr(one)
    one.clear()
    (one.extend if isinstance(one, list) else one.update)(two)
    container.bring_back()
    assert repr(one) == before


def test_a_bound_method_leads_to_its_object():
    module = nn.Linear(1, 1)
    assert reach(method=module.forward).modules == [module]
    assert [name for _, name in reach(method=[Noting().note]).opaque] == ["method"]


class Noting:
    """An object with a method."""

    def note(self) -> None: ...


def test_containers_are_listed_whatever_is_beside_them():
    inner = [1]
    value = {"thing": SimpleNamespace(), "inner": inner}
    assert [each.value for each in list_containers(value)] == [value, inner]
