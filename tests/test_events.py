from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.errors import AdjacencyMismatch, InvalidArgument, PrivacyError, UnknownEvent, UnsupportedEvent

positive = st.floats(min_value=1e-300, max_value=1e300)
non_negative = st.floats(min_value=0, max_value=1e300)
counts = st.integers(min_value=1, max_value=10**12)
adjacency = st.sampled_from(["add_remove", "replace_one"])
probability = st.floats(min_value=0, max_value=1, exclude_max=True)
rate = st.floats(min_value=0, max_value=1, exclude_min=True)


@st.composite
def renyi(draw):
    orders = sorted(draw(st.sets(st.floats(1, 1e6, exclude_min=True), min_size=1, max_size=5)))
    epsilons = [draw(non_negative) for _ in orders]
    return ev.RenyiDP(orders, epsilons, draw(adjacency))


@st.composite
def tree(draw):
    steps = draw(counts)
    return ev.TreeAggregation(draw(positive), steps, draw(counts), draw(counts), draw(st.integers(0, steps - 1)))


@st.composite
def without_replacement(draw, inner):
    size, population = sorted(draw(st.tuples(counts, counts)))
    return ev.SampledWithoutReplacement(draw(inner), size, population)


local_randomizers = st.one_of(
    st.builds(ev.Laplace, positive),
    st.builds(ev.RandomizedResponse, non_negative, st.integers(2, 10**6)),
    st.builds(lambda epsilon: ev.Repeated(ev.PureDP(epsilon, "replace_one"), 2), non_negative),
)


ATOMS = {
    ev.Gaussian: st.builds(ev.Gaussian, positive),
    ev.Laplace: st.builds(ev.Laplace, positive),
    ev.DiscreteGaussian: st.builds(ev.DiscreteGaussian, positive, counts, counts),
    ev.DiscreteLaplace: st.builds(ev.DiscreteLaplace, positive, counts),
    ev.RandomizedResponse: st.builds(ev.RandomizedResponse, non_negative, st.integers(2, 10**6), adjacency),
    ev.PureDP: st.builds(ev.PureDP, non_negative, adjacency),
    ev.Exponential: st.builds(ev.Exponential, non_negative, adjacency),
    ev.ApproximateDP: st.builds(ev.ApproximateDP, non_negative, probability, adjacency),
    ev.ZeroConcentratedDP: st.builds(ev.ZeroConcentratedDP, non_negative, adjacency),
    ev.RenyiDP: renyi(),
    ev.TreeAggregation: tree(),
    ev.Shuffled: st.builds(ev.Shuffled, local_randomizers, counts),
    ev.Unprotected: st.builds(ev.Unprotected),
}
NODES = {
    ev.PoissonSampled: lambda inner: st.builds(ev.PoissonSampled, inner, rate),
    ev.SampledWithoutReplacement: without_replacement,
    ev.Repeated: lambda inner: st.builds(ev.Repeated, inner, counts),
    ev.Composed: lambda inner: st.builds(ev.Composed, st.lists(inner, min_size=1, max_size=3)),
}
trees = st.recursive(
    st.one_of(*ATOMS.values()),
    lambda inner: st.one_of(*(node(inner) for node in NODES.values())),
    max_leaves=6,
)
KINDS = ATOMS | {kind: node(trees) for kind, node in NODES.items()}

STEP = ev.PoissonSampled(ev.Gaussian(1.0), 0.01)


def own_kinds() -> set[type[ev.Event]]:
    return {kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event)} - {ev.Event}


