"""What a client sends in style local: at zero noise records move it by two clip norms at most; noise is as stated."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.plan import ClientPlan, ClientRelease
from dpfed.randomness import SeededSource
from studies import SilentSource

FALSE_ALARM = 1e-6
DIMENSION = 3
NORMS = ("l1", "l2")
LAWS = {"l1": stats.laplace, "l2": stats.norm}
every_norm = pytest.mark.parametrize("norm", NORMS)


def a_release(norm="l2", clip_norm=1.0, noise_multiplier=2.0):
    return ClientRelease(ClientPlan(clip_norm=clip_norm, noise_multiplier=noise_multiplier, norm=norm))


def is_within(vector, bound, norm):
    """Whether the exact norm is at most the bound."""
    power = 1 if norm == "l1" else 2
    return sum(abs(Fraction(value)) ** power for value in vector.tolist()) <= Fraction(bound) ** power


wild = st.floats(-1e300, 1e300) | st.floats(-1e-3, 1e-3) | st.sampled_from([np.nan, np.inf, -np.inf, 1e6, -1e6])
vectors = st.lists(wild, min_size=DIMENSION, max_size=DIMENSION).map(np.array)


@given(one=vectors, other=vectors, norm=st.sampled_from(NORMS), clip_norm=st.sampled_from([1.0, 0.1, 3.7, 1e-9]))
def test_any_other_records_move_what_is_noised_by_at_most_two_clip_norms_exactly(one, other, norm, clip_norm):
    release = a_release(norm, clip_norm)
    first, second = release.query(one, DIMENSION), release.query(other, DIMENSION)
    assert is_within(first, clip_norm, norm)
    assert is_within(second, clip_norm, norm)
    moved = [Fraction(a) - Fraction(b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
    power = 1 if norm == "l1" else 2
    assert sum(abs(each) ** power for each in moved) <= Fraction(release.sensitivity) ** power
    assert release.sensitivity == 2 * clip_norm
    assert (release.sensitivity.norm, release.sensitivity.adjacency) == (norm, "replace_one")


@every_norm
def test_records_that_turn_the_update_around_attain_two_clip_norms(norm):
    release, silent = a_release(norm, clip_norm=0.5), SilentSource()
    way = np.array([1e6, 0.0, 0.0])
    sent = [release.release(sign * way, DIMENSION, silent) for sign in (1, -1)]
    assert np.abs(sent[0] - sent[1]).sum() == pytest.approx(float(release.sensitivity), rel=1e-9)


@given(one=vectors, other=vectors, norm=st.sampled_from(NORMS))
def test_rounding_to_the_grid_stays_inside_the_noise_that_is_charged(one, other, norm):
    # On a grid of step g neighbours are 2C + g·d apart at most in L1 (2C + g·√d in L2). The noise is widened to that
    # of a clip norm of C + g·d, whose shift the accountant doubles: 2C + g·d ≤ 2(C + g·d).
    release, clip_norm = a_release(norm, clip_norm=0.3), 0.3
    sent = [release.release(update, DIMENSION, SilentSource()) for update in (one, other)]
    step = 2.0**-40 * release.client.noise * clip_norm
    slack = step * (DIMENSION if norm == "l1" else np.sqrt(DIMENSION))
    moved = np.abs(sent[0] - sent[1])
    apart = moved.sum() if norm == "l1" else np.sqrt((moved**2).sum())
    assert apart <= 2 * (clip_norm + slack)


@every_norm
def test_the_noise_of_what_leaves_is_the_noise_multiplier_times_the_clip_norm(norm):
    release = a_release(norm, clip_norm=0.5, noise_multiplier=3.0)
    update = np.full(20_000, 1e-6)
    noise = release.release(update, update.size, SeededSource(5)) - release.query(update, update.size)
    law = LAWS[norm](scale=3.0 * 0.5)
    assert stats.kstest(noise, law.cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, LAWS[norm](scale=1.1 * 3.0 * 0.5).cdf).pvalue < FALSE_ALARM  # it would notice a tenth


@every_norm
@pytest.mark.parametrize(
    "broken", [np.full(DIMENSION, np.nan), np.zeros(DIMENSION + 1), np.zeros(0), np.array(["a", "b", "c"]), None]
)
def test_an_update_that_is_no_finite_vector_is_sent_as_noise_around_zero(norm, broken):
    release = a_release(norm)
    expected = release.release(np.zeros(DIMENSION), DIMENSION, SeededSource(3))
    assert np.array_equal(release.release(broken, DIMENSION, SeededSource(3)), expected)
    assert np.any(expected)


def test_a_short_update_is_not_changed_before_its_noise():
    update = np.array([0.25, -0.125, 0.5])
    assert np.array_equal(a_release("l2").release(update, DIMENSION, SilentSource()), update)
    assert np.array_equal(a_release("l1").release(update, DIMENSION, SilentSource()), update)


def test_the_event_is_that_of_the_noise():
    assert a_release("l1").event == ev.Laplace(2.0)
    assert a_release("l2").event == ev.Gaussian(2.0)


def test_nothing_leaves_without_noise():
    release = ClientRelease(ClientPlan(clip_norm=1.0))
    with pytest.raises(InvalidArgument, match="noise_multiplier"):
        release.release(np.zeros(DIMENSION), DIMENSION, SeededSource(1))


def test_a_client_plan_in_l1_takes_neither_a_tree_nor_an_adaptive_clip():
    from dpfed.plan.adaptive import AdaptiveClip
    from dpfed.plan.tree import RoundTree

    plan = ClientPlan(clip_norm=1.0)
    for wrong in ({"tree": RoundTree()}, {"adaptive": AdaptiveClip(0.5, 0.2, 9.0)}):
        with pytest.raises(InvalidArgument, match="proved for Gaussian noise"):
            replace(plan, norm="l1", **wrong)
    with pytest.raises(InvalidArgument, match="norm must be"):
        replace(plan, norm="linf")
