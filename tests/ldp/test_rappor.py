"""RAPPOR: known ε, the law of its two responses, decoding. False-alarm probabilities are stated."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.ldp import Rappor, packed
from dpfed.randomness import SeededSource
from support.local_reports import known, repeat, require_moments

NAMES = np.array([f"v{number}" for number in range(12)])
SHARES = np.array([600, 400, 300, 250, 200, 150, 100, 0, 0, 0, 0, 0])
VALUES = np.repeat(NAMES, SHARES)
HIDDEN = "a text that nobody must see"


def small(**settings):
    return Rappor(**{"f": 0.5, "p": 0.25, "q": 0.75, "bits": 24, "hashes": 2, "cohorts": 4} | settings)


@pytest.mark.parametrize("case", known("rappor"), ids=lambda case: case["id"])
def test_epsilons_and_chances_are_the_known_ones(case):
    given, expected = case["inputs"], case["expected"]
    rappor = Rappor(given["f"], given["p"], given["q"], hashes=given["h"])
    found = {
        "q_star": float(rappor.chances[0]),
        "p_star": float(rappor.chances[1]),
        "eps_inf": rappor.epsilon,
        "eps_1": rappor.epsilon_of_report,
    }
    assert found == pytest.approx(expected, rel=case["tol"])
    assert rappor.event == ev.PureDP(rappor.epsilon, adjacency="replace_one")


@pytest.mark.parametrize("f", [0.1, 1 / 3, 0.7, 1e-12])
def test_epsilons_are_of_the_rounded_chances_on_the_safe_side(f):
    rappor = small(f=f)
    half = Fraction(rappor.f) / 2
    assert rappor.f >= f
    assert Fraction(rappor.f) * 2**52 == int(Fraction(rappor.f) * 2**52)
    assert rappor.epsilon == pytest.approx(4 * math.log((1 - half) / half), rel=1e-12)
    assert rappor.epsilon_of_report <= rappor.epsilon


def test_a_permanent_bit_is_flipped_with_half_of_f_whatever_it_was():
    """Also from 1 to 0: a public library never clears a bit, and its true ε is infinite. Probability 4e-6."""
    rappor = small(f=0.4)
    kept = rappor.enroll(np.full(20_000, "x"), SeededSource(1), cohorts=np.zeros(20_000, dtype=int))
    bits = packed.unpack(kept["bits"], 24)
    own = rappor.filters.positions(["x"], [0])[0]
    others = np.setdiff1d(np.arange(24), own)
    assert stats.binomtest(int((1 - bits[:, own]).sum()), 40_000, 0.2).pvalue > 1e-6
    assert stats.binomtest(int(bits[:, others].sum()), 22 * 20_000, 0.2).pvalue > 1e-6


@pytest.mark.parametrize(("p", "q"), [(0.25, 0.75), (0.1, 0.6), (0.75, 0.25)])
def test_a_reported_bit_has_chance_q_where_the_permanent_one_is_set_and_p_elsewhere(p, q):
    """False-alarm probability 2e-6."""
    rappor = small(p=p, q=q)
    kept = rappor.enroll(np.full(20_000, "x"), SeededSource(2))
    is_set = packed.unpack(kept["bits"], 24) == 1
    told = packed.unpack(rappor.report(kept, SeededSource(3))["bits"], 24)
    assert stats.binomtest(int(told[is_set].sum()), int(is_set.sum()), q).pvalue > 1e-6
    assert stats.binomtest(int(told[~is_set].sum()), int((~is_set).sum()), p).pvalue > 1e-6


def test_reports_of_one_permanent_response_differ_and_it_stays_the_same():
    rappor = small()
    kept = rappor.enroll(VALUES, SeededSource(1))
    before = kept.tobytes()
    first, second = (rappor.report(kept, SeededSource(seed)) for seed in (1, 2))
    assert first.tobytes() != second.tobytes()
    assert kept.tobytes() == before
    assert np.array_equal(first["cohort"], kept["cohort"])


def test_without_a_second_noise_every_report_is_the_permanent_response():
    rappor = small(p=0.0, q=1.0)
    kept = rappor.enroll(VALUES, SeededSource(1))
    assert rappor.report(kept).tobytes() == kept.tobytes()


@pytest.mark.parametrize("value", [0, 9])
def test_estimates_are_unbiased_and_have_the_variance_of_their_standard_errors(value):
    """400 estimates of 2,000 users, each with hash functions and cohorts of its own. Users are no sample, but their
    cohorts are: errors are scaled by each estimate's own standard error, less the variance of drawing users."""
    truth, scaled = SHARES / 2000, []
    source = SeededSource(40 + value)
    for index in range(400):
        rappor = small(label=f"draw {index}")
        found = rappor.estimate(rappor.randomize(VALUES, source), NAMES)
        drawn = truth[value] * (1 - truth[value]) / 2000
        scaled.append((found.frequencies[value] - truth[value]) / np.sqrt(found.standard_errors[value] ** 2 - drawn))
    require_moments(scaled, 1.0)


