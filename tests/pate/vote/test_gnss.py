"""Publishing a data-dependent bound: at its own cost, charged before its noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpfed.errors import AdjacencyMismatch, BudgetExceeded, InvalidArgument
from dpfed.ledger.ledger import Ledger
from dpfed.pate.vote.gnss import SmoothRelease, gnss_rdp, sum_sensitivities
from dpfed.pate.vote.renyi_bounds import gnmax_rdp
from dpfed.pate.vote.smooth import discount, proved_sensitivities
from dpfed.randomness import SeededSource

COUNTS = [[45, 3, 2], [30, 15, 5]]
SIGMA, ORDER = 8.0, 5.0
FALSE_ALARM = 1e-6


def test_the_cost_is_the_published_one():
    cases = json.loads((Path(__file__).parents[2] / "reference" / "pate.json").read_text(encoding="utf-8"))
    (case,) = [case for case in cases if case["group"] == "pate_gnss_rdp"]
    found = gnss_rdp(case["inputs"]["beta"], case["inputs"]["sigma"], case["inputs"]["order"])
    assert found == pytest.approx(case["expected"], rel=case["tol"])


def test_the_event_has_the_cost_at_every_order_and_never_less():
    release = SmoothRelease(beta=0.05, sigma=6.0)
    orders, costs = np.array(release.event.orders), np.array(release.event.epsilons)
    assert (costs >= gnss_rdp(0.05, 6.0, orders)).all()
    assert costs == pytest.approx(gnss_rdp(0.05, 6.0, orders), rel=1e-9)
    assert orders[0] > 1
    assert orders[-1] < 10
    assert release.event.adjacency == "add_remove"


@pytest.mark.parametrize("order", [1.0, 10.0, 11.0])
def test_orders_beyond_the_theorem_are_refused(order):
    with pytest.raises(InvalidArgument, match="orders"):
        gnss_rdp(0.05, 6.0, order)


def test_a_beta_that_leaves_no_order_is_refused():
    with pytest.raises(InvalidArgument, match="beta"):
        SmoothRelease(beta=0.3, sigma=1.0)


def test_sensitivities_of_queries_add_up_because_a_teacher_votes_in_each():
    single = [proved_sensitivities(row, SIGMA, ORDER) for row in COUNTS]
    assert sum_sensitivities(COUNTS, SIGMA, ORDER) == pytest.approx(single[0] + single[1])


def test_a_bound_that_jumps_is_not_published():
    with pytest.raises(InvalidArgument, match="jumps"):
        SmoothRelease(beta=0.1, sigma=3.0).publish([[10, 6, 0]], 1.0, 1.5)


def test_queries_of_different_numbers_of_teachers_are_refused():
    with pytest.raises(InvalidArgument, match="same number of teachers"):
        sum_sensitivities([[9, 1], [9, 2]], SIGMA, ORDER)


def test_noise_is_sigma_times_the_smooth_sensitivity():
    """100 draws of the noise; false alarm 1e-6."""
    release = SmoothRelease(beta=0.1, sigma=3.0, source=SeededSource(5))
    value = sum(gnmax_rdp(row, SIGMA, ORDER) for row in COUNTS)
    std = 3.0 * discount(sum_sensitivities(COUNTS, SIGMA, ORDER), 0.1)
    noise = np.array([release.publish(COUNTS, SIGMA, ORDER) - value for _ in range(100)]) / std
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], len(noise))
    assert low < np.sum(noise**2) < high


def test_a_release_lies_on_a_grid_that_depends_on_no_vote():
    found = SmoothRelease(beta=0.1, sigma=3.0).publish(COUNTS, SIGMA, ORDER)
    assert (found / (ORDER / SIGMA**2) * 2**20) % 1 == pytest.approx(0, abs=1e-6)


def test_a_release_is_charged_to_the_account(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        account, release = ledger.open("ward", epsilon=3.0, delta=1e-5), SmoothRelease(beta=0.02, sigma=10.0)
        release.publish(COUNTS, SIGMA, ORDER, account=account, run="report")
        assert [each.committed for each in ledger.reservations(open_only=False)] == [1]
        assert ledger.balance("ward").spent > 0
        with pytest.raises(BudgetExceeded):
            release.publish(COUNTS, SIGMA, ORDER, account=account, run="report")


def test_an_account_without_room_gets_no_release(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        account = ledger.open("ward", epsilon=0.1, delta=1e-5)
        with pytest.raises(BudgetExceeded):
            SmoothRelease(beta=0.02, sigma=10.0).publish(COUNTS, SIGMA, ORDER, account=account, run="report")


def test_replace_one_is_refused_because_it_moves_two_teachers(tmp_path):
    with Ledger(tmp_path / "ledger.db") as ledger:
        account = ledger.open("ward", epsilon=3.0, delta=1e-5, adjacency="replace_one")
        with pytest.raises(AdjacencyMismatch):
            SmoothRelease(beta=0.02, sigma=10.0).publish(COUNTS, SIGMA, ORDER, account=account, run="report")
