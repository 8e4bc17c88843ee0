from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed.accounting.composed import Composition
from dpfed.accounting.tally import FEW, Tally
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnknownEvent
from dpfed.events import Composed, Gaussian, Laplace, PoissonSampled, RandomizedResponse, Repeated

MANY = [Gaussian(20.0 + index) for index in range(2 * FEW)]

events = st.sampled_from([Gaussian(8.0), Laplace(9.0), PoissonSampled(Gaussian(1.5), 0.1)])


def test_an_empty_tally_costs_nothing():
    assert Tally().epsilon(1e-5) == 0.0
    assert Tally().event is None


def test_counts_of_a_narrow_integer_type_do_not_wrap_around():
    tally = Tally()
    for _ in range(3):
        tally.add(Gaussian(1e6), np.int64(2**62))
    assert tally.rows() == [[Gaussian(1e6).to_dict(), 3 * 2**62]]


@settings(max_examples=15)
@given(items=st.lists(st.tuples(events, st.integers(1, 9)), min_size=1, max_size=6))
def test_a_tally_costs_what_the_composition_costs(items):
    tally, composition = Tally(), Composition()
    for event, count in items:
        tally.add(event, count)
        composition.add(event, count)
    assert tally.epsilon(1e-5) == pytest.approx(composition.epsilon(1e-5), rel=1e-9)


@settings(max_examples=15)
@given(items=st.lists(st.tuples(events, st.integers(1, 9)), min_size=1, max_size=6), asked=st.booleans())
def test_few_kinds_of_events_cost_the_same_to_the_last_bit_however_they_came(items, asked):
    singly, at_once = Tally(), Tally()
    for event, count in items:
        at_once.add(event, count)
        for _ in range(count):
            singly.add(event)
            if asked:
                singly.epsilon(1e-5)
    assert singly.epsilon(1e-5) == at_once.epsilon(1e-5)


def test_many_kinds_of_events_cost_what_the_composition_costs_at_every_question():
    tally, composition = Tally(), Composition()
    for event in MANY:
        tally.add(event)
        composition.add(event)
        assert tally.epsilon(1e-5) == pytest.approx(composition.epsilon(1e-5), rel=1e-9)


def test_an_answer_is_not_kept_when_something_is_added():
    for size in (2, 2 * FEW):
        tally = Tally()
        for event in MANY[:size]:
            tally.add(event)
        before = tally.epsilon(1e-5)
        tally.add(Gaussian(1.0))
        assert tally.epsilon(1e-5) > 2 * before
        assert tally.epsilon(1e-5) > tally.epsilon(1e-3)


@pytest.mark.parametrize("size", [2, 2 * FEW])
def test_a_copy_goes_its_own_way(size):
    tally = Tally()
    for event in MANY[:size]:
        tally.add(event)
    before = tally.epsilon(1e-5)
    twin = tally.copy()
    assert twin.epsilon(1e-5) == before
    twin.add(Gaussian(1.0))
    assert tally.epsilon(1e-5) == before < twin.epsilon(1e-5)


@pytest.mark.parametrize("size", [1, 3, 2 * FEW])
def test_a_tally_restored_from_its_rows_agrees_in_every_bit(size):
    tally = Tally()
    for event in MANY[:size]:
        tally.add(PoissonSampled(event, 0.5), 3)
        tally.epsilon(1e-5)
    tally.settle()
    restored = Tally.from_rows(json.loads(json.dumps(tally.rows())), "add_remove")
    assert restored.epsilon(1e-5) == tally.epsilon(1e-5)
    assert restored.event == tally.event


def test_the_whole_is_one_event():
    tally = Tally()
    tally.add(Gaussian(8.0))
    assert tally.event == Gaussian(8.0)
    tally.add(Composed([Gaussian(8.0), Repeated(Laplace(9.0), 2)]))
    assert tally.event == Composed([Repeated(Gaussian(8.0), 2), Repeated(Laplace(9.0), 2)])


@pytest.mark.parametrize("size", [1, 2 * FEW])
@pytest.mark.parametrize(
    ("event", "count", "error"),
    [
        (RandomizedResponse(1.0), 1, AdjacencyMismatch),
        (Composed([Gaussian(1.0), RandomizedResponse(1.0)]), 1, AdjacencyMismatch),
        ("gaussian", 1, UnknownEvent),
        (Gaussian(1.0), 0, InvalidArgument),
    ],
)
def test_a_refused_event_leaves_the_tally_as_it_was(size, event, count, error):
    tally = Tally()
    for known in MANY[:size]:
        tally.add(known)
    before = tally.epsilon(1e-5)
    with pytest.raises(error):
        tally.add(event, count)
    assert tally.rows() == [[known.to_dict(), 1] for known in MANY[:size]]
    tally.settle()
    assert tally.epsilon(1e-5) == pytest.approx(before, rel=1e-12)


@pytest.mark.parametrize("rows", [[None], [[1, 2, 3]], ["ab"], [[{}, 1]]])
def test_what_are_no_rows_is_refused(rows):
    with pytest.raises(InvalidArgument):
        Tally.from_rows(rows, "add_remove")
