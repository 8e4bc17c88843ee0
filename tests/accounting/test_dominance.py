"""The costliest of many events is found by fewer questions, and nothing that is left unasked costs more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.accounting.dominance import find_dominating, find_worst
from dpfed.accounting.queries import epsilon

noises = st.floats(0.8, 8.0)
rates = st.floats(0.01, 1.0)
counts = st.integers(1, 40)
sums = (
    noises.map(ev.Gaussian)
    | noises.map(ev.Laplace)
    | st.tuples(noises, noises).map(lambda pair: ev.Composed((ev.Gaussian(pair[0]), ev.Gaussian(pair[1] + 10))))
)
draws = st.builds(ev.PoissonSampled, noises.map(ev.Gaussian), rates)
runs = st.builds(ev.Repeated, draws, counts)


@given(first=sums | draws | runs, second=sums | draws | runs, adjacency=st.sampled_from(["add_remove", "replace_one"]))
@settings(deadline=None)
def test_what_dominates_costs_no_less_than_either(first, second, adjacency):
    both = find_dominating(first, second)
    if both is None:
        assert type(first) is not type(second)
        return
    cost = epsilon(both, 1e-5, adjacency=adjacency)
    assert all(epsilon(event, 1e-5, adjacency=adjacency) <= cost * (1 + 1e-6) + 1e-9 for event in (first, second))


def linear(event) -> float:
    return event.count * event.event.sample_rate / event.event.event.noise_multiplier


@given(st.lists(runs, min_size=1, max_size=60))
def test_the_worst_is_that_of_asking_all(events):
    found, cost = find_worst(events, linear)
    assert cost == max(map(linear, events)) == linear(found)
    assert found in events


def test_events_of_different_shapes_are_told_apart():
    events = [
        ev.Gaussian(0.5),
        ev.Laplace(2.0),
        ev.Repeated(ev.Gaussian(1.0), 3),
        ev.PoissonSampled(ev.Gaussian(1), 0.5),
    ]
    assert find_dominating(events[0], events[1]) is None
    assert find_dominating(ev.PureDP(1.0), ev.PureDP(2.0)) is None
    costs = dict(zip(events, (3.0, 1.0, 7.0, 2.0), strict=True))
    assert find_worst(events, costs.__getitem__) == (events[2], 7.0)


def test_what_costs_nothing_and_what_costs_everything_is_found():
    event = ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.5), 3)
    assert find_worst([event], lambda _: 0.0) == (event, 0.0)
    assert find_worst([event, ev.Unprotected()], lambda each: math.inf if each != event else 1.0)[1] == math.inf


def test_where_all_cost_the_same_few_more_questions_are_asked_than_there_are_events():
    events = [ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0 / size), 1 / size), 3) for size in range(1, 513)]
    asked = []
    find_worst(events, lambda event: asked.append(event) or 1.0)
    assert len(asked) < 1.2 * len(events)


def test_unequal_sites_are_asked_for_in_groups():
    events = [ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.5), 20 / size), 50) for size in range(100, 1100)]
    asked = []

    def cost(event):
        asked.append(event)
        return epsilon(event, 1e-5)

    assert find_worst(events, cost)[1] == pytest.approx(epsilon(events[0], 1e-5), rel=1e-12)
    assert len(asked) < 60
