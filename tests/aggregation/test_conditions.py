"""A rule with fewer updates than its proof needs is refused, at the very number, and says what would do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dpfed.aggregation import robust
from dpfed.aggregation.conditions import NEEDS, least_updates, most_faulty, require_enough
from dpfed.aggregation.mixing import effective_count
from dpfed.errors import BreakdownError
from dpfed.randomness import SeededSource
from robust_cases import RULES, cases, make_honest


def run_case(given):
    bucketed = re.fullmatch(r"bucketing\(s=(\d)\)\+(\w+)", given["rule"])
    updates = make_honest(given["n"], 3)
    if bucketed:
        updates = robust.bucketing(updates, bucket_size=int(bucketed[1]), source=SeededSource(1))
    return len(updates), RULES[bucketed[2] if bucketed else given["rule"]](updates, max_faulty=given["f"])


@pytest.mark.parametrize("case", cases("breakdown"), ids=lambda case: case["id"])
def test_the_published_cases_are_accepted_or_refused(case):
    if "error" in case["expected"]:
        with pytest.raises(BreakdownError):
            run_case(case["input"])
    else:
        count, result = run_case(case["input"])
        assert np.isfinite(result).all()
        assert count == case["expected"].get("effective_n", count)


@pytest.mark.parametrize("rule", [name for name in RULES if name != "nnm+trimmed_mean"])
@pytest.mark.parametrize("faulty", [0, 1, 2, 3])
def test_a_rule_works_with_its_least_number_and_not_with_one_fewer(rule, faulty):
    least = least_updates(rule, faulty)
    assert np.isfinite(RULES[rule](make_honest(least, 3), max_faulty=faulty)).all()
    assert most_faulty(rule, least) == faulty
    if least > 1:
        with pytest.raises(BreakdownError) as refusal:
            RULES[rule](make_honest(least - 1, 3), max_faulty=faulty)
        assert (refusal.value.arrived, refusal.value.needed) == (least - 1, least)


def test_a_refusal_says_what_would_do():
    with pytest.raises(BreakdownError, match="lower max_faulty to 1, or choose a rule that needs fewer"):
        require_enough("bulyan", 8, 2)
    with pytest.raises(BreakdownError, match=r"2 came: .*; wait for more, or choose"):
        require_enough("krum", 2, 0)


def test_no_rule_bears_half_of_the_updates():
    assert all(least_updates(rule, faulty) > 2 * faulty for rule in NEEDS for faulty in range(20))


def test_behind_buckets_the_same_number_of_faulty_ones_is_left():
    assert [effective_count(16, size) for size in (1, 2, 3, 16, 17)] == [16, 8, 6, 1, 1]
