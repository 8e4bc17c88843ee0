"""Whatever a record or person holds, it moves a query's sum by the stated norm at most."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed.analytics.queries import Histogram, Moments
from dpfed.errors import InvalidArgument

EDGES = ((0.0, 1.0, 5.0), (-3.0, 2.0))
BOUNDS = ((0.0, 10.0), (-1.0, 1.0))
VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=2)
PERSON = st.lists(VALUES, min_size=1, max_size=9)
QUERIES = [Histogram(EDGES), Moments(BOUNDS)]


def norm(vector) -> float:
    return math.sqrt(math.fsum(value**2 for value in vector))


@pytest.mark.parametrize("query", QUERIES, ids=["histogram", "moments"])
@given(st.lists(VALUES, max_size=6), VALUES)
def test_a_record_more_moves_the_sum_by_the_norm_at_most(query, table, one):
    before = query.add_up(np.array(table, dtype=float).reshape(-1, 2))
    after = query.add_up(np.array([*table, one], dtype=float))
    assert norm(after - before) <= query.norm


@pytest.mark.parametrize("query", QUERIES, ids=["histogram", "moments"])
@given(st.lists(PERSON, max_size=4), PERSON)
def test_a_person_more_moves_the_sum_by_the_norm_at_most_however_many_rows_it_has(query, persons, one):
    def add(people):
        rows = np.array([len(each) for each in people], dtype=int)
        return query.add_up(np.array([row for each in people for row in each], dtype=float).reshape(-1, 2), rows)

    assert norm(add([*persons, one]) - add(persons)) <= query.norm


def test_the_norm_is_reached():
    assert norm(Histogram(EDGES).add_up(np.array([[3.0, 0.0]]))) == pytest.approx(math.sqrt(2))
    assert norm(Moments(BOUNDS).add_up(np.array([[99.0, -9.0]]))) == pytest.approx(math.sqrt(5))


def test_sums_do_not_depend_on_the_order_of_rows():
    table = np.random.default_rng(1).normal(size=(200, 2)) * 4
    for query in QUERIES:
        assert np.array_equal(query.add_up(table), query.add_up(table[::-1]))


def test_the_fixed_grid_has_every_number_in_a_cell():
    found = Histogram.fixed(1).add_up(np.array([[-1e9], [-0.5], [0.0], [1e-9], [3.0], [np.inf]]))
    assert found.sum() == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: Histogram(()),
        lambda: Histogram(((),)),
        lambda: Histogram(((2.0, 1.0),)),
        lambda: Moments(((1.0, 1.0),)),
        lambda: Moments(()),
        lambda: Histogram(EDGES).add_up(np.zeros((3, 1))),
        lambda: Histogram(EDGES).add_up(np.array([["a", "b"]])),
        lambda: Histogram(EDGES).add_up(np.zeros((3, 2)), np.array([1, 1])),
        lambda: Histogram(EDGES).add_up(np.zeros((3, 2)), np.array([3, 0])),
    ],
)
def test_what_is_no_query_and_no_table_is_refused(make):
    with pytest.raises(InvalidArgument):
        make()


@pytest.mark.parametrize("make", [lambda: Histogram((0, 50, 100)), lambda: Moments((0, 100)), lambda: Moments(((1,),))])
def test_numbers_that_are_not_given_by_column_are_refused_with_the_form(make):
    with pytest.raises(InvalidArgument, match="column by column: write"):
        make()
