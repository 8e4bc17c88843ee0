from __future__ import annotations

import pytest

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.plan.adaptive import AdaptiveClip
from dpfed.plan.client import ClientPlan
from dpfed.plan.tree import RoundTree


def test_a_round_is_one_gaussian_of_the_noise_multiplier_whatever_the_clip_norm():
    for clip_norm in (0.1, 10.0):
        assert ClientPlan(clip_norm=clip_norm, noise_multiplier=2.0).event == ev.Gaussian(2.0)


def test_a_count_beside_the_sum_is_paid_from_the_same_event():
    plan = ClientPlan(clip_norm=1.0, noise_multiplier=2.0, adaptive=AdaptiveClip(0.5, 0.2, count_noise=10.0))
    assert plan.noise == 2.0
    # Sum and count together: 1/2² = 1/σ² + 1/(2 · 10)², where a count of ±1/2 has sensitivity 1/2.
    assert 1 / plan.sum_noise**2 + 1 / 20.0**2 == pytest.approx(1 / 2.0**2)


def test_what_is_asked_of_a_plan_without_noise_is_refused():
    plan = ClientPlan(clip_norm=1.0)
    with pytest.raises(InvalidArgument, match="updates get no noise yet"):
        _ = plan.event


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_norm": 0.0},
        {"noise_multiplier": -1.0},
        {"adaptive": 0.5},
        {"tree": True},
        {"tree": RoundTree(), "adaptive": AdaptiveClip(0.5, 0.2, count_noise=10.0)},
        {"noise_multiplier": 6.0, "adaptive": AdaptiveClip(0.5, 0.2, count_noise=1.0)},
    ],
)
def test_what_bounds_nothing_or_does_not_go_together_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        ClientPlan(**{"clip_norm": 1.0, **wrong})