def test_every_kind_is_in_this_test():
    assert set(KINDS) == own_kinds()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_survives_json_repr_pickle_and_copy(kind):
    @given(KINDS[kind])
    def check(event):
        assert type(event) is kind
        copies = [
            ev.loads(ev.dumps(event)),
            ev.loads(ev.dumps(event).encode()),
            ev.from_dict(json.loads(json.dumps(event.to_dict()))),
            eval(repr(event), vars(ev).copy()),  # noqa: S307
            pickle.loads(pickle.dumps(event)),  # noqa: S301
            copy.deepcopy(event),
        ]
        for other in copies:
            assert other == event
            assert hash(other) == hash(event)
            assert type(other) is kind
            assert ev.dumps(other) == ev.dumps(event)

    check()


@given(trees, trees)
def test_events_are_equal_exactly_when_their_json_is(first, second):
    assert (first == second) == (ev.dumps(first) == ev.dumps(second))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_cannot_be_changed(kind):
    event = next(iter(EXAMPLES[kind]))
    for field in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, field.name, getattr(event, field.name))


EXAMPLES = {
    ev.Gaussian: {ev.Gaussian(1.0): "Gaussian(noise_multiplier=1.0)"},
    ev.Laplace: {ev.Laplace(2): "Laplace(noise_multiplier=2.0)"},
    ev.DiscreteGaussian: {
        ev.DiscreteGaussian(3.0): "DiscreteGaussian(scale=3.0)",
        ev.DiscreteGaussian(3.0, dimension=2): "DiscreteGaussian(scale=3.0, dimension=2)",
    },
    ev.DiscreteLaplace: {ev.DiscreteLaplace(3.0, 2): "DiscreteLaplace(scale=3.0, sensitivity=2)"},
    ev.RandomizedResponse: {
        ev.RandomizedResponse(0.5): "RandomizedResponse(epsilon=0.5)",
        ev.RandomizedResponse(0.5, 4): "RandomizedResponse(epsilon=0.5, num_buckets=4)",
    },
    ev.PureDP: {ev.PureDP(1, "replace_one"): "PureDP(epsilon=1.0, adjacency='replace_one')"},
    ev.Exponential: {ev.Exponential(1): "Exponential(epsilon=1.0)"},
    ev.ApproximateDP: {ev.ApproximateDP(1, 1e-5): "ApproximateDP(epsilon=1.0, delta=1e-05)"},
    ev.ZeroConcentratedDP: {ev.ZeroConcentratedDP(0.5): "ZeroConcentratedDP(rho=0.5)"},
    ev.RenyiDP: {ev.RenyiDP([2, 4], [0.1, 0.2]): "RenyiDP(orders=(2.0, 4.0), epsilons=(0.1, 0.2))"},
    ev.TreeAggregation: {
        ev.TreeAggregation(2, 100): "TreeAggregation(noise_multiplier=2.0, steps=100)",
        ev.TreeAggregation(2, 100, 3, 25, 1): (
            "TreeAggregation(noise_multiplier=2.0, steps=100, max_participations=3, min_separation=25, restarts=1)"
        ),
    },
    ev.Shuffled: {
        ev.Shuffled(ev.RandomizedResponse(1, 10), 100): (
            "Shuffled(RandomizedResponse(epsilon=1.0, num_buckets=10), users=100)"
        )
    },
    ev.Unprotected: {ev.Unprotected(): "Unprotected()"},
    ev.PoissonSampled: {STEP: "PoissonSampled(Gaussian(noise_multiplier=1.0), sample_rate=0.01)"},
    ev.SampledWithoutReplacement: {
        ev.SampledWithoutReplacement(ev.Laplace(1), 5, 100): (
            "SampledWithoutReplacement(Laplace(noise_multiplier=1.0), sample_size=5, population=100)"
        )
    },
    ev.Repeated: {ev.Repeated(ev.Unprotected(), 3): "Repeated(Unprotected(), count=3)"},
    ev.Composed: {
        ev.Composed([ev.PureDP(1), ev.Gaussian(1)]): "Composed([PureDP(epsilon=1.0), Gaussian(noise_multiplier=1.0)])"
    },
}


