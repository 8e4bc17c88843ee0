from __future__ import annotations

import pytest

from dpfed.errors import InvalidArgument
from dpfed.ldp import HadamardResponse, OptimizedUnary
from support.local_reports import known


@pytest.mark.parametrize("case", known("ldp_hadamard_1bit"), ids=lambda case: case["id"])
def test_the_variance_is_the_known_one(case):
    given = case["inputs"]
    oracle = HadamardResponse(given["eps"], 100)
    assert oracle.variance(given["n"], given["f"], sampled=True) == pytest.approx(case["expected"], rel=case["tol"])


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_its_variance_is_that_of_unary_encoding_and_one_over_n(epsilon):
    gap = HadamardResponse(epsilon, 9).variance(100) - OptimizedUnary(epsilon, 9).variance(100)
    assert gap == pytest.approx(1 / 100)


@pytest.mark.parametrize(("domain", "rows"), [(2, 4), (3, 4), (4, 8), (7, 8), (8, 16)])
def test_the_matrix_has_a_column_for_every_value_beside_the_first(domain, rows):
    assert HadamardResponse(1.0, domain).rows == rows


@pytest.mark.parametrize(("name", "value"), [("row", 16), ("sign", 0)])
def test_damaged_reports_are_refused(name, value):
    oracle = HadamardResponse(1.0, 9)
    reports = oracle.randomize([1, 2])
    reports[name][0] = value
    with pytest.raises(InvalidArgument, match="never sends"):
        oracle.estimate(reports)
