"""Shuffled reports as events: ε₀ of a report, composition over rounds, draws, what is refused, and the closed form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfed import events as ev
from dpfed.accounting import Composition, delta, epsilon, epsilon_bounds, rdp
from dpfed.accounting.atoms import atoms
from dpfed.accounting.shuffling import closed_form_epsilon, local_epsilon
from dpfed.errors import AdjacencyMismatch, InvalidArgument, UnsupportedEvent

CASES = json.loads((Path(__file__).parents[1] / "reference" / "shuffle.json").read_text(encoding="utf-8"))
REPORT = ev.PureDP(1.0, adjacency="replace_one")
ROUND = ev.Shuffled(REPORT, users=1000)


def cases(group: str) -> list[Any]:
    return [pytest.param(case["inputs"], case, id=case["id"]) for case in CASES if case["group"] == group]


def cost(event: ev.Event, at: float = 1e-6) -> float:
    return epsilon(event, at, adjacency="replace_one")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (ev.Laplace(4.0), 0.5),
        (ev.DiscreteLaplace(8.0, sensitivity=2), 0.5),
        (ev.RandomizedResponse(0.7, 10), 0.7),
        (ev.Exponential(0.3, adjacency="replace_one"), 0.3),
        (ev.Composed([ev.Laplace(4.0), ev.Repeated(REPORT, 3)]), 3.5),
    ],
    ids=repr,
)
def test_a_report_costs_what_replacing_its_value_costs(event: ev.Event, expected: float) -> None:
    assert local_epsilon(event) == pytest.approx(expected, rel=1e-13)
    assert local_epsilon(event) >= expected


def test_laplace_noise_of_b_clip_norms_counts_as_two_over_b() -> None:
    assert cost(ev.Shuffled(ev.Laplace(2.0), 1000)) == pytest.approx(cost(ROUND), rel=1e-9)


def test_a_report_without_a_pure_epsilon_is_refused() -> None:
    with pytest.raises(UnsupportedEvent, match="not ε₀-DP"):
        local_epsilon(ev.Gaussian(1.0))


def test_randomized_response_has_a_bound_of_its_own_which_is_better() -> None:
    found = [cost(ev.Shuffled(ev.RandomizedResponse(1.0, buckets), 1000)) for buckets in (2, 5, 20)]
    assert found == sorted(found, reverse=True)
    assert found[0] < cost(ROUND)


@pytest.mark.parametrize(("given", "case"), cases("shuffle_composed"))
def test_rounds_compose_to_the_known_epsilon(given: Any, case: Any) -> None:
    event = ev.Shuffled(ev.PureDP(given["eps0"], adjacency="replace_one"), given["n"])
    found = cost(ev.Repeated(event, given["T"]), given["delta"])
    # The known figure is itself an upper bound, each loss rounded up by at most 1e-4.
    assert found <= case["expected"] * (1 + 1e-9)
    assert found >= case["expected"] - 1e-4 * given["T"]


@pytest.mark.parametrize("step", [ROUND, ev.Shuffled(ev.RandomizedResponse(2.0, 6), 200)], ids=repr)
def test_single_rounds_cost_as_much_as_all_of_them_at_once(step: ev.Event) -> None:
    one_by_one, at_once = Composition("replace_one"), Composition("replace_one")
    for _ in range(12):
        one_by_one.add(step)
    at_once.add(step, 12)
    assert one_by_one.epsilon(1e-6) == at_once.epsilon(1e-6) == cost(ev.Repeated(step, 12))
    assert delta(ev.Repeated(step, 12), cost(ev.Repeated(step, 12)), adjacency="replace_one") <= 1e-6 * (1 + 1e-6)


def test_shuffled_rounds_compose_with_other_releases() -> None:
    both = cost(ev.Composed([ev.Repeated(ROUND, 5), ev.Gaussian(4.0)]))
    assert max(cost(ev.Repeated(ROUND, 5)), cost(ev.Gaussian(4.0))) < both
    assert both < cost(ev.Repeated(ROUND, 5), 5e-7) + cost(ev.Gaussian(4.0), 5e-7)


def test_at_no_delta_the_epsilon_of_the_reports_is_left() -> None:
    assert cost(ev.Repeated(ROUND, 3), 0.0) == pytest.approx(3.0)


def test_only_an_upper_bound_is_claimed() -> None:
    assert epsilon_bounds(ROUND, 1e-6, adjacency="replace_one") == (0.0, cost(ROUND))


def test_renyi_divergence_bounds_the_exact_one_and_stays_below_that_of_a_report() -> None:
    orders = np.array([1.5, 2, 8, 32, 200])
    found = rdp(ROUND, orders, adjacency="replace_one")
    assert (found <= rdp(REPORT, orders, adjacency="replace_one")).all()
    converted = found + np.log1p(-1 / orders) - (math.log(1e-6) + np.log(orders)) / (orders - 1)
    assert cost(ROUND) <= converted.min()
    assert found[0] < 0.02


def test_shuffling_is_refused_under_add_remove() -> None:
    with pytest.raises(AdjacencyMismatch, match="hides which value"):
        epsilon(ROUND, 1e-6)


@pytest.mark.parametrize("rate", [0.1, 1.0])
@pytest.mark.parametrize("inner", [ROUND, ev.Composed([ev.Laplace(3.0), ROUND])], ids=repr)
def test_poisson_samples_of_shuffled_reports_are_refused(inner: ev.Event, rate: float) -> None:
    with pytest.raises(UnsupportedEvent, match="no gain from sampling is proved"):
        atoms(ev.PoissonSampled(inner, rate))


@pytest.mark.parametrize(
    ("inner", "size"), [(ROUND, 999), (ROUND, 1001), (ev.Repeated(ROUND, 2), 1000)], ids=["few", "many", "twice"]
)
def test_a_draw_must_be_of_as_many_as_are_shuffled(inner: ev.Event, size: int) -> None:
    with pytest.raises(UnsupportedEvent, match="users must be the size drawn"):
        cost(ev.SampledWithoutReplacement(inner, size, 5000))


def test_a_draw_without_replacement_amplifies_every_round() -> None:
    drawn = ev.SampledWithoutReplacement(ROUND, 1000, 10_000)
    assert delta(drawn, math.log1p(0.1 * math.expm1(cost(ROUND, 1e-5))), adjacency="replace_one") == pytest.approx(1e-6)
    assert cost(ev.Repeated(drawn, 100)) < 0.1 * cost(ev.Repeated(ROUND, 100))
    assert cost(ev.SampledWithoutReplacement(ROUND, 1000, 1000)) == pytest.approx(cost(ROUND), rel=1e-6)


@pytest.mark.parametrize(("given", "case"), cases("shuffle_closed_form_fmt21_thm3.1"))
def test_the_closed_form_is_that_of_the_theorem(given: Any, case: Any) -> None:
    found = closed_form_epsilon(given["eps0"], given["n"], given["delta"])
    assert found == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("shuffle_closed_form_apple"))
def test_the_authors_own_code_is_a_little_looser_and_has_the_same_range(given: Any, case: Any) -> None:
    found = closed_form_epsilon(given["eps0"], given["n"], given["delta"])
    assert case["expected"] / 1.15 <= found <= case["expected"]
    exact = cost(ev.Shuffled(ev.PureDP(given["eps0"], adjacency="replace_one"), given["n"]), given["delta"])
    assert exact < found


def test_out_of_its_range_the_closed_form_is_the_epsilon_of_a_report() -> None:
    edge = math.log(10_000 / (16 * math.log(4e6)))
    assert closed_form_epsilon(edge + 1e-9, 10_000, 1e-6) == edge + 1e-9
    assert closed_form_epsilon(edge - 1e-9, 10_000, 1e-6) < edge
    assert closed_form_epsilon(1.0, 2, 1e-6) == 1.0


@pytest.mark.parametrize(
    ("given", "name"), [((-1.0, 10, 1e-6), "epsilon"), ((1.0, 0, 1e-6), "users"), ((1, 9, 0), "delta")]
)
def test_the_closed_form_refuses_nonsense_by_name(given: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        closed_form_epsilon(*given)
