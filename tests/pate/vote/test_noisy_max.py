"""Noisy votes: the noise drawn is the noise charged, and one teacher moves the counts no further than it is for."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpfed.accounting.queries import epsilon
from dpfed.accounting.renyi import rdp
from dpfed.errors import InvalidArgument
from dpfed.events import Gaussian, Laplace, Repeated
from dpfed.pate.vote.noisy_max import L1_SHIFT, L2_SHIFT, MAX_SHIFT, ConfidentGNMax, GNMax, LNMax
from dpfed.randomness import SeededSource, SystemSource

FALSE_ALARM = 1e-6
DRAWS = 2_000
CASES = json.loads((Path(__file__).parents[2] / "reference" / "pate.json").read_text(encoding="utf-8"))


def accepts(hits, chance):
    """Whether so many hits of DRAWS are what that chance gives, at the stated false-alarm probability."""
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], DRAWS, chance)
    return low <= hits <= high


def count_class_one(vote, counts):
    return sum(vote.choose(counts) for _ in range(DRAWS))


@pytest.mark.parametrize("make_source", [partial(SeededSource, 3), SystemSource], ids=["seeded", "system"])
def test_laplace_votes_flip_as_often_as_published(make_source):
    """Lap(2/ε) at ε = 1: the published chance for a gap of 3 and b = 2; Lap(1/ε) would flip half as often."""
    (case,) = [case for case in CASES if case["group"] == "report_noisy_max_laplace"]
    assert (case["inputs"]["gap"], case["inputs"]["b"]) == (3.0, 2.0)
    assert accepts(count_class_one(LNMax(1.0, make_source()), [3, 0]), case["expected"])


@pytest.mark.parametrize("make_source", [partial(SeededSource, 3), SystemSource], ids=["seeded", "system"])
def test_gaussian_votes_flip_as_often_as_two_normals_do(make_source):
    chance = stats.norm.sf(20 / (math.sqrt(2) * 20.0))
    assert accepts(count_class_one(GNMax(20.0, make_source()), [60, 40]), chance)


def test_a_threshold_is_passed_as_often_as_one_normal_does():
    vote = ConfidentGNMax(20.0, SeededSource(3), threshold=150, threshold_sigma=40.0)
    hits = sum(vote.is_confident([130, 100, 20]) for _ in range(DRAWS))
    assert accepts(hits, stats.norm.sf((150 - 130) / 40.0))


def test_a_hundred_pure_answers_cost_what_is_published():
    (case,) = [case for case in CASES if case["group"] == "pate_pure"]
    vote = LNMax(2 / case["inputs"]["b"])
    assert vote.scale == case["inputs"]["b"]
    found = epsilon(Repeated(vote.event, case["inputs"]["queries"]), 0.0)
    assert found == pytest.approx(case["expected"], rel=1e-12)


def test_the_events_are_those_of_the_papers():
    assert LNMax(0.1).event == Laplace(10.0)
    assert GNMax(40.0).event.noise_multiplier == pytest.approx(40 / math.sqrt(2), rel=1e-12)
    vote = ConfidentGNMax(40.0, threshold=200, threshold_sigma=150.0)
    assert vote.threshold_event == Gaussian(150.0)
    assert vote.event == GNMax(40.0).event
    assert GNMax(40.0).threshold_event is LNMax(0.1).threshold_event is None


@pytest.mark.parametrize("order", [2, 8, 32])
def test_an_answer_is_alpha_over_sigma_squared(order):
    """The popular α/(2σ²) is half of it."""
    assert rdp(GNMax(40.0).event, [order])[0] == pytest.approx(order / 40.0**2, rel=1e-9)


@given(st.floats(1e-3, 1e6))
def test_the_noise_drawn_is_never_less_than_what_is_charged(sigma):
    vote = GNMax(sigma)
    drawn, charged = Fraction(vote._mechanism.scale), Fraction(vote.event.noise_multiplier)
    assert drawn**2 >= 2 * charged**2
    assert vote._mechanism.scale == pytest.approx(sigma, rel=1e-14)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6), st.data())
def test_one_teacher_moves_the_counts_by_the_stated_shifts(counts, data):
    loser, winner = (data.draw(st.integers(0, len(counts) - 1)) for _ in range(2))
    before = np.array(counts)
    before[loser] += 1
    after = np.array(counts)
    after[winner] += 1
    assert np.abs(after - before).sum() <= L1_SHIFT
    assert np.linalg.norm(after - before) <= L2_SHIFT
    assert abs(after.max() - before.max()) <= MAX_SHIFT


def test_the_shift_is_not_less_than_the_root_of_two():
    assert Fraction(L2_SHIFT) ** 2 >= 2


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
def test_two_counts_that_move_by_one_cost_no_more_than_one_that_moves_by_two(multiplier, delta):
    """The event of a Laplace vote is that of one number; what moves is two counts, each with noise of its own."""
    two = epsilon(Repeated(Laplace(2 * multiplier), 2), delta)
    assert two <= epsilon(Laplace(multiplier), delta) * (1 + 1e-9)


@pytest.mark.parametrize("vote", [LNMax(0.2), GNMax(20.0)], ids=["laplace", "gaussian"])
def test_replace_one_costs_what_two_teachers_cost(vote):
    """Pure: a group of two; Gaussian: the accountant doubles the shift."""
    single, double = (epsilon(vote.event, 1e-9, adjacency=each) for each in ("add_remove", "replace_one"))
    assert double > 1.9 * single
    assert epsilon(LNMax(0.2).event, 0.0, adjacency="replace_one") == pytest.approx(0.4, rel=1e-12)


def test_other_noise_keeps_the_proportion_of_the_threshold():
    vote = ConfidentGNMax(10.0, threshold=200, threshold_sigma=30.0).with_noise(40.0)
    assert (vote.sigma, vote.threshold_sigma, vote.threshold) == (40.0, 120.0, 200.0)
    assert LNMax(1.0).with_noise(4.0).epsilon == 0.25
    assert GNMax(1.0).with_noise(4.0).sigma == 4.0


def test_every_query_of_a_plain_vote_is_answered():
    assert LNMax(1.0).is_confident([1, 1])
    assert GNMax(1.0).is_confident([1, 1])


@pytest.mark.parametrize("make", [lambda: LNMax(0.0), lambda: GNMax(-1.0), lambda: ConfidentGNMax(1.0, threshold=3)])
def test_votes_without_noise_are_refused(make):
    with pytest.raises(InvalidArgument):
        make()


@pytest.mark.parametrize("counts", [[5], [0.5, 1], [-1, 3]])
def test_what_is_no_count_is_refused(counts):
    with pytest.raises(InvalidArgument, match="counts"):
        GNMax(1.0).choose(counts)
