"""What an audit says, and when it is a warning or a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpfed.audit.bounds import Bound
from dpfed.audit.canaries import CanaryScores
from dpfed.audit.verdict import GENERATED, Verdict, judge
from dpfed.errors import InvalidArgument
from dpfed.guarantee import Guarantee

PROMISE = Guarantee(2.0, 1e-5)


def bound(epsilon, significance=0.05):
    return Bound(epsilon, 1e-5, "one_run", significance, 1000, 4.9, 250, 230, 8)


def verdict(low, gate):
    return Verdict(PROMISE, bound(low), bound(gate, 1e-3), 3.0, "gradient", GENERATED)


def perfect(count):
    is_in = np.arange(count) % 2 == 0
    return CanaryScores(is_in * 1.0 + np.arange(count) * 1e-6, is_in, is_in + np.arange(count) * 1e-3)


@pytest.mark.parametrize(
    ("low", "gate", "is_doubtful", "is_refuted"),
    [(1.0, 0.5, False, False), (2.5, 1.5, True, False), (2.0, 2.0, False, False), (3.0, 2.1, True, True)],
)
def test_above_the_accounted_epsilon_is_a_warning_at_five_percent_and_a_fault_at_a_thousandth(
    low, gate, is_doubtful, is_refuted
):
    found = verdict(low, gate)
    assert (found.is_doubtful, found.is_refuted) == (is_doubtful, is_refuted)
    assert ("REFUTED" in found.remark, "DOUBTFUL" in found.remark) == (is_refuted, is_doubtful and not is_refuted)


def test_the_line_has_both_sides_and_says_on_what_and_how():
    assert verdict(1.239, 1.0).line == (
        "accounted ε ≤ 2 | audited ε ≥ 1.23 (on: a generated stand-in, which audits plan and code; one run, 95 %, "
        "1,000 gradient canaries, ceiling 4.9)"
    )


def test_a_perfect_attack_refutes_a_small_epsilon_and_not_a_large_one():
    options = {"unit": "record", "adjacency": "add_remove", "is_gaussian": False, "canaries": "gradient", "data": "x"}
    assert judge(perfect(400), Guarantee(0.5, 1e-5), **options).is_refuted
    assert not judge(perfect(400), Guarantee(9.0, 1e-5), **options).is_doubtful


def test_the_method_follows_from_the_plan_and_not_from_the_scores():
    options = {"unit": "record", "adjacency": "add_remove", "canaries": "gradient", "data": "x"}
    assert judge(perfect(40), PROMISE, is_gaussian=True, **options).bound.method == "one_run_fdp"
    assert judge(perfect(40), PROMISE, is_gaussian=False, **options).bound.method == "one_run"
    assert judge(perfect(40), replace(PROMISE, delta=0.0), is_gaussian=True, **options).bound.method == "one_run"


@pytest.mark.parametrize("other", [{"unit": "client"}, {"adjacency": "replace_one"}])
def test_statements_of_another_unit_or_adjacency_are_not_compared(other):
    options = {"unit": "record", "adjacency": "add_remove"} | other
    with pytest.raises(InvalidArgument, match="audit the unit that is promised"):
        judge(perfect(40), PROMISE, is_gaussian=False, canaries="gradient", data="x", **options)


def test_plain_values_hold_all_of_it():
    plain = verdict(1.0, 0.5).to_plain()
    assert plain["bound"]["epsilon"] == 1.0
    assert plain["accounted"] == {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "adjacency": "add_remove"}
    assert not plain["is_refuted"]