@pytest.mark.parametrize(("event", "text"), [pair for kind in EXAMPLES.values() for pair in kind.items()])
def test_a_repr_reads_like_the_call_and_leaves_defaults_out(event, text):
    assert repr(event) == text


def test_the_json_form_is_stable():
    """Ledgers keep these bytes for years: a change here is a change of the vocabulary's version."""
    run = ev.Repeated(ev.PoissonSampled(ev.Composed((ev.Gaussian(1), ev.RandomizedResponse(0.5))), 0.01), 10)
    assert ev.dumps(run) == (
        '{"count":10,"event":{"event":{"event_type":"Composed","events":'
        '[{"event_type":"Gaussian","noise_multiplier":1.0},'
        '{"adjacency":"replace_one","epsilon":0.5,"event_type":"RandomizedResponse","num_buckets":2}]},'
        '"event_type":"PoissonSampled","sample_rate":0.01},"event_type":"Repeated","version":1}'
    )


def test_equal_events_written_differently_are_one_key():
    assert len({ev.Gaussian(1), ev.Gaussian(1.0), ev.Gaussian(noise_multiplier=1)}) == 1
    assert len({ev.PureDP(0.0), ev.PureDP(-0.0)}) == 1
    assert ev.dumps(ev.PureDP(-0.0)) == ev.dumps(ev.PureDP(0.0))
    assert ev.Composed([ev.Gaussian(1)]) == ev.Composed(iter([ev.Gaussian(1)]))


def test_kinds_with_equal_fields_are_different_events():
    assert ev.Gaussian(1.0) != ev.Laplace(1.0)
    assert ev.PureDP(1.0) != ev.Exponential(1.0)
    assert ev.PureDP(1.0) != ev.PureDP(1.0, "replace_one")


