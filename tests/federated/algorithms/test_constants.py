from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field

import pytest

from dpfed.errors import InvalidArgument
from dpfed.federated.algorithms.constants import length_of_steps, share_of_clients, with_constants
from dpfed.plan.plan import FixedCohort, LocalPlan, Plan


def plan(*steps: int, **options) -> Plan:
    local = {f"c{number}": LocalPlan(size=20, batch_size=5, steps=each) for number, each in enumerate(steps)}
    return Plan("study", 3, local, style="none", **{"weighting": "equal", **options})


def test_constants_are_put_into_a_copy_that_stays_frozen():
    @dataclass(frozen=True)
    class Rule:
        given: float
        share: float = field(default=-1.0, init=False)

    rule = Rule(2.0)
    bound = with_constants(rule, share=0.5)
    assert (bound.given, bound.share, rule.share) == (2.0, 0.5, -1.0)
    with pytest.raises(FrozenInstanceError):
        bound.share = 0.7


def test_the_share_of_clients_is_a_constant_of_the_plan_and_needs_equal_weights():
    assert share_of_clients(plan(2, 2, 2, 2, cohort=FixedCohort(3)), "mine") == 0.75
    with pytest.raises(InvalidArgument, match="mine needs equal weights"):
        share_of_clients(plan(2, 2, weighting="declared"), "mine")


def test_the_length_of_all_steps_must_be_that_of_every_client():
    assert length_of_steps(plan(4, 4), "mine") == 4 * LocalPlan(size=20, batch_size=5, steps=4).learning_rate
    with pytest.raises(InvalidArgument, match="mine needs the same steps"):
        length_of_steps(plan(4, 5), "mine")
