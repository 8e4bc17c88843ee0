"""What must hold for every kind of event: how composition counts, and which way each number moves ε.

"Up to the bracket" means: where a run must not cost more than another, its certified lower bound is not above
the other's upper bound. Where no lower bound is proved (RDP curves) the plain figures are compared.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpfed import events as ev
from dpfed.accounting import delta, epsilon, epsilon_bounds
from dpfed.accounting.composed import Composition

ROUNDING = 1e-9
ALLOWANCE = 1e-6  # the proved error terms that are added to an upper bound depend on how it was summed
TIGHT = 1.01  # δ at the ε of a δ, over that δ
Asked = tuple[ev.Event, str]  # an event and the adjacency it is asked under
few = settings(max_examples=max(1, settings().max_examples // 4))


def number(low: float, high: float) -> st.SearchStrategy[float]:
    """Log-uniform, with four digits."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: float(f"{math.exp(x):.4g}"))


def under(adjacency: str) -> Any:
    return lambda event: (event, adjacency)


noise, small, chance = number(0.5, 50), number(0.01, 2), number(1e-3, 1)
both = st.sampled_from(["add_remove", "replace_one"])
gaussian, laplace = noise.map(ev.Gaussian), noise.map(ev.Laplace)
orders = (1.5, 2.0, 4.0, 16.0, 64.0)

KINDS: dict[str, st.SearchStrategy[Asked]] = {
    "Gaussian": st.tuples(gaussian, both),
    "Laplace": st.tuples(laplace, both),
    "DiscreteGaussian": st.builds(ev.DiscreteGaussian, noise, st.integers(1, 2)).map(under("add_remove")),
    "DiscreteGaussian-3d": st.builds(ev.DiscreteGaussian, noise, st.just(1), st.just(3)).map(under("add_remove")),
    "DiscreteLaplace": st.builds(ev.DiscreteLaplace, noise, st.integers(1, 3)).map(under("add_remove")),
    "RandomizedResponse": st.builds(ev.RandomizedResponse, small, st.integers(2, 9)).map(under("replace_one")),
    "PureDP": small.map(ev.PureDP).map(under("add_remove")),
    "Exponential": small.map(ev.Exponential).map(under("add_remove")),
    "ApproximateDP": st.builds(ev.ApproximateDP, small, number(1e-12, 1e-8)).map(under("add_remove")),
    "ZeroConcentratedDP": number(1e-4, 1).map(ev.ZeroConcentratedDP).map(under("add_remove")),
    "RenyiDP": number(1e-4, 0.1)
    .map(lambda rho: ev.RenyiDP(orders, tuple(rho * order for order in orders)))
    .map(under("add_remove")),
    "PoissonSampled-Gaussian": st.tuples(st.builds(ev.PoissonSampled, gaussian, chance), both),
    "PoissonSampled-Laplace": st.builds(ev.PoissonSampled, laplace, chance).map(under("add_remove")),
    "PoissonSampled-Composed": st.builds(
        lambda a, b, q: ev.PoissonSampled(ev.Composed([a, b]), q), gaussian, gaussian, chance
    ).map(under("add_remove")),
    # Its curve is dear and kept, so few different ones are drawn.
    "SampledWithoutReplacement": st.sampled_from([(1.5, 20), (6.0, 50)])
    .map(lambda row: ev.SampledWithoutReplacement(ev.Gaussian(row[0]), row[1], 1000))
    .map(under("replace_one")),
    # Its law is made anew for each one.
    "Shuffled": st.sampled_from([(0.5, 100), (2.0, 1000)])
    .map(lambda row: ev.Shuffled(ev.PureDP(row[0], adjacency="replace_one"), row[1]))
    .map(under("replace_one")),
    "Shuffled-RandomizedResponse": st.sampled_from([(0.5, 3, 100), (2.0, 5, 300)])
    .map(lambda row: ev.Shuffled(ev.RandomizedResponse(*row[:2]), row[2]))
    .map(under("replace_one")),
    "Repeated": st.builds(ev.Repeated, gaussian, st.integers(1, 9)).map(under("add_remove")),
    "Composed": st.builds(lambda a, b: ev.Composed([a, b]), gaussian, laplace).map(under("add_remove")),
    "TreeAggregation": st.tuples(
        st.builds(
            ev.TreeAggregation, noise, st.integers(4, 500), st.integers(1, 3), st.integers(1, 99), st.integers(0, 3)
        ),
        both,
    ),
    "Unprotected": st.just((ev.Unprotected(), "add_remove")),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
deltas = number(1e-9, 1e-3)


def cost(asked: Asked, at: float) -> float:
    event, adjacency = asked
    return epsilon(event, at, adjacency=adjacency)


def same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=ALLOWANCE, abs_tol=ALLOWANCE)