BAD_NUMBERS = [-1.0, math.nan, math.inf, "1", None, True, [1.0]]
BAD_COUNTS = [0, -1, 2.5, 2.0, True, "3", None, math.nan]
BAD_RATES = [*BAD_NUMBERS, 0, 1.01, 2]
BAD_ARGUMENTS = [
    *((ev.Gaussian, {"noise_multiplier": bad}, "noise_multiplier") for bad in [*BAD_NUMBERS, 0]),
    *((ev.Laplace, {"noise_multiplier": bad}, "noise_multiplier") for bad in [*BAD_NUMBERS, 0]),
    *((ev.DiscreteGaussian, {"scale": bad}, "scale") for bad in [*BAD_NUMBERS, 0]),
    *((ev.DiscreteGaussian, {"scale": 1, "sensitivity": bad}, "sensitivity") for bad in BAD_COUNTS),
    *((ev.DiscreteGaussian, {"scale": 1, "dimension": bad}, "dimension") for bad in BAD_COUNTS),
    *((ev.DiscreteLaplace, {"scale": bad}, "scale") for bad in [*BAD_NUMBERS, 0]),
    *((ev.DiscreteLaplace, {"scale": 1, "sensitivity": bad}, "sensitivity") for bad in BAD_COUNTS),
    *((ev.RandomizedResponse, {"epsilon": bad}, "epsilon") for bad in BAD_NUMBERS),
    *((ev.RandomizedResponse, {"epsilon": 1, "num_buckets": bad}, "num_buckets") for bad in [*BAD_COUNTS, 1]),
    *((ev.PureDP, {"epsilon": bad}, "epsilon") for bad in BAD_NUMBERS),
    *((ev.Exponential, {"epsilon": bad}, "epsilon") for bad in BAD_NUMBERS),
    *((ev.ApproximateDP, {"epsilon": bad, "delta": 0}, "epsilon") for bad in BAD_NUMBERS),
    *((ev.ApproximateDP, {"epsilon": 1, "delta": bad}, "delta") for bad in [*BAD_NUMBERS, 1, 1.5]),
    *((ev.ZeroConcentratedDP, {"rho": bad}, "rho") for bad in BAD_NUMBERS),
    *(
        (ev.RenyiDP, {"orders": bad, "epsilons": [1]}, "orders")
        for bad in [[], [1], [0.5], [math.inf], [math.nan], 2, None]
    ),
    (ev.RenyiDP, {"orders": [3, 2], "epsilons": [1, 1]}, "orders"),
    (ev.RenyiDP, {"orders": [2, 2], "epsilons": [1, 1]}, "orders"),
    *(
        (ev.RenyiDP, {"orders": [2], "epsilons": bad}, "epsilons")
        for bad in [[], [1, 2], [-1], [math.inf], [math.nan], 1, None]
    ),
    *((ev.TreeAggregation, {"noise_multiplier": bad, "steps": 8}, "noise_multiplier") for bad in [*BAD_NUMBERS, 0]),
    *(
        (ev.TreeAggregation, {"noise_multiplier": 1, "steps": 8, name: bad}, name)
        for name in ("steps", "max_participations", "min_separation")
        for bad in BAD_COUNTS
    ),
    *(
        (ev.TreeAggregation, {"noise_multiplier": 1, "steps": 8, "restarts": bad}, "restarts")
        for bad in [*BAD_COUNTS[1:], 8]
    ),
    *((ev.PoissonSampled, {"event": ev.Gaussian(1), "sample_rate": bad}, "sample_rate") for bad in BAD_RATES),
    *((ev.Repeated, {"event": ev.Gaussian(1), "count": bad}, "count") for bad in BAD_COUNTS),
    *((ev.Shuffled, {"event": ev.Laplace(1), "users": bad}, "users") for bad in BAD_COUNTS),
    *(
        (
            ev.SampledWithoutReplacement,
            {"event": ev.Gaussian(1), "sample_size": bad, "population": 9},
            "sample_size",
        )
        for bad in [*BAD_COUNTS, 10]
    ),
    *(
        (
            ev.SampledWithoutReplacement,
            {"event": ev.Gaussian(1), "sample_size": 1, "population": bad},
            "population",
        )
        for bad in BAD_COUNTS
    ),
    *((ev.Composed, {"events": bad}, "events") for bad in [[], (), ev.Gaussian(1), None, 3]),
    *(
        (kind, {**base, "adjacency": bad}, "adjacency")
        for kind, base in [
            (ev.RandomizedResponse, {"epsilon": 1}),
            (ev.PureDP, {"epsilon": 1}),
            (ev.Exponential, {"epsilon": 1}),
            (ev.ApproximateDP, {"epsilon": 1, "delta": 0}),
            (ev.ZeroConcentratedDP, {"rho": 1}),
            (ev.RenyiDP, {"orders": [2], "epsilons": [1]}),
        ]
        for bad in ["both", None, 1]
    ),
]


@pytest.mark.parametrize(("kind", "arguments", "name"), BAD_ARGUMENTS)
def test_a_bad_value_is_refused_by_the_name_of_its_argument(kind, arguments, name):
    with pytest.raises(InvalidArgument, match=name) as caught:
        kind(**arguments)
    assert caught.value.argument == name


@pytest.mark.parametrize("value", [None, 1.0, "Gaussian", ev.Gaussian, ev.Event(), (ev.Gaussian(1),)])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: ev.Repeated(value, 2),
        lambda value: ev.PoissonSampled(value, 0.1),
        lambda value: ev.SampledWithoutReplacement(value, 1, 2),
        lambda value: ev.Composed([value]),
        ev.require_event,
        ev.dumps,
    ],
)
def test_what_is_no_event_is_refused(make, value):
    with pytest.raises(UnknownEvent, match=r"expected an event of dpfed\.events") as caught:
        make(value)
    assert isinstance(caught.value, TypeError)


