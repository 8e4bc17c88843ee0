"""What holds for all frequency oracles alike. False-alarm probabilities: 2e-6 per test of moments."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.accounting import epsilon as epsilon_of
from dpfed.errors import InvalidArgument
from dpfed.ldp import (
    ABSENT,
    CountMeanSketch,
    HadamardResponse,
    HadamardSketch,
    KaryResponse,
    LocalHashing,
    OptimizedUnary,
    SubsetSelection,
    SymmetricUnary,
)
from dpfed.ldp.oracle import BATCH, batches
from dpfed.randomness import SeededSource, SystemSource
from support.local_reports import repeat, require_moments

PURE = (KaryResponse, SymmetricUnary, OptimizedUnary, LocalHashing, SubsetSelection, HadamardResponse)
SKETCHES = (CountMeanSketch, HadamardSketch)
ORACLES = (*PURE, *SKETCHES)
USERS, DOMAIN = 2000, 6
VALUES = np.repeat(np.arange(DOMAIN), [1000, 500, 300, 150, 50, 0])
SECRET = 987_654_321


@pytest.fixture(params=ORACLES, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def small(kind, epsilon=1.0, absent=False, label="dpfed"):
    sizes = {"buckets": 16, "functions": 8, "label": label} if kind in SKETCHES else {}
    return kind(epsilon, DOMAIN, absent, **sizes)


def variance_of(mechanism, value):
    if isinstance(mechanism, SKETCHES):
        others = np.delete(np.bincount(VALUES, minlength=DOMAIN) / USERS, value)
        return mechanism.variance(USERS, np.mean(value == VALUES), others=others)
    return mechanism.variance(USERS, np.mean(value == VALUES))


@pytest.mark.parametrize("value", [0, 5])
def test_estimates_are_unbiased_and_have_the_formulas_variance(kind, value):
    """400 estimates of 2,000 users each; of sketches also over 400 draws of their hash functions."""

    def estimate(source, index):
        mechanism = small(kind, label=f"draw {index}")
        return mechanism.estimate(mechanism.randomize(VALUES, source)).frequencies[value]

    errors = repeat(estimate, np.mean(value == VALUES), seed=17 + value)
    require_moments(errors, variance_of(small(kind), value))


def test_intervals_cover_the_truth_as_often_as_they_say(kind):
    """200 intervals at 90 %: binomial, two-sided at 1e-6."""
    covered = 0
    source = SeededSource(23)
    for index in range(200):
        mechanism = small(kind, label=f"draw {index}")
        low, high = mechanism.estimate(mechanism.randomize(VALUES, source)).interval(0.9)
        covered += low[0] <= 0.5 <= high[0]
    assert stats.binomtest(covered, 200, 0.9).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 2.0, 5.0, 12.0, 60.0])
def test_the_epsilon_named_is_that_of_the_rounded_chances_and_never_above_the_one_asked_for(kind, epsilon):
    mechanism = small(kind, epsilon)
    assert mechanism.epsilon <= epsilon
    assert epsilon > 30 or mechanism.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert small(kind, mechanism.epsilon) == mechanism


def test_what_describes_a_report_is_what_is_charged_for_it(kind):
    mechanism = small(kind)
    assert mechanism.event.adjacency == "replace_one"
    assert mechanism.event.epsilon == mechanism.epsilon
    assert epsilon_of(mechanism.event, 0.0, adjacency="replace_one") == pytest.approx(mechanism.epsilon)
    expected = ev.RandomizedResponse if kind is KaryResponse else ev.PureDP
    assert type(mechanism.event) is expected


def test_the_same_seed_gives_the_same_reports_and_another_one_does_not(kind):
    mechanism = small(kind)
    first, again, other = (mechanism.randomize(VALUES, SeededSource(seed)) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert mechanism.randomize(VALUES).tobytes() != mechanism.randomize(VALUES, SystemSource()).tobytes()


@pytest.mark.parametrize("absent", [False, True])
def test_who_has_no_value_takes_part_if_that_is_declared(kind, absent):
    mechanism = small(kind, 4.0, absent)
    values = np.where(np.arange(4000) % 2, ABSENT, 3)
    if not absent:
        with pytest.raises(InvalidArgument, match="must lie from 0 to 5"):
            mechanism.randomize(values)
        return
    found = mechanism.estimate(mechanism.randomize(values, SeededSource(5)))
    assert len(found) == DOMAIN + 1
    assert np.abs(found.frequencies - [0, 0, 0, 0.5, 0, 0, 0.5]).max() < 7 * found.standard_errors.max()


@pytest.mark.parametrize(
    "values", [[SECRET], [0, -2], [0.0, 1.0], [[0], [1]], [], 3, ["a"], [True, SECRET], np.array([0, 2**40])]
)
def test_values_outside_the_domain_and_wrong_shapes_are_refused_without_showing_one(kind, values):
    with pytest.raises(InvalidArgument, match=r"^values must") as refusal:
        small(kind).randomize(values)
    assert not any(secret in str(refusal.value) for secret in (str(SECRET), "-2", str(2**40), "'a'"))


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, math.inf, "1"])
def test_an_epsilon_that_is_not_positive_and_finite_is_refused(kind, epsilon):
    with pytest.raises(InvalidArgument, match="epsilon must be a positive finite number"):
        small(kind, epsilon)


def test_an_epsilon_too_small_for_the_coins_is_refused(kind):
    with pytest.raises(InvalidArgument, match="pure noise"):
        small(kind, 1e-18)


@pytest.mark.parametrize("domain", [0, 1, -3, 2.0, 1 << 31])
def test_a_domain_without_a_choice_or_beyond_the_largest_is_refused(kind, domain):
    with pytest.raises(InvalidArgument, match=r"^domain must"):
        kind(1.0, domain)


def test_one_value_and_its_absence_are_a_domain():
    assert KaryResponse(1.0, 1, absent=True).event.num_buckets == 2


def test_reports_of_another_mechanism_or_shape_are_refused(kind):
    mechanism = small(kind)
    for wrong in (np.zeros(3), np.zeros((3, 9), dtype=np.uint8), np.zeros(3, dtype=np.int64), np.float64(1.0)):
        with pytest.raises(InvalidArgument, match=r"^reports must"):
            mechanism.estimate(wrong)
    other = small(KaryResponse if kind is not KaryResponse else LocalHashing)
    with pytest.raises(InvalidArgument, match="of another mechanism"):
        mechanism.estimate(other.randomize(VALUES))


def test_no_reports_at_all_are_refused(kind):
    mechanism = small(kind)
    with pytest.raises(InvalidArgument, match="at least one report"):
        mechanism.estimate(mechanism.randomize(VALUES)[:0])
    with pytest.raises(InvalidArgument, match="at least one report"):
        mechanism.estimate(iter(()))


def test_a_report_supports_the_values_that_it_is_counted_for():
    for kind in PURE:
        mechanism = small(kind, absent=True)
        reports = mechanism.randomize(VALUES, SeededSource(3))
        counted = [int(mechanism.supports(reports, value).sum()) for value in (*range(DOMAIN), ABSENT)]
        assert mechanism.support(reports).tolist() == counted


def test_reports_may_come_in_any_number_of_batches(kind):
    mechanism = small(kind)
    reports = mechanism.randomize(np.resize(VALUES, BATCH + 1000), SeededSource(9))
    whole, parts = mechanism.estimate(reports), mechanism.estimate([reports[:100], reports[100:100], reports[100:]])
    assert whole.users == parts.users == BATCH + 1000
    assert np.allclose(whole.frequencies, parts.frequencies, rtol=0, atol=1e-12)
    assert max(map(len, batches(reports))) == BATCH


def test_ten_million_reports_are_decoded_in_bounded_memory(kind):
    """Batches come from a generator, as from a file; what the decoder holds beside them stays below 48 MB.

    Of sketches, which take longer and decode by the same batches, two million.
    """
    mechanism = small(kind)
    part = mechanism.randomize(np.resize(VALUES, 100_000), SeededSource(4))
    mechanism.estimate(part[:1000])
    tracemalloc.start()
    found = mechanism.estimate(part for _ in range(100 if kind in PURE else 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.users == (10_000_000 if kind in PURE else 2_000_000)
    assert peak < 48 << 20


@pytest.mark.parametrize("frequency", [-0.1, 1.1, math.nan])
def test_a_frequency_is_a_share(kind, frequency):
    with pytest.raises(InvalidArgument, match="from 0 to 1"):
        small(kind).variance(100, frequency)


def test_a_sample_of_users_has_the_variance_of_its_draw_added(kind):
    mechanism = small(kind)
    added = mechanism.variance(100, 0.3, sampled=True) - mechanism.variance(100, 0.3)
    assert added == pytest.approx(0.3 * 0.7 / 100)
