"""Ours against dp-accounting, Opacus and a 34-digit oracle on 300 random runs (reference/make_peers.py).

Never below the truth, where it is known, nor below any peer's certified lower bound where it is not; at most
1e-3 above the tightest peer's upper bound. That 1e-3 is absolute at every ε, so it is strictest, 1e-5
relative, at ε = 100. A peer that claims less than the truth does not lower the bar beneath the truth.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
import make_peers
import opacus.accountants
import pytest
import truth
from dp_accounting.pld import PLDAccountant

from dpfed import events as ev
from dpfed.accounting import epsilon, epsilon_bounds

STORED = json.loads((Path(__file__).parents[1] / "reference" / "peers.json").read_text())
CASES: list[dict[str, Any]] = STORED["cases"]
TINY: list[dict[str, Any]] = STORED["tiny_delta"]
ABOVE_TIGHTEST = 1e-3
# A peer adds up with the Fourier transform and the matrix products of the machine, and rounds with them.
ANOTHER_MACHINE = 1e-5
ORACLE_ERROR = 2e-10  # the oracle's two evaluations agree to 1e-10


def kind(case: dict[str, Any]) -> str:
    return case["id"].rpartition("-")[0]


def live_cases() -> list[dict[str, Any]]:
    """15 cheap cases over all kinds: the fastest of each, then the second fastest."""
    ranked = sorted(CASES, key=lambda case: (case["seconds"], case["id"]))
    kinds = list(dict.fromkeys(map(kind, CASES)))
    by_kind = [[case for case in ranked if kind(case) == name] for name in kinds]
    return [rows[place] for place in (0, 1) for rows in by_kind][:15]


def lower_bound(case: dict[str, Any]) -> float:
    """The truth, or the best lower bound that a peer certifies."""
    if case["truth"] is not None:
        return case["truth"] - ORACLE_ERROR * max(1.0, case["truth"])
    peers = case["peers"]
    return max(0.0, *(peers.get(f"{name}_lower") or 0.0 for name in ("dp_accounting_pld", "opacus_prv")))


@pytest.fixture(params=CASES, ids=lambda case: case["id"])
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


def test_there_are_300_configurations_and_their_epsilon_reaches_from_a_hundredth_to_a_hundred() -> None:
    uppers = [make_peers.tightest(case["peers"]) for case in CASES]
    assert len(CASES) == 300
    assert min(uppers) < 0.02
    assert max(uppers) > 80
    assert sum(case["truth"] is not None for case in CASES) >= 200


def test_ours_is_not_below_the_truth_nor_1e_3_above_the_tightest_peer(case: dict[str, Any]) -> None:
    event = ev.from_dict(case["event"])
    low, high = epsilon_bounds(event, case["delta"], adjacency=case["adjacency"])
    ours = epsilon(event, case["delta"], adjacency=case["adjacency"])
    assert lower_bound(case) <= ours <= max(make_peers.tightest(case["peers"]), case["truth"] or 0) + ABOVE_TIGHTEST
    assert lower_bound(case) <= high
    if case["truth"] is not None:
        assert low <= case["truth"] + ORACLE_ERROR * max(1.0, case["truth"])


def test_the_stored_bounds_of_the_peers_enclose_the_truth(case: dict[str, Any]) -> None:
    if case["truth"] is None:
        return
    error = ORACLE_ERROR * max(1.0, case["truth"])
    lowers = [case["peers"].get(f"{name}_lower") for name in ("dp_accounting_pld", "opacus_prv")]
    assert max((value for value in lowers if value is not None), default=0.0) <= case["truth"] + error
    assert make_peers.tightest(case["peers"]) >= case["truth"] - error


@pytest.mark.parametrize("case", live_cases(), ids=lambda case: case["id"])
def test_the_stored_figure_is_what_the_peer_says_today(case: dict[str, Any]) -> None:
    event = ev.from_dict(case["event"])
    peers = case["peers"]
    said = make_peers.google_pld(event, case["delta"], case["adjacency"], peers["interval"])
    assert said == pytest.approx(peers["dp_accounting_pld"], rel=ANOTHER_MACHINE, abs=1e-12)
    if peers.get("opacus_rdp") is not None:
        assert make_peers.opacus_rdp(make_peers.opacus_history(event), case["delta"]) == pytest.approx(
            peers["opacus_rdp"]
        )


@pytest.mark.parametrize("row", TINY, ids=lambda row: f"{ev.from_dict(row['event'])!r}-{row['delta']:g}")
def test_tiny_delta_and_long_runs_agree_with_34_digits(row: dict[str, Any]) -> None:
    event = ev.from_dict(row["event"])
    low, high = epsilon_bounds(event, row["delta"])
    error = ORACLE_ERROR * max(1.0, row["truth"])
    ours = epsilon(event, row["delta"])
    assert row["truth"] - error <= ours <= row["truth"] + ABOVE_TIGHTEST
    assert low - error <= row["truth"] <= high + error


def test_the_tiny_delta_list_reaches_1e_15_and_ten_million_steps() -> None:
    assert len(TINY) >= 11
    assert min(row["delta"] for row in TINY) <= 1e-15
    assert max(ev.from_dict(row["event"]).count for row in TINY) == 10_000_000


def test_the_oracle_says_today_what_was_stored() -> None:
    row = TINY[0]
    assert truth.epsilon(ev.from_dict(row["event"]), row["delta"]) == pytest.approx(row["truth"], abs=1e-10)
    assert row["truth"] == pytest.approx(10.346689837702865, abs=1e-9)


# --- faults of the peers that ours must not share ---


def test_fifty_randomized_responses_cost_fifty_times_and_not_once() -> None:
    response = ev.RandomizedResponse(epsilon=math.log(3))
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    peer = PLDAccountant(relation).compose(dp_accounting.RandomizedResponseDpEvent(0.5, 2), 50)
    assert peer.get_epsilon(1e-5) == pytest.approx(1.0987, abs=1e-4)
    ours = epsilon(ev.Repeated(response, 50), 1e-5, adjacency="replace_one")
    assert ours == pytest.approx(truth.epsilon(ev.Repeated(response, 50), 1e-5, "replace_one"), abs=1e-6)
    assert ours == pytest.approx(50.5226, abs=1e-4)


def test_at_delta_1e_12_ours_stays_above_the_truth_where_dp_accounting_falls_below() -> None:
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    peer = PLDAccountant().compose(sampled, 10_000).get_epsilon(1e-12)
    ours = epsilon(ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000), 1e-12)
    assert peer < 10.33
    assert 10.346689837 <= ours <= 10.3477


def test_ours_does_not_use_the_central_limit_value_that_opacus_offers_as_gdp() -> None:
    accountant = opacus.accountants.GaussianAccountant()
    accountant.history = [(1.0, 0.01, 10_000)]
    ours = epsilon(ev.Repeated(ev.PoissonSampled(ev.Gaussian(1.0), 0.01), 10_000), 1e-5)
    assert accountant.get_epsilon(1e-5) < 6.01
    assert ours == pytest.approx(6.1877124, abs=1e-5)
    assert ours >= 6.187712389