BAD_JSON = {
    "not json": ("{", InvalidArgument, "JSON form of an event"),
    "not text": (b"\xff", InvalidArgument, "JSON form of an event"),
    "too deep": (
        '{"version":1,"event":' + "[" * 100_000 + "]" * 100_000 + "}",
        InvalidArgument,
        "JSON form of an event",
    ),
    "no object": ("[1]", InvalidArgument, "version 1"),
    "no version": ('{"event_type":"Unprotected"}', InvalidArgument, "version 1"),
    "unknown version": ('{"event_type":"Unprotected","version":2}', InvalidArgument, "version 1"),
    "no type": ('{"version":1}', UnknownEvent, "unknown event type None"),
    "unknown type": ('{"event_type":"Magic","version":1}', UnknownEvent, "unknown event type 'Magic'"),
    "the root type": ('{"event_type":"Event","version":1}', UnknownEvent, "unknown event type 'Event'"),
    "unknown type inside": (
        '{"event_type":"Repeated","count":2,"event":{"event_type":"Magic"},"version":1}',
        UnknownEvent,
        "unknown event type 'Magic'",
    ),
    "missing field": ('{"event_type":"Gaussian","version":1}', InvalidArgument, "Gaussian has other fields"),
    "missing default": (
        '{"event_type":"PureDP","epsilon":1,"version":1}',
        InvalidArgument,
        "PureDP has other fields",
    ),
    "extra field": (
        '{"event_type":"Gaussian","noise_multiplier":1,"steps":3,"version":1}',
        InvalidArgument,
        "Gaussian has other fields",
    ),
    "bad value": (
        '{"event_type":"Gaussian","noise_multiplier":-1,"version":1}',
        InvalidArgument,
        "noise_multiplier",
    ),
    "a NaN": (
        '{"event_type":"Gaussian","noise_multiplier":NaN,"version":1}',
        InvalidArgument,
        "noise_multiplier",
    ),
    "a text": (
        '{"event_type":"Gaussian","noise_multiplier":"1","version":1}',
        InvalidArgument,
        "noise_multiplier",
    ),
    "an event for a number": (
        '{"event_type":"Gaussian","noise_multiplier":{"event_type":"Unprotected"},"version":1}',
        InvalidArgument,
        "noise_multiplier",
    ),
    "a number for an event": (
        '{"event_type":"Repeated","count":2,"event":3,"version":1}',
        UnknownEvent,
        "expected an event",
    ),
    "an event for events": (
        '{"event_type":"Composed","events":{"event_type":"Unprotected"},"version":1}',
        InvalidArgument,
        "events",
    ),
    "no events": ('{"event_type":"Composed","events":[],"version":1}', InvalidArgument, "events"),
}


@pytest.mark.parametrize(("text", "error", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_bad_json_is_refused(text, error, message):
    with pytest.raises(error, match=message) as caught:
        ev.loads(text)
    assert isinstance(caught.value, PrivacyError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        ev.PureDP(1.0),
        ev.Exponential(1.0),
        ev.RandomizedResponse(1.0, adjacency="add_remove"),
        ev.Composed([ev.Laplace(1.0), ev.Repeated(ev.PureDP(1.0), 2)]),
    ],
    ids=repr,
)
def test_reports_stated_for_add_remove_are_not_shuffled(event):
    with pytest.raises(AdjacencyMismatch, match="adjacency='replace_one'"):
        ev.Shuffled(event, 100)


@pytest.mark.parametrize(
    "event",
    [
        ev.Gaussian(1.0),
        ev.ApproximateDP(1.0, 1e-6, adjacency="replace_one"),
        ev.PoissonSampled(ev.Laplace(1.0), 0.1),
        ev.Shuffled(ev.Laplace(1.0), 100),
        ev.Composed([ev.Laplace(1.0), ev.Unprotected()]),
    ],
    ids=repr,
)
def test_reports_that_are_not_pure_are_not_shuffled(event):
    with pytest.raises(UnsupportedEvent, match="ε₀-DP each"):
        ev.Shuffled(event, 100)