def test_a_single_candidate_has_the_formulas_variance():
    """400 estimates of 2,000 users, all with the candidate; false-alarm probability 2e-6."""
    rappor = small()
    values = np.full(2000, "only")
    errors = repeat(
        lambda source, _: rappor.estimate(rappor.randomize(values, source), ["only"]).frequencies[0], 1.0, seed=5
    )
    require_moments(errors, rappor.variance(2000, 1.0))


def test_decoding_finds_who_is_there_and_nobody_else():
    """Bonferroni at 1e-6 in all; those who are there have 7 standard errors and more."""
    rappor = small(bits=64, cohorts=16)
    decoded = rappor.decode(rappor.randomize(np.tile(VALUES, 20), SeededSource(6)), NAMES, significance=1e-6)
    assert decoded.significant == tuple(NAMES[:7])
    assert decoded.frequencies.min() >= 0
    assert decoded.residual == pytest.approx(1.0, abs=0.5)


def test_the_same_seed_gives_the_same_reports():
    first, again = (small().randomize(VALUES, SeededSource(1)) for _ in range(2))
    assert first.tobytes() == again.tobytes()


def test_a_second_text_stays_in_the_cohort_of_the_first():
    rappor = small()
    first = rappor.enroll(VALUES, SeededSource(1))
    assert np.array_equal(rappor.enroll(VALUES, SeededSource(2), first["cohort"])["cohort"], first["cohort"])
    for wrong in ([0], np.full(len(VALUES), 4), np.full(len(VALUES), -1), np.full(len(VALUES), 0.0)):
        with pytest.raises(InvalidArgument, match="cohorts must be"):
            rappor.enroll(VALUES, cohorts=wrong)


def test_mixed_cohorts_and_filters_are_refused():
    rappor = small()
    with pytest.raises(InvalidArgument, match="cohorts that were not declared"):
        rappor.check_reports(small(cohorts=64).randomize(VALUES, SeededSource(1)))
    with pytest.raises(InvalidArgument, match="of another mechanism"):
        rappor.estimate([rappor.randomize(VALUES), small(bits=48).randomize(VALUES)], NAMES)
    with pytest.raises(InvalidArgument, match="at least one report"):
        rappor.estimate([], NAMES)


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"f": 0.0}, "f"),
        ({"f": 1.0}, "f"),
        ({"p": 0.5, "q": 0.5}, "q"),
        ({"p": -0.1}, "p"),
        ({"q": 1.1}, "q"),
        ({"hashes": 9}, "hashes"),
        ({"hashes": 24}, "hashes"),
        ({"hashes": 0}, "hashes"),
        ({"bits": 1 << 17}, "bits"),
        ({"cohorts": 0}, "cohorts"),
    ],
)
def test_settings_that_promise_nothing_or_cannot_be_decoded_are_refused(settings, argument):
    with pytest.raises(InvalidArgument) as refusal:
        small(**settings)
    assert refusal.value.argument == argument


@pytest.mark.parametrize("values", [[[HIDDEN]], [1.5], []])
def test_values_that_are_no_texts_are_refused_without_showing_them(values):
    with pytest.raises(InvalidArgument, match="one list of texts") as refusal:
        small().randomize(values)
    assert HIDDEN not in str(refusal.value)


def test_repeated_candidates_are_refused():
    rappor = small()
    with pytest.raises(InvalidArgument, match="must all be different"):
        rappor.estimate(rappor.randomize(VALUES), ["a", "a"])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("hashes", [1, 2, 3])
def test_an_epsilon_asked_for_is_kept_for_ever(epsilon, hashes):
    rappor = Rappor.from_epsilon(epsilon, hashes=hashes)
    assert rappor.epsilon <= epsilon
    assert rappor.epsilon == pytest.approx(epsilon, rel=1e-9)
    with pytest.raises(InvalidArgument, match="pure noise"):
        Rappor.from_epsilon(1e-18)
