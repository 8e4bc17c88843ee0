"""Krum's scores and choices are those of the paper, also where popular copies differ."""

from __future__ import annotations

import numpy as np
import pytest

from dpfed.aggregation.krum import bulyan, choose_bulyan, krum, krum_scores, minimum_diameter, multi_krum
from dpfed.aggregation.rows import Rows
from dpfed.errors import InvalidArgument
from robust_cases import cases, make_honest

(KRUM,) = cases("krum")
(BULYAN,) = cases("bulyan")


def test_scores_sum_up_the_nearest_without_the_update_itself():
    """Copies with one neighbour more choose another update here."""
    distances = Rows.read(np.array(KRUM["input"]["updates"])).squared_distances
    scores = krum_scores(distances, 7 - 2 - 2)
    assert np.allclose(scores, KRUM["expected"]["scores"], atol=1e-6)
    assert scores.argmin() == KRUM["expected"]["index"] != krum_scores(distances, 7 - 2 - 1).argmin()


def test_bulyan_picks_one_by_one():
    rows = Rows.read(np.array(BULYAN["input"]["updates"]))
    assert choose_bulyan(rows, 2).tolist() == BULYAN["expected"]["selected_set"]


@pytest.mark.parametrize("faulty", [0, 1, 3])
def test_bulyan_averages_the_picked_values_around_their_median(faulty):
    values = make_honest(4 * faulty + 4, 6)
    picked = values[choose_bulyan(Rows.read(values), faulty)]
    near = np.abs(picked - np.median(picked, axis=0)).argsort(axis=0)[: len(values) - 4 * faulty]
    expected = np.take_along_axis(picked, near, axis=0).mean(axis=0)
    assert np.allclose(bulyan(values, max_faulty=faulty), expected)


def test_multi_krum_takes_by_default_what_its_proof_allows_and_never_a_faulty_one_for_certain():
    values = make_honest(9, 4)
    assert np.allclose(multi_krum(values, max_faulty=2), multi_krum(values, max_faulty=2, chosen=5))
    assert np.allclose(multi_krum(values, max_faulty=2, chosen=1), krum(values, max_faulty=2))
    with pytest.raises(InvalidArgument, match="chosen must be at most the 7 updates that are honest, got 8"):
        multi_krum(values, max_faulty=2, chosen=8)


def test_of_nearly_equal_float32_updates_the_best_is_found_in_float64(monkeypatch):
    monkeypatch.setattr("dpfed.aggregation.rows.LARGE_GRAM", 1)
    values = (1 + 1e-4 * make_honest(9, 2000)).astype(np.float32)
    exact = krum_scores(((values[:, None].astype(float) - values[None]) ** 2).sum(axis=2), 5)
    assert (krum(values, max_faulty=2) == values[exact.argmin()]).all()


def test_a_least_diameter_is_not_searched_among_millions_of_subsets():
    with pytest.raises(InvalidArgument, match="choose multi_krum"):
        minimum_diameter(make_honest(40, 2), max_faulty=10)
