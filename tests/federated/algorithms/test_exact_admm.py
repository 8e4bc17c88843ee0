"""Exact ADMM needs steps that solve the local problem."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admm_plans import RHO, a_plan
from convex import RECORDS
from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms import registry
from dpfed.federated.algorithms.exact_admm import ExactAdmm


def test_exact_admm_is_refused_where_its_steps_do_not_solve_the_local_problem():
    """(1 − 0.4·1)^K ≤ 1e-6 from K = 28 on; the smallest penalty decides."""
    registry.bind(ExactAdmm(rho=RHO), with_steps(28))
    for plan, rho in ((with_steps(27), RHO), (with_steps(28), (RHO, 0.9))):
        with pytest.raises(InvalidArgument, match="take "):
            registry.bind(ExactAdmm(rho=rho), plan)
    plan = with_steps(100)
    plan = replace(plan, local={name: replace(part, batch_size=RECORDS - 1) for name, part in plan.local.items()})
    with pytest.raises(InvalidArgument, match="all records"):
        registry.bind(ExactAdmm(rho=RHO), plan)


def with_steps(steps):
    plan = a_plan("admm")
    return replace(plan, local={name: replace(part, steps=steps) for name, part in plan.local.items()})
