"""Known answers of choices by score: softmax, permute-and-flip, and how sparse vectors split ε."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dpfed.mechanisms.exponential import ExponentialMechanism
from dpfed.mechanisms.selection import PermuteAndFlip
from dpfed.mechanisms.sparse_vector import SparseVector
from dpfed.randomness import SeededSource

CASES = json.loads((Path(__file__).parents[1] / "reference" / "shuffle.json").read_text(encoding="utf-8"))
FALSE_ALARM = 1e-6


def cases(group: str) -> list[Any]:
    return [pytest.param(case["inputs"], case, id=case["id"]) for case in CASES if case["group"] == group]


@pytest.mark.parametrize(("given", "case"), cases("exponential_mechanism"))
def test_the_exponential_mechanism_is_a_softmax(given: Any, case: Any) -> None:
    mechanism = ExponentialMechanism(given["eps"], given["sens"], monotone=given.get("monotone", False))
    assert mechanism.probabilities(given["u"]) == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize(("given", "case"), cases("permute_and_flip"))
def test_permute_and_flip_chooses_as_often_as_is_known(given: Any, case: Any) -> None:
    """χ² of 6,000 choices, false alarm 1e-6."""
    mechanism = PermuteAndFlip(given["eps"], given["sens"], source=SeededSource(3))
    seen = Counter(mechanism.select(given["u"]) for _ in range(6_000))
    counts = [seen[place] for place in range(len(given["u"]))]
    assert stats.chisquare(counts, [6_000 * each for each in case["expected"]]).pvalue > FALSE_ALARM


@pytest.mark.parametrize(("given", "case"), cases("svt"))
def test_sparse_vectors_split_epsilon_in_the_known_ratio(given: Any, case: Any) -> None:
    mechanism = SparseVector(given["eps"], 1.0, 0.0, given["c"], monotone=given["monotone"])
    expected = case["expected"]
    assert 1 / mechanism.threshold_scale == pytest.approx(expected["eps1"], rel=1e-9)
    assert 2 * given["c"] / mechanism.query_scale == pytest.approx(expected["eps2"], rel=1e-9)
    assert expected["eps2"] / expected["eps1"] == pytest.approx(expected["ratio"], rel=1e-9)
