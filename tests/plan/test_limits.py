"""The length above which an update is nonsense: declared, or a public multiple of what the plan allows."""

from __future__ import annotations

import math

import pytest

from dpfed.plan import limits
from dpfed.plan.plan import ClientPlan, LocalPlan, Plan


def plan(**options):
    part = LocalPlan(size=9, batch_size=3, steps=4, learning_rate=0.5, clip_norm=options.pop("clip_norm", math.inf))
    return Plan("study", 2, {"a": part}, **{"style": "none", **options})


def test_a_declared_norm_is_the_limit():
    assert limits.find_largest_norm(plan(max_update_norm=7.0), 100) == 7.0
    assert limits.find_largest_mean(plan(max_update_norm=7.0)) is None


@pytest.mark.parametrize("size", [1, 62])
def test_without_a_clip_the_limit_grows_with_the_model(size):
    assert limits.find_largest_norm(plan(), size) == pytest.approx(2e3 * math.sqrt(size))


def test_with_a_clip_it_is_a_million_clip_norms_times_the_steps():
    assert limits.find_largest_norm(plan(style="sample", clip_norm=3.0), 62) == pytest.approx(6e6)
    server = plan(style="user", client=ClientPlan(clip_norm=0.5))
    assert limits.find_largest_norm(server, 62) == pytest.approx(2e6)


def test_no_limit_exceeds_what_float32_adds_up():
    assert limits.find_largest_norm(plan(style="sample", clip_norm=1e29), 1) == limits.MOST_NORM
