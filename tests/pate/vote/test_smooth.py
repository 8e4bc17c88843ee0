"""The smooth sensitivity of GNMax's data-dependent bound: published values, and a bound on what votes really do."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dpfed.errors import InvalidArgument
from dpfed.pate.vote import smooth
from dpfed.pate.vote.renyi_bounds import gnmax_rdp
from dpfed.pate.vote.smooth import GNMaxBound, discount, local_sensitivities, smooth_sensitivity

CASES = {
    case["group"]: case
    for case in json.loads((Path(__file__).parents[2] / "reference" / "pate.json").read_text(encoding="utf-8"))
}


def test_smooth_sensitivity_is_the_published_one():
    case = CASES["pate_smooth_sens"]
    counts, sigma, order, beta = (case["inputs"][name] for name in ("counts", "sigma", "order", "beta"))
    local = local_sensitivities(counts, sigma, order)
    assert len(local) == case["inputs"]["K"]
    assert local[0] == pytest.approx(case["expected"]["ls0"], rel=case["tol"])
    assert local.max() == pytest.approx(case["expected"]["lsmax"], rel=case["tol"])
    assert smooth_sensitivity(counts, sigma, order, beta) == pytest.approx(case["expected"]["ss"], rel=case["tol"])


def test_local_sensitivities_are_the_published_ones():
    case = CASES["pate_smooth_sens_vector"]
    counts, sigma, order = (case["inputs"][name] for name in ("counts", "sigma", "order"))
    assert local_sensitivities(counts, sigma, order) == pytest.approx(case["expected"], rel=case["tol"])


def test_the_plateau_begins_where_it_is_published():
    case = CASES["pate_logq0"]
    bound = GNMaxBound(case["inputs"]["sigma"], case["inputs"]["order"], 10)
    assert bound.high == pytest.approx(case["expected"], rel=case["tol"])
    assert bound.low < bound.high


def moves(counts):
    """Yield the counts after one teacher votes otherwise."""
    for loser, winner in product(range(len(counts)), repeat=2):
        if loser != winner and counts[loser]:
            moved = list(counts)
            moved[loser] -= 1
            moved[winner] += 1
            yield moved


@pytest.mark.parametrize("counts", [[40, 0, 0], [30, 6, 4], [22, 10, 8], [21, 19, 0], [14, 13, 13]])
def test_no_vote_moves_the_bound_further_than_the_local_sensitivity(counts):
    sigma, order = 6.0, 4.0
    value, local = gnmax_rdp(counts, sigma, order), local_sensitivities(counts, sigma, order)
    assert max(abs(gnmax_rdp(moved, sigma, order) - value) for moved in moves(counts)) <= local[0] * (1 + 1e-9)


@pytest.mark.parametrize("counts", [[40, 0, 0], [30, 6, 4], [22, 10, 8], [21, 19, 0]])
def test_smooth_sensitivity_grows_by_at_most_beta_from_neighbour_to_neighbour(counts):
    sigma, order, beta = 6.0, 4.0, 0.1
    here = smooth_sensitivity(counts, sigma, order, beta)
    for moved in moves(counts):
        assert smooth_sensitivity(moved, sigma, order, beta) <= np.exp(beta) * here * (1 + 1e-9)


def every_count(teachers, classes):
    """Return all ways in which so many teachers can vote, the most votes first."""
    ways = product(range(teachers + 1), repeat=classes)
    return [list(way) for way in ways if sum(way) == teachers and list(way) == sorted(way, reverse=True)]


@pytest.mark.parametrize("order", [1.01, 2.0, 3.0, 5.0])
@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.5, 3.0])
@pytest.mark.parametrize(("teachers", "classes"), [(2, 2), (7, 2), (9, 3)])
def test_for_all_counts_it_is_smooth_and_no_vote_moves_more_or_it_is_refused(teachers, classes, sigma, order):
    rows, beta = every_count(teachers, classes), 0.02
    try:
        found = {tuple(row): smooth_sensitivity(row, sigma, order, beta) for row in rows}
    except InvalidArgument:
        found, rows = {}, []
    for row, moved in [(each, sorted(moved, reverse=True)) for each in rows for moved in moves(each)]:
        change = abs(gnmax_rdp(moved, sigma, order) - gnmax_rdp(row, sigma, order))
        assert change <= found[tuple(row)] * (1 + 1e-9)
        assert found[tuple(moved)] <= np.exp(beta) * found[tuple(row)] * (1 + 1e-9)


def test_a_bound_that_jumps_to_the_worst_case_is_refused():
    with pytest.raises(InvalidArgument, match="jumps"):
        smooth_sensitivity([10, 6, 0], sigma=1.0, order=1.5, beta=0.02)


def test_at_the_last_distance_every_count_has_the_plateau():
    last = {smooth.proved_sensitivities([first, 7 - first], 6.0, 4.0)[-1] for first in range(8)}
    assert last == {smooth.proved_sensitivities([4, 3], 6.0, 4.0).max()}


def test_both_conditions_are_checked_and_hold_for_the_published_case():
    assert GNMaxBound(40.0, 10.0, 10).check_conditions(250) == {"C5": True, "C6": True}


def test_a_bound_whose_conditions_fail_is_refused():
    bound = GNMaxBound(1.0, 20.0, 10)
    failing = [name for name, holds in bound.check_conditions(250).items() if not holds]
    assert failing
    with pytest.raises(InvalidArgument, match=f"condition {failing[0]}"):
        smooth_sensitivity([200, 50, *[0] * 8], 1.0, 20.0, 0.01)


def test_what_falls_does_not_pass_as_rising():
    assert smooth._rises(np.array([0.0, 1.0, 1.0, 2.0]))
    assert not smooth._rises(np.array([0.0, 1.0, 0.9]))


def test_distances_are_discounted():
    assert discount(np.array([1.0, 3.0]), beta=0.5) == pytest.approx(3 * np.exp(-0.5))


def test_an_order_of_one_is_refused():
    with pytest.raises(InvalidArgument, match="order"):
        local_sensitivities([9, 1], 5.0, 1.0)