def costs_no_more(cheaper: Asked, dearer: Asked, at: float, dearer_at: float | None = None) -> bool:
    """Whether the first costs no more than the second, up to the bracket."""
    limit = cost(dearer, at if dearer_at is None else dearer_at)
    low, _ = epsilon_bounds(cheaper[0], at, adjacency=cheaper[1])
    return (low or cost(cheaper, at)) <= limit * (1 + ROUNDING) + ROUNDING


def test_every_kind_of_event_is_covered() -> None:
    covered = {name.partition("-")[0] for name in KINDS}
    assert covered == set(ev._KINDS)


@every_kind
@few
@given(data=st.data(), count=st.integers(2, 60), at=deltas)
def test_one_by_one_equals_all_at_once(kind: str, data: st.DataObject, count: int, at: float) -> None:
    event, adjacency = data.draw(KINDS[kind])
    singly, at_once = Composition(adjacency), Composition(adjacency)
    for _ in range(count):
        singly.add(event)
    at_once.add(event, count)
    assert same(singly.epsilon(at), at_once.epsilon(at))
    assert same(cost((ev.Repeated(event, count), adjacency), at), at_once.epsilon(at))


@few
@given(data=st.data(), at=deltas, adjacency=both)
def test_the_order_of_events_does_not_matter(data: st.DataObject, at: float, adjacency: str) -> None:
    fitting = st.sampled_from(sorted(set(KINDS) - {"Unprotected"})).flatmap(KINDS.__getitem__)
    asked = data.draw(st.lists(fitting, min_size=6, max_size=10))
    steps = [ev.Repeated(event, 5 + place) for place, (event, stated) in enumerate(asked) if stated == adjacency]
    assume(len(steps) > 1)
    shuffled = data.draw(st.permutations(steps))
    assert same(cost((ev.Composed(steps), adjacency), at), cost((ev.Composed(shuffled), adjacency), at))


@every_kind
@few
@given(data=st.data(), count=st.integers(1, 200), at=deltas)
def test_the_bracket_is_in_order_and_holds_the_answer(kind: str, data: st.DataObject, count: int, at: float) -> None:
    event, adjacency = data.draw(KINDS[kind])
    low, high = epsilon_bounds(ev.Repeated(event, count), at, adjacency=adjacency)
    assert 0 <= low <= high
    assert low <= cost((ev.Repeated(event, count), adjacency), at) * (1 + ROUNDING) + ROUNDING


@every_kind
@few
@given(data=st.data(), counts=st.tuples(st.integers(1, 100), st.integers(1, 100)), at=deltas)
def test_more_steps_never_cost_less(kind: str, data: st.DataObject, counts: tuple[int, int], at: float) -> None:
    event, adjacency = data.draw(KINDS[kind])
    fewer, more = ((ev.Repeated(event, count), adjacency) for count in sorted(counts))
    assert costs_no_more(fewer, more, at)


