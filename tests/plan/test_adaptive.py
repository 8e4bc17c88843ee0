"""A clip norm that follows a quantile: sum and count together are exactly one Gaussian of the noise that was asked."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfed import accounting
from dpfed import events as ev
from dpfed.errors import InfeasibleTarget, InvalidArgument
from dpfed.guarantee import Guarantee
from dpfed.plan.adaptive import AdaptiveClip, find_least_noise, noised_event

ADAPTIVE = AdaptiveClip(quantile=0.5, learning_rate=0.2, count_noise=5.0)


@given(noise=st.floats(0.05, 50.0), ratio=st.floats(1.001, 1e4))
def test_sum_and_count_have_at_least_the_noise_of_the_pair_and_no_more_than_rounding(noise, ratio):
    adaptive = AdaptiveClip(0.5, 0.2, noise * ratio / 2)
    total = Fraction(adaptive.sum_noise(noise)) ** -2 + Fraction(adaptive.count_multiplier) ** -2
    assert total <= Fraction(noise) ** -2
    assert float(total * Fraction(noise) ** 2) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("rate", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_the_pair_costs_what_one_gaussian_of_its_noise_costs(rate, adjacency):
    def run(event):
        return ev.Repeated(event if rate == 1 else ev.PoissonSampled(event, rate), 200)

    single = accounting.epsilon(run(ev.Gaussian(3.0)), 1e-5, adjacency=adjacency)
    pair = accounting.epsilon(run(ADAPTIVE.pair(3.0)), 1e-5, adjacency=adjacency)
    assert pair == pytest.approx(single, rel=1e-9)


def test_the_split_is_that_of_the_paper():
    assert ADAPTIVE.sum_noise(1.0) == pytest.approx((1 - (2 * 5.0) ** -2) ** -0.5, rel=1e-15)
    assert ADAPTIVE.pair(1.0).events[1] == ev.Gaussian(10.0)


@pytest.mark.parametrize("noise", [10.0, 11.0])
def test_a_count_that_costs_more_than_both_may_is_refused(noise):
    with pytest.raises(InvalidArgument, match="count_noise must be above") as refusal:
        ADAPTIVE.sum_noise(noise)
    assert refusal.value.argument == "count_noise"


def test_the_clip_norm_falls_when_too_many_fit_and_rises_when_too_few_do():
    assert ADAPTIVE.next_clip(2.0, noisy_count=0.0, expected=100) == 2.0
    assert ADAPTIVE.next_clip(2.0, noisy_count=50.0, expected=100) == pytest.approx(2 * math.exp(-0.2 * 0.5))
    assert ADAPTIVE.next_clip(2.0, noisy_count=-50.0, expected=100) == pytest.approx(2 * math.exp(0.2 * 0.5))


def test_noise_beyond_the_number_of_contributions_moves_the_clip_norm_no_further():
    assert ADAPTIVE.next_clip(2.0, 1e9, expected=1) == ADAPTIVE.next_clip(2.0, 0.5, expected=1)
    assert 0 < ADAPTIVE.next_clip(1e-300, 1e9, expected=1) < ADAPTIVE.next_clip(1e300, -1e9, expected=1) < math.inf


def test_the_clip_norm_finds_the_quantile():
    norms = np.random.default_rng(1).lognormal(1.0, 0.7, size=1000)
    clip, adaptive = 1.0, AdaptiveClip(quantile=0.8, learning_rate=0.2, count_noise=1.0)
    for _ in range(300):
        clip = adaptive.next_clip(clip, float(np.sum(norms <= clip) - 500), expected=1000)
    assert np.mean(norms <= clip) == pytest.approx(0.8, abs=0.01)


def test_calibrated_noise_pays_for_the_count():
    promise = Guarantee(4.0, 1e-5)

    def run(event, times):
        return ev.Repeated(ev.PoissonSampled(event, 0.1), times)

    noise = find_least_noise(promise, run, {1.0: 500}, ADAPTIVE)
    assert noise == pytest.approx(find_least_noise(promise, run, {1.0: 500}), rel=3e-5)
    assert accounting.epsilon(run(noised_event(noise, ADAPTIVE), 500), 1e-5) <= 4.0


def test_a_target_that_the_counts_noise_cannot_reach_is_refused_with_the_noise_that_would():
    with pytest.raises(InfeasibleTarget, match="count_noise well above") as refusal:
        find_least_noise(Guarantee(0.1, 1e-6), ev.Repeated, {1.0: 100}, AdaptiveClip(0.5, 0.2, 1.0))
    assert refusal.value.argument == "count_noise"


@pytest.mark.parametrize("bad", [{"quantile": 0.0}, {"quantile": 1.0}, {"learning_rate": 0}, {"count_noise": math.nan}])
def test_a_bad_setting_is_refused_by_name(bad):
    with pytest.raises(InvalidArgument) as refusal:
        AdaptiveClip(**{"quantile": 0.5, "learning_rate": 0.2, "count_noise": 1.0, **bad})
    assert refusal.value.argument in bad


def test_noise_fits_the_norm():
    assert noised_event(2.0) == ev.Gaussian(2.0)
    assert noised_event(2.0, norm="l1") == ev.Laplace(2.0)
