from __future__ import annotations

import math

import pytest

from dpfed.errors import InvalidArgument
from dpfed.plan.algorithm import Algorithm, server_rate


def test_parameters_are_a_copy_that_nobody_else_holds():
    given = {"alpha": 0.1, "betas": [0.9, 0.99]}
    algorithm = Algorithm("feddyn", given)
    given["betas"].append(1.0)
    assert algorithm.to_plain() == {"name": "feddyn", "parameters": {"alpha": 0.1, "betas": [0.9, 0.99]}}
    assert Algorithm(**algorithm.to_plain()) == algorithm


@pytest.mark.parametrize("wrong", [{"alpha": math.nan}, {"alpha": object()}, {"alpha": {1, 2}}])
def test_parameters_that_no_file_could_hold_are_refused(wrong):
    with pytest.raises(InvalidArgument, match="parameters of feddyn must be plain values"):
        Algorithm("feddyn", wrong)


def test_a_name_is_needed():
    with pytest.raises(InvalidArgument, match="must have a name"):
        Algorithm(" ")


def test_a_rate_of_one_is_left_to_the_algorithm():
    assert (server_rate(1.0), server_rate(0.5)) == ({}, {"server_learning_rate": 0.5})
