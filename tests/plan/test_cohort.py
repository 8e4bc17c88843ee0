"""Cohorts are drawn as they are charged: rates, independence, and no amplification without secrecy."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from scipy import stats

from dpfed import events as ev
from dpfed.errors import InvalidArgument
from dpfed.plan.cohort import All, FixedCohort, PoissonCohort, from_plain, likely_participations, to_plain
from dpfed.randomness import SeededSource

FALSE_ALARM = 1e-6  # of each statistical test here, were its seed drawn anew
NAMES = tuple(f"c{number}" for number in range(6))
NOISE = ev.Gaussian(2.0)


def test_everyone_is_in_a_cohort_of_all():
    assert All().draw(NAMES, SeededSource(1)) == NAMES
    assert All().event(NOISE, 6) == NOISE
    assert (All().chance(6), All().expected(6)) == (1.0, 6)


def test_a_poisson_cohort_takes_each_client_at_its_rate_and_independently():
    source, rounds = SeededSource(2), 20_000
    draws = np.array([[name in drawn for name in NAMES] for drawn in _drawn(PoissonCohort(0.3), source, rounds)])
    for column in draws.T:
        assert stats.binomtest(int(column.sum()), rounds, 0.3).pvalue > FALSE_ALARM / 6
    both = int((draws[:, 0] & draws[:, 1]).sum())
    assert stats.binomtest(both, rounds, 0.09).pvalue > FALSE_ALARM


def test_a_poisson_cohort_may_be_empty():
    assert () in set(_drawn(PoissonCohort(0.01), SeededSource(3), 100))


def test_every_set_of_a_fixed_cohort_is_equally_likely():
    rounds = 30_000
    seen = Counter(_drawn(FixedCohort(3), SeededSource(4), rounds))
    assert set(seen) == set(combinations(NAMES, 3))
    assert stats.chisquare(list(seen.values())).pvalue > FALSE_ALARM


def _drawn(cohort, source, rounds):
    return [cohort.draw(NAMES, source) for _ in range(rounds)]


@pytest.mark.parametrize("rate", [0.1, 1 / 3, 0.7])
def test_the_rate_that_is_charged_is_exactly_how_often_a_uniform_draw_falls_below_it(rate):
    chance = Fraction(PoissonCohort(rate).chance(6))
    assert (chance * 2**53).denominator == 1
    assert 0 <= chance - Fraction(rate) < Fraction(1, 2**53)


class ConstantSource(SeededSource):
    """Every uniform draw is this number, a multiple of 2⁻⁵³."""

    def __init__(self, number) -> None:
        super().__init__(1)
        self.number = number

    def coins(self, count):
        return np.full(count, int(self.number * 2**53), dtype=np.uint64)


def test_a_draw_that_is_the_rate_itself_takes_nobody():
    cohort = PoissonCohort(0.25)
    assert cohort.draw(NAMES, ConstantSource(0.25)) == ()
    assert cohort.draw(NAMES, ConstantSource(0.25 - 2.0**-53)) == NAMES


def test_only_a_secret_cohort_amplifies():
    assert PoissonCohort(0.25).event(NOISE, 6) == NOISE
    assert FixedCohort(2).event(NOISE, 6) == NOISE
    assert PoissonCohort(0.25, secret=True).event(NOISE, 6) == ev.PoissonSampled(NOISE, 0.25)
    assert FixedCohort(2, secret=True).event(NOISE, 6) == ev.SampledWithoutReplacement(NOISE, 2, 6)


def test_a_cohort_of_everyone_hides_nobody():
    for cohort in (All(), PoissonCohort(1.0, secret=True), FixedCohort(6, secret=True)):
        assert not cohort.hides(6)
        assert cohort.event(NOISE, 6) == NOISE


@pytest.mark.parametrize("rounds", [1, 7, 60, 300])
@pytest.mark.parametrize("chance", [0.001, 0.1, 1 / 3, 0.5, 0.99])
def test_the_default_number_of_participations_is_the_smallest_that_is_rarely_exceeded(rounds, chance):
    q, most = Fraction(chance), likely_participations(rounds, chance)

    def exceeds(m):
        return sum(comb(rounds, k) * q**k * (1 - q) ** (rounds - k) for k in range(m + 1, rounds + 1))

    assert exceeds(most) <= Fraction(1, 1000)
    assert most == 1 or exceeds(most - 1) > Fraction(1, 1000)


@pytest.mark.parametrize("cohort", [All(), PoissonCohort(0.2), PoissonCohort(0.2, True), FixedCohort(3, secret=True)])
def test_a_cohort_comes_back_from_plain_values(cohort):
    assert from_plain(to_plain(cohort)) == cohort


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonCohort(0.0),
        lambda: PoissonCohort(1.5),
        lambda: FixedCohort(0),
        lambda: PoissonCohort(0.1, secret=1),
        lambda: from_plain({"kind": "whoever"}),
        lambda: from_plain({}),
    ],
)
def test_a_bad_cohort_is_refused(make):
    with pytest.raises(InvalidArgument):
        make()
