from __future__ import annotations

import torch

from dpfed.training.engine.watch.marks import MIXED, NOISE, NONE, Marks, Place, mark_in, mark_of, place_of


def test_a_mark_names_one_place_in_every_shape():
    marks = Marks(5)
    for shape in ((5, 2, 3), (2, 5, 3), (2, 3, 5), (10, 3), (2, 15)):
        for axis in range(len(shape)):
            if shape[axis] % 5 == 0:
                for inner in (1, shape[axis] // 5):
                    place = Place(axis, shape[axis] // 5 // inner, inner)
                    assert place_of(shape, mark_of(shape, place), marks.size) == place


def test_a_view_keeps_the_examples_where_its_memory_was_written():
    marks, memory = Marks(4), torch.zeros(4, 3)
    rows = torch.randn(4, 3)
    marks.put(rows, mark_of(rows.shape, Place(0)))
    assert marks.is_in_front(rows)
    marks.overwrite(memory, mark_of(memory.shape, Place(0)))
    memory.copy_(rows)
    assert marks.place(memory.t()) == Place(1)
    assert marks.place(memory.view(12)) == Place(0, 1, 3)


def test_memory_of_examples_that_nobody_saw_being_named_is_mixed():
    marks, rows = Marks(4), torch.randn(4, 3)
    marks.put(rows, mark_of(rows.shape, Place(0)))
    assert marks.of(torch.randn(4, 3)) == NONE
    assert marks.of(rows.data) == MIXED


def test_what_is_the_same_for_each_example_is_told_apart_from_what_is_not():
    marks = Marks(4)
    assert marks.is_alike(torch.ones(4, 3), Place(0))
    assert marks.is_alike(torch.arange(3.0).expand(4, 3), Place(0))
    assert not marks.is_alike(torch.arange(4.0).unsqueeze(1), Place(0))
    noise = torch.randn(4, 3)
    marks.put(noise, NOISE)
    assert marks.is_alike(noise, Place(0))


def test_a_place_that_the_shape_has_not_is_mixed():
    tensor = torch.zeros(8, 3)
    assert mark_in(tensor, Place(0, 1, 2), 4) == 6
    assert mark_in(tensor, Place(0), 4) == MIXED
    assert mark_in(tensor, NOISE, 4) == NOISE