@every_kind
@few
@given(data=st.data(), count=st.integers(1, 100), ats=st.tuples(deltas, deltas))
def test_a_larger_delta_never_costs_more(kind: str, data: st.DataObject, count: int, ats: tuple[float, float]) -> None:
    event, adjacency = data.draw(KINDS[kind])
    run = (ev.Repeated(event, count), adjacency)
    assert costs_no_more(run, run, max(ats), dearer_at=min(ats))


@few
@given(
    mechanism=st.sampled_from([ev.Gaussian, ev.Laplace, ev.DiscreteGaussian, ev.DiscreteLaplace]),
    sigmas=st.tuples(noise, noise),
    q=chance,
    count=st.integers(1, 300),
    at=deltas,
)
def test_more_noise_never_costs_more(
    mechanism: type[ev.Event], sigmas: tuple[float, float], q: float, count: int, at: float
) -> None:
    less, more = ((ev.Repeated(mechanism(sigma), count), "add_remove") for sigma in sorted(sigmas))
    assert costs_no_more(more, less, at)


@few
@given(
    mechanism=st.sampled_from([ev.Gaussian, ev.Laplace]),
    sigmas=st.tuples(noise, noise),
    rates=st.tuples(chance, chance),
    count=st.integers(1, 300),
    at=deltas,
)
def test_more_noise_and_a_lower_rate_never_cost_more(
    mechanism: Any, sigmas: tuple[float, float], rates: tuple[float, float], count: int, at: float
) -> None:
    def run(sigma: float, q: float) -> Asked:
        return ev.Repeated(ev.PoissonSampled(mechanism(sigma), q), count), "add_remove"

    assert costs_no_more(run(max(sigmas), max(rates)), run(min(sigmas), max(rates)), at)
    assert costs_no_more(run(max(sigmas), min(rates)), run(max(sigmas), max(rates)), at)


@few
@given(sigma=noise, q=chance, count=st.integers(1, 300), at=deltas)
def test_replacing_a_record_costs_no_less_than_adding_one(sigma: float, q: float, count: int, at: float) -> None:
    run = ev.Repeated(ev.PoissonSampled(ev.Gaussian(sigma), q), count)
    assert costs_no_more((run, "add_remove"), (run, "replace_one"), at)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "Unprotected"])
@few
@given(data=st.data(), count=st.integers(1, 200), at=deltas)
def test_delta_and_epsilon_are_inverse_up_to_the_bracket(kind: str, data: st.DataObject, count: int, at: float) -> None:
    event, adjacency = data.draw(KINDS[kind])
    run = ev.Repeated(event, count)
    low, high = epsilon_bounds(run, at, adjacency=adjacency)
    assume(high < math.inf)  # as where the releases' own δ add up to more
    assert delta(run, high * (1 + 1e-4) + 1e-3, adjacency=adjacency) <= at
    assert delta(run, cost((run, adjacency), at), adjacency=adjacency) <= at * TIGHT
    if low > ROUNDING:
        assert delta(run, low * (1 - ROUNDING), adjacency=adjacency) >= at * (1 - 1e-6)


@few
@given(data=st.data(), at=number(1e-12, 0.3), adjacency=both)
def test_delta_of_a_mixed_run_is_as_tight_as_epsilon(data: st.DataObject, at: float, adjacency: str) -> None:
    fitting = st.sampled_from(sorted(set(KINDS) - {"Unprotected"})).flatmap(KINDS.__getitem__)
    asked = data.draw(st.lists(st.tuples(fitting, st.integers(1, 9)), min_size=2, max_size=5))
    composition = Composition(adjacency)
    for (event, stated), count in asked:
        if stated == adjacency:
            composition.add(event, count)
    found = composition.epsilon(at)
    assume(0 < found < math.inf)
    assert composition.delta(found) <= at * TIGHT


def test_without_noise_delta_is_one_and_epsilon_infinite() -> None:
    run = ev.Composed([ev.Gaussian(1.0), ev.Unprotected()])
    assert epsilon(run, 1e-5) == math.inf
    assert epsilon_bounds(run, 1e-5)[1] == math.inf
    assert delta(run, 10.0) == 1.0
